"""Private data: read, compared with the public set, and never quoted to the network side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from silo_agent.trainer.data.private_data import DataSettings, PrivateData, load_private
from silo_agent.trainer.data.schema_check import Misfit, check, prepare
from wire.errors import ConfigurationError
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
    assert check(data, SCHEMA, LABELS) == []
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
    notice = only(check(data, SCHEMA, LABELS))
    assert not notice.fatal
    assert "matched by name" in notice.sentence
    assert prepare(data, SCHEMA, LABELS).features.schema.names == list(SCHEMA.names)


def test_dropped_columns_are_no_features(tmp_path: Path) -> None:
    data = private(ROWS.assign(born="1950-01-01"), tmp_path, drop=["born"])
    assert check(data, SCHEMA, LABELS) == []


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
    misfit = only(check(data, SCHEMA, ("1.0", "01")))
    assert "in 1 row" in misfit.sentence
    assert "1.00" in misfit.private_detail


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
            ROWS.assign(age=["71", SECRET, "58"]),
            "Column age must hold numbers; 1 of its 3 cells do not.",
        ),
        (
            ROWS.assign(age=pd.to_datetime(["1950-01-01"] * 3)),
            "Column age must hold numbers; it holds timestamp[us].",
        ),
        (
            ROWS.assign(sex=[SECRET, "m", SECRET]),
            "Column sex has 1 category that the public set lacks, in 2 rows.",
        ),
        (ROWS.assign(sex=[1.5, 2.5, 3.5]), "Column sex must hold categories; it holds numbers."),
        (
            ROWS.assign(sex=[["w"], ["m"], ["w"]]),
            "Column sex must hold categories; it holds list<element: string>.",
        ),
        (
            ROWS.assign(age=[71, None, 58]),
            "Column age is empty (NaN) in 1 row; in the public set it never is.",
        ),
        (
            ROWS.assign(sex=["w", None, None]),
            "Column sex is empty (NaN) in 2 rows; in the public set it never is.",
        ),
        (ROWS.assign(age=[71, np.inf, 58]), "Column age is infinite in 1 row."),
        (
            ROWS.assign(diagnosis=["benign", SECRET, SECRET]),
            "The label diagnosis has 1 value outside the task's label space, in 2 rows.",
        ),
        (
            ROWS.assign(diagnosis=["benign", None, "NaN"]),
            "The label diagnosis is empty in 2 rows.",
        ),
        (ROWS[:0], "The private data have no rows."),
    ],
)
def test_each_misfit_is_one_sentence_that_names_the_column(
    tmp_path: Path, table: pd.DataFrame, sentence: str
) -> None:
    data = private(table, tmp_path)
    misfit = only(check(data, SCHEMA, LABELS))
    assert misfit.sentence == sentence
    assert misfit.fatal
    with pytest.raises(ConfigurationError) as error:
        prepare(data, SCHEMA, LABELS)
    assert error.value.sentence == sentence


def test_all_misfits_are_reported_at_once(tmp_path: Path) -> None:
    table = ROWS.drop(columns="lactate").assign(
        ward="A", sex="x", age="y", diagnosis="z", mrn=[None, "p1", "p2"]
    )
    sentences = [
        m.sentence for m in check(private(table, tmp_path, patient_id="mrn"), SCHEMA, LABELS)
    ]
    expected = ["lactate", "ward", "age", "sex", "diagnosis", "mrn"]
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
    sentences = [misfit.sentence for misfit in check(data, SCHEMA, ("false", "true"))]
    assert any("smoker is the label here and a feature of the public set" in s for s in sentences)
    assert any("lack the column sex" in s for s in sentences)


def test_values_appear_in_the_private_detail_only_and_at_most_three(tmp_path: Path) -> None:
    names = [f"{SECRET}{number}" for number in range(5)]
    table = pd.concat([ROWS[:1]] * 5, ignore_index=True).assign(
        age=names, sex=names, diagnosis=names, mrn=names
    )
    data = private(table, tmp_path, patient_id="mrn")
    misfits = check(data, SCHEMA, LABELS)
    assert len(misfits) == 3
    for misfit in misfits:
        assert SECRET not in misfit.sentence
        assert SECRET not in repr(misfit)
        assert misfit.private_detail.count(SECRET) == 3
    assert SECRET not in repr(data)
    fitting = private(ROWS.assign(mrn=names[:3]), tmp_path, patient_id="mrn")
    assert SECRET not in repr(prepare(fitting, SCHEMA, LABELS))


# -- text and arrays ----------------------------------------------------------------------------------------


def test_private_text_may_lie_in_a_column_of_another_name(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [1, 2], "befund": ["Husten", "Fieber"], "diagnosis": LABELS})
    data = private(table, tmp_path, text_column="befund")
    assert check(data, NOTES, LABELS) == []
    assert prepare(data, NOTES, LABELS).features.to_pydict() == {"note": ["Husten", "Fieber"]}
    assert "lack the column note" in only(check(private(table, tmp_path), NOTES, LABELS)).sentence
    numbers = private(table, tmp_path, text_column="age")
    assert "Column note must hold text" in only(check(numbers, NOTES, LABELS)).sentence


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
    assert only(check(data, IMAGES, ("0", "1"))).sentence == sentence


def test_nan_in_a_private_array_is_refused_and_float_widths_are_not(tmp_path: Path) -> None:
    schema = SetSchema(kind=SetKind.ARRAY, row_shape=(2,), element_type="float32")
    data = arrays(tmp_path, x=np.array([[0.1, 1], [2, 3]]), y=np.array(["a", "b"]))
    assert prepare(data, schema, ("a", "b")).features.dtype == np.float32
    for bad in (np.nan, np.inf, 1e300):
        data = arrays(tmp_path, x=np.array([[0.1, bad], [2, 3]]), y=np.array(["a", "b"]))
        assert only(check(data, schema, ("a", "b"))).sentence.startswith(
            "1 row has NaN or infinite"
        )


def test_a_table_is_not_an_array(tmp_path: Path) -> None:
    misfit = only(check(private(ROWS, tmp_path), IMAGES, LABELS))
    assert misfit.sentence == "The public set is an array and the private data are a table."
    data = arrays(tmp_path, x=np.zeros((1, 2)), y=np.array(["benign"]))
    misfit = only(check(data, SCHEMA, LABELS))
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


def test_a_broken_private_csv_is_explained_without_quoting_it(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"age,diagnosis\n1,benign\n2,{SECRET},3\n")
    with pytest.raises(ConfigurationError) as error:
        load_private(DataSettings(path=Path("rows.csv"), label="diagnosis"), tmp_path)
    assert "row 3 has 3 cells" in error.value.sentence
    assert SECRET not in f"{error.value.sentence} {error.value.hint}"


def test_a_path_may_be_absolute_or_relative_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ROWS.to_csv(tmp_path / "data" / "rows.csv", index=False)
    for path in (Path("data/rows.csv"), tmp_path / "data" / "rows.csv"):
        data = load_private(DataSettings(path=path, label="diagnosis"), tmp_path)
        assert data.rows == 3
        assert isinstance(data.features, pa.Table)
