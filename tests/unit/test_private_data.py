"""Private data: read, compared with the public set, and never quoted to the network side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from silo_agent.trainer.data.private_data import DataSettings, PrivateData, load_private
from silo_agent.trainer.data.schema_check import Misfit, check, prepare
from wire.errors import ConfigurationError
from wire.runtime import tables
from wire.schema import Column, ColumnType, SetKind, SetSchema

pytestmark = pytest.mark.slow

SCHEMA = SetSchema(
    kind=SetKind.TABLE,
    columns=(
        Column(name="age", type=ColumnType.NUMBER),
        Column(name="lactate", type=ColumnType.NUMBER, nullable=True),
        Column(name="sex", type=ColumnType.CATEGORY, categories=("m", "w")),
        Column(name="smoker", type=ColumnType.CATEGORY, categories=("false", "true")),
    ),
)
IMAGES = SetSchema(kind=SetKind.ARRAY, row_shape=(2, 2), element_type="uint8")
NOTES = SetSchema(kind=SetKind.TEXT, columns=(Column(name="note", type=ColumnType.TEXT),))
LABELS = ("benign", "malignant")
ROWS = pd.DataFrame(
    {
        "age": [71, 35, 58],
        "lactate": [1.5, None, 0.25],
        "sex": ["w", "m", "w"],
        "smoker": [True, False, True],
        "diagnosis": ["malignant", "benign", "benign"],
    }
)
SECRET = "Xanthippe"


def private(table: pd.DataFrame, folder: Path, form: str = "parquet", **keys: Any) -> PrivateData:
    path = folder / f"rows.{form}"
    if form == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    return load_private(DataSettings(**({"path": path.name, "label": "diagnosis"} | keys)), folder)


def arrays(folder: Path, **parts: Any) -> PrivateData:
    np.savez(folder / "rows.npz", **parts)
    return load_private(DataSettings(path=Path("rows.npz"), label="y"), folder)


def only(misfits: list[Misfit]) -> Misfit:
    assert len(misfits) == 1, misfits
    return misfits[0]


# -- what fits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_that_fit_come_out_in_the_public_form(tmp_path: Path, form: str) -> None:
    data = private(ROWS, tmp_path, form)
    assert check(data, SCHEMA) == []
    rows = prepare(data, SCHEMA, LABELS)
    assert rows.features.to_pydict() == {
        "age": [71.0, 35.0, 58.0],
        "lactate": [1.5, None, 0.25],
        "sex": ["w", "m", "w"],
        "smoker": ["true", "false", "true"],
    }
    assert rows.features["sex"].dictionary.to_pylist() == ["m", "w"]
    assert rows.labels.tolist() == [1, 0, 0]
    assert len(set(rows.patients.tolist())) == 3


def test_rows_of_one_patient_share_a_number(tmp_path: Path) -> None:
    data = private(ROWS.assign(mrn=["p7", "p3", "p7"]), tmp_path, patient_id="mrn")
    first, second, third = prepare(data, SCHEMA, LABELS).patients.tolist()
    assert first == third != second


def test_reordered_columns_are_matched_by_name_and_only_noted(tmp_path: Path) -> None:
    data = private(ROWS[ROWS.columns[::-1]], tmp_path)
    notice = only(check(data, SCHEMA))
    assert not notice.fatal
    assert "matched by name" in notice.sentence
    assert prepare(data, SCHEMA, LABELS).features.schema.names == list(SCHEMA.names)


def test_dropped_columns_are_no_features(tmp_path: Path) -> None:
    data = private(ROWS.assign(born="1950-01-01"), tmp_path, drop=["born"])
    assert check(data, SCHEMA) == []


@pytest.mark.parametrize(
    ("space", "column", "expected"),
    [
        (("0", "1"), [1, 0, 1], [1, 0, 1]),
        (("0", "1"), [1.0, 0.0, 1.0], [1, 0, 1]),
        (("0", "1"), ["1", "0.0", " 1 "], [1, 0, 1]),
        (("0", "1"), [True, False, True], [1, 0, 1]),
        (("false", "true"), [True, False, True], [1, 0, 1]),
        (("False", "True"), ["TRUE", "false", "True"], [1, 0, 1]),
        (("1.0", "2.0"), [2, 1, 2], [1, 0, 1]),
        (("01", "1"), ["1", "01", "1"], [1, 0, 1]),
        (("NA", "null"), ["null", "NA", "null"], [1, 0, 1]),
        (("-1", "1"), [1, -1, 1], [1, 0, 1]),
    ],
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_labels_match_however_the_file_spells_them(
    tmp_path: Path, form: str, space: tuple[str, ...], column: list[Any], expected: list[int]
) -> None:
    data = private(ROWS.assign(diagnosis=column), tmp_path, form)
    assert prepare(data, SCHEMA, space).labels.tolist() == expected


def test_a_spelling_that_could_be_two_labels_is_neither(tmp_path: Path) -> None:
    data = private(ROWS.assign(diagnosis=["1.00", "1.0", "01"]), tmp_path)
    rows = prepare(data, SCHEMA, ("1.0", "01"))
    assert rows.labels.tolist() == [-1, 0, 1]
    assert [(note.count, note.examples) for note in rows.treated] == [(1, ("1.00",))]


def test_private_true_and_false_match_categories_that_have_a_third(tmp_path: Path) -> None:
    third = Column(name="smoker", type=ColumnType.CATEGORY, categories=("False", "True", "stopped"))
    schema = SetSchema(kind=SetKind.TABLE, columns=(*SCHEMA.columns[:3], third))
    data = private(ROWS.assign(smoker=["True", "False", "True"]), tmp_path)
    assert prepare(data, schema, LABELS).features["smoker"].to_pylist() == ["True", "False", "True"]


# -- what does not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            ROWS.drop(columns=["sex", "age"]),
            "The private data lack the columns age, sex of the public set.",
        ),
        (
            ROWS.assign(ward="A", bed=1),
            "The private data have the columns ward, bed that the public set lacks; name what is no feature under `drop` in silo.yaml.",
        ),
        (
            ROWS.assign(age=pd.to_datetime(["1950-01-01"] * 3)),
            "Column age must hold numbers; it holds timestamp[us].",
        ),
        (
            ROWS.assign(sex=[["w"], ["m"], ["w"]]),
            "Column sex must hold categories; it holds list<element: string>.",
        ),
        (ROWS[:0], "The private data have no rows."),
    ],
)
def test_each_misfit_is_one_sentence_that_names_the_column(
    tmp_path: Path, table: pd.DataFrame, sentence: str
) -> None:
    data = private(table, tmp_path)
    misfit = only(check(data, SCHEMA))
    assert misfit.sentence == sentence
    assert misfit.fatal
    with pytest.raises(ConfigurationError) as error:
        prepare(data, SCHEMA, LABELS)
    assert error.value.sentence == sentence


def test_all_misfits_are_reported_at_once(tmp_path: Path) -> None:
    table = ROWS.drop(columns="lactate").assign(ward="A", age=pd.to_datetime(["1950-01-01"] * 3))
    sentences = [misfit.sentence for misfit in check(private(table, tmp_path), SCHEMA)]
    expected = ["lactate", "ward", "age"]
    assert len(sentences) == len(expected)
    for sentence, column in zip(sentences, expected, strict=True):
        assert column in sentence


def test_a_label_that_is_also_a_public_feature_is_said_to_be(tmp_path: Path) -> None:
    data = private(
        ROWS.rename(columns={"sex": "gender"}),
        tmp_path,
        label="smoker",
        drop=["gender", "diagnosis"],
    )
    sentences = [misfit.sentence for misfit in check(data, SCHEMA)]
    assert any("smoker is the label here and a feature of the public set" in s for s in sentences)
    assert any("lack the column sex" in s for s in sentences)


# -- cells that do not fit: they keep nobody out --------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "cells", "stored", "told"),
    [
        ("age", ["71", SECRET, "58"], [71.0, None, 58.0], "cells that hold no number|1"),
        (
            "age",
            [71, None, 58],
            [71.0, None, 58.0],
            "cells that are empty, and in the public set|1",
        ),
        ("age", [71, np.inf, -np.inf], [71.0, None, None], "cells that are infinite|2"),
        ("age", ["1e999", "nan", "1e308"], [None, None, 1e308], "cells that are infinite|1"),
        ("lactate", ["x", None, "inf"], [None, None, None], "cells that hold no number|1"),
        ("sex", [SECRET, "m", SECRET], [None, "m", None], "cells that have a category|2"),
        ("sex", [1.5, 2.5, 3.5], [None, None, None], "cells that have a category|3"),
        (
            "sex",
            ["w", None, None],
            ["w", None, None],
            "cells that are empty, and in the public set|2",
        ),
    ],
)
def test_a_cell_that_does_not_fit_counts_as_empty(
    tmp_path: Path, form: str, column: str, cells: list[Any], stored: list[Any], told: str
) -> None:
    data = private(ROWS.assign(**{column: cells}), tmp_path, form)
    assert check(data, SCHEMA) == check(private(ROWS, tmp_path, form), SCHEMA)
    rows = prepare(data, SCHEMA, LABELS)
    assert rows.features[column].to_pylist() == stored
    assert rows.labels.tolist() == [1, 0, 0]
    why, count = told.split("|")
    [note] = [note for note in rows.treated if why in note.sentence]
    assert (note.column, str(note.count)) == (column, count)


@pytest.mark.parametrize(
    ("cells", "labels", "told"),
    [
        (["benign", SECRET, SECRET], [0, -1, -1], "cells that have a label outside the task's|2"),
        (["benign", None, "NaN"], [0, -1, -1], "cells that have no label|2"),
        ([None, None, None], [-1, -1, -1], "cells that have no label|3"),
    ],
)
def test_a_row_without_a_label_of_the_task_is_counted_and_teaches_nothing(
    tmp_path: Path, cells: list[Any], labels: list[int], told: str
) -> None:
    data = private(ROWS.assign(diagnosis=cells, mrn=["p", "q", "r"]), tmp_path, patient_id="mrn")
    assert check(data, SCHEMA) == []
    rows = prepare(data, SCHEMA, LABELS)
    assert rows.labels.tolist() == labels
    assert len(set(rows.patients.tolist())) == 3
    [note] = rows.treated
    why, count = told.split("|")
    assert note.sentence.startswith(f"Column diagnosis: {why}")
    assert str(note.count) == count


def test_a_label_the_silo_does_not_know_teaches_nothing_either(tmp_path: Path) -> None:
    rows = prepare(private(ROWS, tmp_path), SCHEMA, LABELS, known=[0])
    assert rows.labels.tolist() == [-1, 0, 0]
    assert ["for this silo" in note.sentence for note in rows.treated] == [True]


def test_rows_without_a_patient_id_are_one_patient(tmp_path: Path) -> None:
    data = private(ROWS.assign(mrn=[None, "p", ""]), tmp_path, "csv", patient_id="mrn")
    rows = prepare(data, SCHEMA, LABELS)
    assert rows.patients[0] == rows.patients[2] != rows.patients[1]
    assert [(note.column, note.count) for note in rows.treated] == [("mrn", 2)]


def test_a_ragged_row_stays_in_its_place_with_empty_cells(tmp_path: Path) -> None:
    lines = ["age,lactate,sex,smoker,diagnosis", "71,1,w,true,benign", f"{SECRET},1"]
    lines += ["35,1,m,true,benign", "35,1,m,true,benign,x", "58,1,w,true,malignant"]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    data = load_private(DataSettings(path=Path("rows.csv"), label="diagnosis"), tmp_path)
    rows = prepare(data, SCHEMA, LABELS)
    assert rows.features["age"].to_pylist() == [71.0, None, 35.0, None, 58.0]
    assert rows.labels.tolist() == [0, -1, 0, -1, 1]
    assert rows.treated[0].count == 2 * len(lines[0].split(","))


def test_no_cell_is_too_long_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 64)
    lines = ["age,lactate,sex,smoker,diagnosis", *["71,1,w,true,benign"] * 3]
    lines.insert(2, f"7,1,{'x' * 500},true,benign")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    data = load_private(DataSettings(path=Path("rows.csv"), label="diagnosis"), tmp_path)
    assert prepare(data, SCHEMA, LABELS).features["sex"].to_pylist() == ["w", None, "w", "w"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_cell_that_is_no_utf_8_does_not_keep_the_file_from_being_read(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / f"rows.{form}"
    if form == "csv":
        ROWS.to_csv(path, index=False)
        path.write_bytes(path.read_bytes().replace(b",w,", b",\xff,", 1))
    else:
        broken = pa.array([b"\xff", b"m", b"w"], pa.binary()).view(pa.string())
        table = pa.Table.from_pandas(ROWS, preserve_index=False).drop_columns("sex")
        pq.write_table(table.append_column("sex", broken), path)
    data = load_private(DataSettings(path=path, label="diagnosis"), tmp_path)
    rows = prepare(data, SCHEMA, LABELS)
    assert rows.features["sex"].to_pylist() == [None, "m", "w"]
    assert (rows.treated[0].column, rows.treated[0].count) == ("sex", 1)


def test_values_appear_among_the_examples_only_and_at_most_three(tmp_path: Path) -> None:
    names = [f"{SECRET}{number}" for number in range(5)]
    table = pd.concat([ROWS[:1]] * 5, ignore_index=True).assign(
        age=names, sex=names, diagnosis=names, mrn=names
    )
    data = private(table, tmp_path, patient_id="mrn")
    rows = prepare(data, SCHEMA, LABELS)
    assert len(rows.treated) == 3
    for note in rows.treated:
        assert SECRET not in note.sentence
        assert SECRET not in repr(note)
        assert note.quoted.count(SECRET) == 3
    assert SECRET not in repr(data)
    assert SECRET not in repr(rows)


# -- text and arrays ----------------------------------------------------------------------------------------


def test_private_text_may_lie_in_a_column_of_another_name(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [1, 2], "befund": ["Husten", "Fieber"], "diagnosis": LABELS})
    data = private(table, tmp_path, text_column="befund")
    assert check(data, NOTES) == []
    assert prepare(data, NOTES, LABELS).features.to_pydict() == {"note": ["Husten", "Fieber"]}
    assert "lack the column note" in only(check(private(table, tmp_path), NOTES)).sentence
    numbers = private(table, tmp_path, text_column="age")
    assert "Column note must hold text" in only(check(numbers, NOTES)).sentence


def test_arrays_that_fit_keep_their_rows(tmp_path: Path) -> None:
    images = np.arange(12, dtype="uint8").reshape(3, 2, 2)
    data = arrays(tmp_path, x=images, y=np.array([0, 1, 1]))
    rows = prepare(data, IMAGES, ("0", "1"))
    assert np.array_equal(rows.features, images)
    assert rows.features.dtype == np.uint8
    assert rows.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (
            np.zeros((3, 2, 3), dtype="uint8"),
            "A private row has the shape (2, 3) and a public row (2, 2).",
        ),
        (np.zeros((3, 2, 2)), "The private elements are float64 and the public ones uint8."),
        (
            np.zeros((3, 2, 2), dtype="int64"),
            "The private elements are int64 and the public ones uint8.",
        ),
        (np.zeros((0, 2, 2), dtype="uint8"), "The private data have no rows."),
    ],
)
def test_arrays_of_another_form_are_refused(
    tmp_path: Path, images: np.ndarray, sentence: str
) -> None:
    data = arrays(tmp_path, x=images, y=np.zeros(len(images), dtype=int))
    assert only(check(data, IMAGES)).sentence == sentence


def test_elements_that_are_no_numbers_count_as_0_and_float_widths_are_alike(tmp_path: Path) -> None:
    schema = SetSchema(kind=SetKind.ARRAY, row_shape=(2,), element_type="float32")
    for cell, stored in ((0.5, 0.5), (np.nan, 0), (np.inf, 0), (-np.inf, 0), (1e300, 0)):
        data = arrays(tmp_path, x=np.array([[0.25, cell], [2, 3]]), y=np.array(["a", "b"]))
        assert check(data, schema) == []
        rows = prepare(data, schema, ("a", "b"))
        assert rows.features.dtype == np.float32
        assert rows.features.tolist() == [[0.25, stored], [2, 3]]
        assert [note.count for note in rows.treated] == [1] * (cell != stored)


def test_a_table_is_not_an_array(tmp_path: Path) -> None:
    misfit = only(check(private(ROWS, tmp_path), IMAGES))
    assert misfit.sentence == "The public set is an array and the private data are a table."
    data = arrays(tmp_path, x=np.zeros((1, 2)), y=np.array(["benign"]))
    misfit = only(check(data, SCHEMA))
    assert misfit.sentence == "The public set is a table and the private data are an array."


def test_npy_files_name_the_files_of_labels_and_patients(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 2, 2), dtype="uint8"))
    np.save(tmp_path / "y.npy", np.array([1, 0], dtype=">i4"))
    np.save(tmp_path / "p.npy", np.array(["same", "same"]))
    settings = DataSettings(path=Path("x.npy"), label="y.npy", patient_id="p.npy")
    rows = prepare(load_private(settings, tmp_path), IMAGES, ("0", "1"))
    assert rows.labels.tolist() == [1, 0]
    assert len(set(rows.patients.tolist())) == 1


# -- settings that do not lead to data ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"label": "diagnose"}, ["no column diagnose", "`label`", "diagnosis"]),
        ({"patient_id": "mrn"}, ["no column mrn", "`patient_id`"]),
        ({"drop": ["ward"]}, ["no column ward", "`drop`"]),
        ({"text_column": "note"}, ["no column note", "`text_column`"]),
        ({"features": "x"}, ["no arrays", "`features`"]),
        ({"path": "absent.csv"}, ["absent.csv", "no such file"]),
        ({"path": "rows.xlsx"}, [".xlsx", ".parquet"]),
    ],
)
def test_a_wrong_setting_is_named_with_its_fix(
    tmp_path: Path, keys: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as error:
        private(ROWS, tmp_path, **keys)
    for word in words:
        assert word in f"{error.value.sentence} {error.value.hint}"


def test_an_archive_says_what_is_missing(tmp_path: Path) -> None:
    rows = np.zeros((2, 2))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": rows, "z": rows, "y": np.zeros(2)}, "`features`"),
        ({"x": rows}, "no array y"),
        ({"x": rows, "y": np.zeros(3)}, "y has the shape (3,) and the features have 2 rows"),
        ({"x": rows, "y": np.zeros((2, 1))}, "(2, 1)"),
        ({"x": rows, "y": np.array([1j, 2j])}, "complex"),
        ({"x": rows, "y": np.array([{}, {}])}, "never unpickled"),
    ]
    for parts, words in cases:
        with pytest.raises(ConfigurationError) as error:
            arrays(tmp_path, **parts)
        assert words in f"{error.value.sentence} {error.value.hint}"


def test_a_path_may_be_absolute_or_relative_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ROWS.to_csv(tmp_path / "data" / "rows.csv", index=False)
    for path in (Path("data/rows.csv"), tmp_path / "data" / "rows.csv"):
        data = load_private(DataSettings(path=path, label="diagnosis"), tmp_path)
        assert data.rows == 3
        assert isinstance(data.features, pa.Table)
