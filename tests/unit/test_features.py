"""Features: learned from the public set alone, and the same for a row on either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coordinator.public_sets.convert import convert
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.private_data import DataSettings, load_private
from silo_agent.trainer.data.schema_check import PrivateRows, prepare
from wire.errors import PUBLIC_SET_INVALID, ConfigurationError, Refusal
from wire.schema import SetKind

pytestmark = pytest.mark.slow

PUBLIC = pd.DataFrame(
    {
        "age": [20, 30, 40, 90],
        "lactate": [1.0, None, 2.0, 7.0],
        "sex": ["w", "m", None, "w"],
        "smoker": [True, False, True, True],
    }
)
NOTES = pd.DataFrame({"note": ["fever and cough", None, "cough", "fever fever chills", "x 7"]})


def encoder(table: pd.DataFrame, folder: Path, **options: Any) -> Encoder:
    table.to_parquet(folder / "public.parquet")
    converted = convert(folder / "public.parquet", folder / "sets")
    return Encoder.from_public(converted.schema, converted.path, **options)


def array_encoder(array: np.ndarray, folder: Path) -> Encoder:
    np.save(folder / "public.npy", array)
    converted = convert(folder / "public.npy", folder / "sets")
    return Encoder.from_public(converted.schema, converted.path)


def private(table: pd.DataFrame, made: Encoder, folder: Path) -> PrivateRows:
    table.assign(label="a").to_csv(folder / "private.csv", index=False)
    data = load_private(DataSettings(path=Path("private.csv"), label="label"), folder)
    return prepare(data, made.schema, ("a", "b"))


def test_a_table_becomes_numbers_indicators_and_one_hot_categories(tmp_path: Path) -> None:
    made = encoder(PUBLIC, tmp_path)
    assert made.names == (
        "age",
        "lactate",
        "lactate missing",
        "sex = m",
        "sex = w",
        "smoker = false",
        "smoker = true",
    )
    expected = [
        [20, 1.0, 0, 0, 1, 0, 1],
        [30, 2.0, 1, 1, 0, 1, 0],
        [40, 2.0, 0, 0, 0, 0, 1],
        [90, 7.0, 0, 0, 1, 0, 1],
    ]
    assert np.array_equal(made.public(), np.array(expected))


@pytest.mark.parametrize("table", [PUBLIC, NOTES], ids=["table", "text"])
def test_a_row_on_both_sides_is_the_same_vector(tmp_path: Path, table: pd.DataFrame) -> None:
    made = encoder(table, tmp_path)
    shuffled = table[table.columns[::-1]].iloc[[3, 1, 0]]
    encoded = made.encode(private(shuffled, made, tmp_path).features)
    public = made.public()
    assert encoded.dtype == public.dtype
    assert np.array_equal(encoded, public[[3, 1, 0]])


def test_private_rows_do_not_move_the_encoding(tmp_path: Path) -> None:
    made = encoder(PUBLIC, tmp_path)
    row = pd.DataFrame({"age": [1], "lactate": [None], "sex": ["w"], "smoker": [False]})
    crowd = pd.concat([row, *[row.assign(age=1e9, lactate=1e9)] * 50])
    alone = made.encode(private(row, made, tmp_path).features)
    among = made.encode(private(crowd, made, tmp_path).features)
    assert np.array_equal(alone[0], among[0])
    # The gap is filled with the public median 2.0.
    assert alone[0].tolist() == [1, 2.0, 1, 0, 1, 1, 0]


def test_encoding_is_deterministic(tmp_path: Path) -> None:
    for table in (PUBLIC, NOTES):
        one, other = encoder(table, tmp_path), encoder(table, tmp_path)
        assert one.names == other.names
        assert np.array_equal(one.public(), other.public())


def test_text_becomes_a_bounded_number_of_public_words(tmp_path: Path) -> None:
    made = encoder(NOTES, tmp_path, text_features=2)
    assert made.names == ("cough", "fever")
    features = made.public()
    assert features.dtype == np.float32
    assert features.shape == (5, 2)
    assert np.allclose(np.linalg.norm(features, axis=1), [1, 0, 1, 1, 0])
    unseen = private(pd.DataFrame({"note": ["nausea", "cough"]}), made, tmp_path)
    assert made.encode(unseen.features).tolist() == [[0, 0], [1, 0]]


def test_texts_are_given_as_they_are_on_request(tmp_path: Path) -> None:
    made = encoder(NOTES, tmp_path)
    texts = made.public(texts=True)
    assert texts.dtype == object
    assert texts.tolist() == ["fever and cough", "", "cough", "fever fever chills", "x 7"]
    rows = private(pd.DataFrame({"note": ["Nausea, 2×", None]}), made, tmp_path)
    assert made.encode(rows.features, texts=True).tolist() == ["Nausea, 2×", ""]


@pytest.mark.parametrize("images", [False, True])
def test_a_set_without_texts_has_none_to_give(tmp_path: Path, images: bool) -> None:
    made = array_encoder(np.zeros((2, 3)), tmp_path) if images else encoder(PUBLIC, tmp_path)
    with pytest.raises(ConfigurationError, match="reads texts, and the public set is not text"):
        made.public(texts=True)


def test_texts_without_a_word_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no words"):
        encoder(pd.DataFrame({"note": ["...", "!?"]}), tmp_path)


def test_integer_images_are_scaled_by_their_type_and_flattened_on_request(tmp_path: Path) -> None:
    images = np.array([[[0, 255], [51, 102]], [[255, 255], [0, 0]]], dtype="uint8")
    made = array_encoder(images, tmp_path)
    assert made.names == ("0_0", "0_1", "1_0", "1_1")
    shaped = made.public(flat=False)
    assert shaped.dtype == np.float32
    assert shaped.shape == (2, 2, 2)
    assert np.allclose(shaped, images / 255)
    assert np.array_equal(made.public(), shaped.reshape(2, 4))
    assert np.array_equal(made.encode(images[1:], flat=False), shaped[1:])


@pytest.mark.parametrize("kind", ["bool", "int16", "uint8", "uint64"])
def test_the_largest_integer_of_a_type_becomes_one(tmp_path: Path, kind: str) -> None:
    largest = 1 if kind == "bool" else np.iinfo(kind).max
    features = array_encoder(np.array([[0, largest]], dtype=kind), tmp_path).public()
    assert features.dtype == np.float32
    assert features.tolist() == [[0, 1]]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_stay_as_they_are_and_finite(tmp_path: Path, kind: str) -> None:
    array = np.array([[-0.5, np.finfo(kind).max]], dtype=kind)
    features = array_encoder(array, tmp_path).public()
    assert features.dtype == np.float32
    assert features[0, 0] == -0.5
    assert np.isfinite(features).all()


def test_a_row_that_is_one_number_has_one_feature(tmp_path: Path) -> None:
    assert array_encoder(np.array([1.0, 2.0]), tmp_path).public().tolist() == [[1.0], [2.0]]


def test_a_file_that_is_not_what_the_task_says_is_refused(tmp_path: Path) -> None:
    made = encoder(PUBLIC, tmp_path)
    other = encoder(PUBLIC.drop(columns="age"), tmp_path)
    assert made.schema.kind is SetKind.TABLE
    with pytest.raises(Refusal) as refusal:
        Encoder.from_public(made.schema, other.path)
    assert refusal.value.is_a(PUBLIC_SET_INVALID)
