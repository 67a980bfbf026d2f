"""Public sets: one stored form per kind, the same bytes for the same rows, clear refusals."""

from __future__ import annotations

import contextlib
import hashlib
import string
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from coordinator.public_sets.convert import ConvertedSet, convert, inspect
from wire.consilium.v1 import registry_pb2
from wire.errors import MESSAGE_MALFORMED, PUBLIC_SET_INVALID, Refusal
from wire.schema import Column, ColumnType, SetKind, SetSchema

pytestmark = pytest.mark.slow

PATIENTS = pd.DataFrame(
    {
        "age": [71, 35, 58],
        "lactate": [1.5, None, 0.25],
        "sex": ["w", "m", "w"],
        "smoker": [True, False, True],
        "blood": pd.Series(["0", None, "AB"], dtype="category"),
    }
)
GOLDEN_TABLE = "acf97341875410d5dc6414d5344b9a10ba345e4d0954eff48740c6fc7c54594c"
GOLDEN_ARRAY = "1e78f21e5ce985301901c89f2373aa99680e70312803ad915c24f8af22b394e4"
SCHEMA = SetSchema(
    kind=SetKind.TABLE,
    columns=(
        Column(name="age", type=ColumnType.NUMBER),
        Column(name="lactate", type=ColumnType.NUMBER, nullable=True),
        Column(name="sex", type=ColumnType.CATEGORY, categories=("m", "w")),
        Column(name="smoker", type=ColumnType.CATEGORY, categories=("false", "true")),
        Column(name="blood", type=ColumnType.CATEGORY, categories=("0", "AB"), nullable=True),
    ),
)


def from_parquet(table: pd.DataFrame | pa.Table, folder: Path, **options: object) -> ConvertedSet:
    path = folder / "source.parquet"
    if isinstance(table, pd.DataFrame):
        table.to_parquet(path)
    else:
        pq.write_table(table, path)
    return convert(path, folder / "sets", **options)  # type: ignore[arg-type]


def from_csv(content: str | bytes, folder: Path, **options: object) -> ConvertedSet:
    path = folder / "source.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return convert(path, folder / "sets", **options)  # type: ignore[arg-type]


def from_array(array: object, folder: Path) -> ConvertedSet:
    path = folder / "source.npy"
    np.save(path, array)  # type: ignore[arg-type]
    return convert(path, folder / "sets")


def refused(refusal: pytest.ExceptionInfo[Refusal]) -> str:
    assert refusal.value.is_a(PUBLIC_SET_INVALID)
    assert refusal.value.hint
    return f"{refusal.value.sentence} {refusal.value.hint}"


# -- tables -------------------------------------------------------------------------------------------


def test_a_table_keeps_types_categories_and_empty_cells_in_its_schema(tmp_path: Path) -> None:
    converted = from_parquet(PATIENTS, tmp_path)
    assert converted.schema == SCHEMA
    assert converted.rows == 3
    assert converted.path == tmp_path / "sets" / converted.digest
    content = converted.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == converted.digest
    assert len(content) == converted.size_bytes
    assert inspect(converted.path) == (3, SCHEMA)


def test_the_stored_table_is_mapped_into_memory_and_not_copied(tmp_path: Path) -> None:
    converted = from_parquet(pd.DataFrame({"x": np.arange(200_000.0)}), tmp_path)
    before = pa.total_allocated_bytes()
    with pa.memory_map(str(converted.path)) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(0)
    assert pa.total_allocated_bytes() - before < 10_000
    assert batch["x"].to_numpy()[-1] == 199_999.0


def test_csv_and_parquet_of_the_same_rows_have_one_digest(tmp_path: Path) -> None:
    path = tmp_path / "source.csv"
    PATIENTS.to_csv(path, index=False)
    assert convert(path, tmp_path / "sets").digest == from_parquet(PATIENTS, tmp_path).digest


def test_chunks_metadata_index_widths_and_padding_do_not_change_the_digest(tmp_path: Path) -> None:
    digest = from_parquet(PATIENTS, tmp_path).digest
    variants: list[pd.DataFrame | pa.Table] = [
        PATIENTS.set_index(np.array([5, 9, 2])),
        PATIENTS.astype({"age": "int8", "lactate": "float32"}),
        PATIENTS.astype({"age": "float64", "sex": "category"}),
        PATIENTS.assign(sex=[" w", "m ", "w"], smoker=["TRUE", "False", "true"]),
        pa.concat_tables([pa.Table.from_pandas(PATIENTS[i : i + 1]) for i in range(3)]),
        pa.Table.from_pandas(PATIENTS).replace_schema_metadata({"owner": "someone"}),
        pa.Table.from_pandas(pd.concat([PATIENTS[:1], PATIENTS])).slice(1),
    ]
    assert {from_parquet(variant, tmp_path).digest for variant in variants} == {digest}


def test_a_nan_is_an_empty_cell_and_minus_zero_is_zero(tmp_path: Path) -> None:
    nan, null = (pa.table({"x": [0.0, cell], "y": [1, 2]}) for cell in (float("nan"), None))
    minus = pa.table({"x": pa.array([-0.0, None]), "y": [1, 2]})
    digests = {from_parquet(table, tmp_path).digest for table in (nan, null, minus)}
    assert len(digests) == 1


def test_the_stored_bytes_are_the_same_on_every_machine(tmp_path: Path) -> None:
    """A new Arrow or numpy that writes other bytes would publish the same rows as a new version."""
    assert from_parquet(PATIENTS, tmp_path).digest == GOLDEN_TABLE
    assert from_array(np.arange(6, dtype="uint8").reshape(3, 2), tmp_path).digest == GOLDEN_ARRAY


def test_another_order_of_rows_or_columns_is_another_set(tmp_path: Path) -> None:
    others = [PATIENTS[::-1], PATIENTS[PATIENTS.columns[::-1]], PATIENTS.assign(age=[71, 35, 59])]
    digests = {from_parquet(other, tmp_path).digest for other in [PATIENTS, *others]}
    assert len(digests) == 4


WORDS = st.text(string.ascii_letters + "äß,;\"' \n-_", min_size=1, max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(
        st.tuples(st.none() | NUMBERS, st.none() | WORDS, st.booleans()), min_size=1, max_size=15
    )
)
def test_any_table_has_one_digest_as_csv_and_as_parquet(
    tmp_path: Path, rows: list[tuple[float | None, str | None, bool]]
) -> None:
    # A column that is empty in every row is refused, so the first row is always filled.
    numbers, words, flags = zip((1.5, "word", True), *rows, strict=True)
    table = pd.DataFrame(
        {"number": np.array(numbers, dtype="float64"), "word": list(words), "flag": list(flags)}
    )
    path = tmp_path / "any.csv"
    table.to_csv(path, index=False)
    as_csv = convert(path, tmp_path / "sets")
    as_parquet = from_parquet(table, tmp_path)
    assert as_csv == as_parquet
    assert inspect(as_csv.path) == (len(rows) + 1, as_csv.schema)


def test_a_csv_column_is_a_number_only_if_every_cell_is(tmp_path: Path) -> None:
    schema = from_csv("a,b,c,d\n1,1,+1.5e3,NA\n2,x,,-.5\n", tmp_path).schema
    kinds = {column.name: (column.type, column.nullable) for column in schema.columns}
    assert kinds == {
        "a": (ColumnType.NUMBER, False),
        "b": (ColumnType.CATEGORY, False),
        "c": (ColumnType.NUMBER, True),
        "d": (ColumnType.NUMBER, True),
    }


def test_a_byte_order_mark_and_the_index_column_of_pandas_are_left_out(tmp_path: Path) -> None:
    plain = from_csv("age,sex\n1,w\n2,m\n", tmp_path)
    assert from_csv("\ufeff,age,sex\r\n0,1,w\r\n1,2,m\r\n", tmp_path).digest == plain.digest


def test_dropped_columns_are_as_if_they_had_never_been(tmp_path: Path) -> None:
    without = from_parquet(PATIENTS.drop(columns=["age", "blood"]), tmp_path)
    assert from_parquet(PATIENTS, tmp_path, drop=["blood", "age"]).digest == without.digest


# -- text ---------------------------------------------------------------------------------------------


def test_a_single_column_of_strings_is_a_text_set_kept_verbatim(tmp_path: Path) -> None:
    notes = [" Fever,\r\n3 days", 'says "NA"', "", "NA", "Fieber ähnlich"]
    path = tmp_path / "notes.csv"
    pd.DataFrame({"note": notes}).to_csv(path, index=False)
    converted = convert(path, tmp_path / "sets")
    column = Column(name="note", type=ColumnType.TEXT, nullable=True)
    assert converted.schema == SetSchema(kind=SetKind.TEXT, columns=(column,))
    with pa.memory_map(str(converted.path)) as mapped:
        stored = pa.ipc.open_file(mapped).get_batch(0)["note"].to_pylist()
    assert stored == [note or None for note in notes]
    assert from_parquet(pd.DataFrame({"note": notes}), tmp_path).digest == converted.digest


def test_line_breaks_inside_cells_survive_the_blocks_a_csv_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = pd.DataFrame({"note": [f"line {row}\nand another, {row}" for row in range(50)]})
    whole = from_csv(notes.to_csv(index=False), tmp_path)
    monkeypatch.setattr("wire.runtime.tables._BLOCK_BYTES", 100)
    assert from_csv(notes.to_csv(index=False), tmp_path) == whole
    assert whole.rows == 50


def test_text_column_picks_the_text_out_of_a_table(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [1, 2], "note": ["cough", "cough"]})
    picked = from_parquet(table, tmp_path, text_column="note")
    assert picked.digest == from_parquet(table[["note"]], tmp_path).digest
    assert picked.schema.kind is SetKind.TEXT


# -- arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uint8", "int64", "float16", "float32", "float64", "bool"])
def test_an_array_is_stored_as_it_is_and_mapped_back(tmp_path: Path, kind: str) -> None:
    array = np.arange(24).reshape(4, 3, 2).astype(kind)
    converted = from_array(array, tmp_path)
    assert converted.schema == SetSchema(kind=SetKind.ARRAY, row_shape=(3, 2), element_type=kind)
    stored = np.load(converted.path, mmap_mode="r", allow_pickle=False)
    assert isinstance(stored, np.memmap)
    assert stored.dtype == array.dtype
    assert np.array_equal(stored, array)
    assert inspect(converted.path) == (4, converted.schema)


def test_memory_order_byte_order_and_container_do_not_change_an_arrays_digest(
    tmp_path: Path,
) -> None:
    array = np.arange(12, dtype="<f4").reshape(4, 3)
    digest = from_array(array, tmp_path).digest
    assert from_array(np.asfortranarray(array), tmp_path).digest == digest
    assert from_array(array.astype(">f4"), tmp_path).digest == digest
    np.savez_compressed(tmp_path / "one.npz", images=array)
    assert convert(tmp_path / "one.npz", tmp_path / "sets").digest == digest
    np.savez(tmp_path / "two.npz", images=array, other=array[:2])
    assert convert(tmp_path / "two.npz", tmp_path / "sets", array="images").digest == digest


def test_an_archive_of_several_arrays_needs_a_choice(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", images=np.ones((2, 2)), masks=np.ones((2, 2)))
    for choice in (None, "image"):
        with pytest.raises(Refusal) as refusal:
            convert(tmp_path / "two.npz", tmp_path / "sets", array=choice)
        assert "images, masks" in refused(refusal)


class Trap:
    """Unpickling it would leave a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.trace,))


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_objects_are_refused_and_never_unpickled(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"trap.{suffix}"
    trap = np.array([Trap(tmp_path / "trace")], dtype=object)
    (np.save if suffix == "npy" else np.savez)(path, trap, allow_pickle=True)  # type: ignore[operator]
    with pytest.raises(Refusal) as refusal:
        convert(path, tmp_path / "sets")
    assert "never unpickled" in refused(refusal)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.float64(3), "single number"),
        (np.zeros((0, 3)), "empty"),
        (np.zeros((3, 0)), "empty"),
        (np.array([[1.0, np.nan]]), "NaN or infinite"),
        (np.array([[1.0], [-np.inf]], dtype="float16"), "NaN or infinite"),
        (np.array([1j]), "complex128"),
        (np.array(["a"]), "<U1"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "datetime64"),
        (np.zeros(2, dtype=[("a", "f4")]), "'a'"),
    ],
)
def test_an_array_that_cannot_be_features_is_refused(
    tmp_path: Path, array: object, why: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        from_array(array, tmp_path)
    assert why in refused(refusal)


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "several columns named a"),
        ("a,,b\n1,2,3\n", "column 2 has no name"),
        ("a,b\n1,2\n3,4,5\n", "row 3 has 3 cells and the header 2"),
        ("a;b\n1;2\n", "not separated by commas"),
        ("a,b\n1,\n2,\n", "column b is empty in every row"),
        ("a,b\n1,inf\n2,3\n", "column b has infinite"),
        ("a,b\n1,9007199254740993\n", "column b has whole numbers of"),
        (b"a,b\n1,\xe4\n", "not written in UTF-8"),
    ],
)
def test_a_csv_that_will_not_do_is_refused_in_one_sentence(
    tmp_path: Path, content: str | bytes, why: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        from_csv(content, tmp_path)
    assert why in refused(refusal)
    assert "source.csv" in refusal.value.sentence
    assert list((tmp_path / "sets").iterdir()) == []


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([[1], [2]]), "holds list"),
        (pa.array([{"x": 1}, {"x": 2}]), "holds struct"),
        (pa.array([b"1", b"2"]), "holds binary"),
        (pa.array([0, 1], pa.timestamp("s")), "holds timestamp"),
        (pa.array([2**53 + 1, 0]), "has whole numbers of"),
        (pa.array([float("inf"), 0.0]), "has infinite"),
        (pa.nulls(2), "is empty in every row"),
    ],
)
def test_a_column_that_cannot_be_a_feature_is_named_with_the_way_to_drop_it(
    tmp_path: Path, column: pa.Array, why: str
) -> None:
    table = pa.table({"good": [1, 2], "bad": column})
    with pytest.raises(Refusal) as refusal:
        from_parquet(table, tmp_path)
    assert f"column bad {why}" in refused(refusal)
    assert from_parquet(table, tmp_path, drop=["bad"]).schema.names == ("good",)


def test_duplicate_columns_of_a_parquet_file_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["x", " x"])
    with pytest.raises(Refusal) as refusal:
        from_parquet(table, tmp_path)
    assert "several columns named x" in refused(refusal)


@pytest.mark.parametrize(("distinct", "rows"), [(30, 40), (1001, 5000)])
def test_free_text_in_a_table_is_named_with_both_ways_out(
    tmp_path: Path, distinct: int, rows: int
) -> None:
    words = [f"note {row % distinct}" for row in range(rows)]
    table = pd.DataFrame({"age": range(rows), "note": words})
    with pytest.raises(Refusal) as refusal:
        from_parquet(table, tmp_path)
    sentence = refused(refusal)
    assert f"column note has {distinct} different values in {rows} rows" in sentence
    assert "--drop note" in sentence
    assert "--text-column note" in sentence


@pytest.mark.parametrize("name", ["x.xlsx", "x", "x.pkl"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"whatever")
    with pytest.raises(Refusal) as refusal:
        convert(tmp_path / name, tmp_path / "sets")
    assert ".parquet" in refused(refusal)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npy", "npz"])
def test_a_missing_and_a_damaged_file_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    with pytest.raises(Refusal) as refusal:
        convert(path, tmp_path / "sets")
    assert "no such file" in refused(refusal)
    path.write_bytes(b"\xff\x00 not what the name says")
    with pytest.raises(Refusal) as refusal:
        convert(path, tmp_path / "sets")
    refused(refusal)


def test_a_misspelt_column_option_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    for options in ({"drop": ["agee"]}, {"text_column": "agee"}):
        with pytest.raises(Refusal) as refusal:
            from_parquet(PATIENTS, tmp_path, **options)
        assert "no column agee" in refused(refusal)
        assert "lactate" in refused(refusal)


# -- what an admin uploads ------------------------------------------------------------------------------


def arrow_file(path: Path, batches: list[pa.RecordBatch], **options: object) -> Path:
    write = pa.ipc.IpcWriteOptions(**options)
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, batches[0].schema, options=write) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return path


def coded(codes: list[int | None], categories: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(categories))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"x": pa.array([1.0, float("nan")])}, "NaN"),
        ({"x": pa.array([1, 2])}, "not stored"),
        ({"x": pa.array([], pa.float64())}, "no rows"),
        ({"x": pa.array([None, None], pa.float64())}, "empty in every row"),
        ({"x": coded([0, 1], ["b", "a"])}, "sorted"),
        ({"x": coded([0, 0], ["a", "b"])}, "not those of its rows"),
        ({"x": coded(list(range(1001)), [f"{n:04}" for n in range(1001)])}, "more than 1000"),
        (
            {"x": pa.array(["a"], pa.large_string()), "y": pa.array([1.0])},
            "contradict each other",
        ),
    ],
)
def test_an_uploaded_table_is_not_believed(
    tmp_path: Path, columns: dict[str, pa.Array], why: str
) -> None:
    path = arrow_file(tmp_path / "upload", [pa.record_batch(columns)])
    with pytest.raises(Refusal) as refusal:
        inspect(path)
    assert why in refused(refusal)


def test_codes_beyond_the_categories_are_refused_before_they_are_followed(tmp_path: Path) -> None:
    codes, categories = pa.array([0, 7_000_000], pa.int32()), pa.array(["a", "b"])
    column = pa.DictionaryArray.from_arrays(codes, categories, safe=False)
    with pytest.raises(Refusal) as refusal:
        inspect(arrow_file(tmp_path / "upload", [pa.record_batch({"x": column})]))
    refused(refusal)


def test_bytes_behind_an_array_are_refused(tmp_path: Path) -> None:
    path = from_array([[1, 2]], tmp_path).path
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(Refusal) as refusal:
        inspect(path)
    assert "behind the array" in refused(refusal)


def test_compressed_or_divided_uploads_are_refused(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": np.zeros(5000)})
    with pytest.raises(Refusal) as refusal:
        inspect(arrow_file(tmp_path / "zstd", [batch], compression="zstd"))
    assert "compressed" in refused(refusal)
    with pytest.raises(Refusal) as refusal:
        inspect(arrow_file(tmp_path / "two", [batch, batch]))
    assert "one batch" in refused(refusal)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.ones((3, 2))),
        np.ones((3, 2), dtype=">f4"),
        np.ones((0, 2)),
        np.array([[np.inf]]),
        np.array([1j]),
    ],
)
def test_an_uploaded_array_that_is_not_in_stored_form_is_refused(
    tmp_path: Path, array: np.ndarray
) -> None:
    path = tmp_path / "upload"
    with path.open("wb") as file:
        np.save(file, array)
    with pytest.raises(Refusal) as refusal:
        inspect(path)
    refused(refusal)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.parametrize("source", ["table", "array"])
def test_damaged_uploads_are_refused_or_still_make_sense(
    tmp_path: Path, source: str, data: st.DataObject
) -> None:
    made = from_parquet(PATIENTS, tmp_path) if source == "table" else from_array([[1, 2]], tmp_path)
    content = bytearray(made.path.read_bytes())
    places = st.integers(0, len(content) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)):
        content[place] = value
    path = tmp_path / "damaged"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    # Any other exception would end the coordinator's call with an internal error.
    with contextlib.suppress(Refusal):
        rows, schema = inspect(path)
        assert rows > 0
        assert SetSchema.from_proto(schema.to_proto()) == schema


# -- schemas --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        SetSchema(kind=SetKind.ARRAY, row_shape=(28, 28), element_type="uint8"),
        SetSchema(kind=SetKind.TEXT, columns=(Column(name="ä", type=ColumnType.TEXT),)),
    ],
)
def test_a_schema_survives_protobuf_and_json(schema: SetSchema) -> None:
    sent = registry_pb2.SetSchema.FromString(schema.to_proto().SerializeToString())
    assert SetSchema.from_proto(sent) == schema
    assert SetSchema.from_json(schema.to_json()) == schema
    assert SetSchema.from_json(schema.to_json()).to_json() == schema.to_json()


@pytest.mark.parametrize(
    "message",
    [
        registry_pb2.SetSchema(),
        registry_pb2.SetSchema(kind=registry_pb2.SET_KIND_TABLE),
        registry_pb2.SetSchema(kind=registry_pb2.SET_KIND_ARRAY, element_type="object"),
        registry_pb2.SetSchema(
            kind=registry_pb2.SET_KIND_ARRAY, element_type="uint8", row_shape=[0]
        ),
        registry_pb2.SetSchema(
            kind=registry_pb2.SET_KIND_TABLE,
            columns=[registry_pb2.Column(name="x", type=registry_pb2.COLUMN_TYPE_NUMBER)] * 2,
        ),
    ],
)
def test_a_schema_that_contradicts_itself_is_malformed(message: registry_pb2.SetSchema) -> None:
    with pytest.raises(Refusal) as refusal:
        SetSchema.from_proto(message)
    assert refusal.value.is_a(MESSAGE_MALFORMED)


def test_categories_are_sorted_and_belong_to_category_columns() -> None:
    for wrong in (("b", "a"), ("a", "a"), ()):
        with pytest.raises(ValidationError):
            Column(name="x", type=ColumnType.CATEGORY, categories=wrong)
    with pytest.raises(ValidationError):
        Column(name="x", type=ColumnType.NUMBER, categories=("a",))
