"""Whatever numbers a public set and a patient's rows hold, one patient moves a sum by what was charged for and no more.

Both sides are hostile here: the largest floats, subnormal ones, infinities, negative zero, and NaN of every payload.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.privacy.bounded import finite, outer_within
from silo_agent.trainer.privacy.certainty.model import CertaintyPlan, minimiser, shares
from silo_agent.trainer.privacy.certainty.rows import PublicView
from silo_agent.trainer.privacy.certainty.scores import scores
from silo_agent.trainer.privacy.labellers.logistic import (
    _GRAINS,
    CLIP,
    clipped_sum,
    rows_of_same_patient,
)
from silo_agent.trainer.privacy.labellers.public_features import CONSTANT, NORM, PublicFeatures
from silo_agent.trainer.privacy.settings import CertaintySettings
from wire.errors import PUBLIC_SET_INVALID, Refusal
from wire.public_content import inspect, write_array, write_table
from wire.schema import Column, ColumnType, SetKind, SetSchema

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.float64]
WIDTH, CLASSES = 3, 3


def nan(payload: int, negative: bool) -> float:
    """A NaN with these bits in its fraction."""
    bits = (negative << 63) | (0x7FF << 52) | (payload or 1)
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


EXTREMES = st.sampled_from(
    (
        *(0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 1.7976931348623157e308, 5e-324, -5e-324, 2e-308),
        *(1e154, 1e38, 3.5e38, 1e100, -1e100, np.inf, -np.inf, np.nan),
    )
)
NUMBERS = st.one_of(
    EXTREMES,
    st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True),
    st.builds(nan, st.integers(1, 2**52 - 1), st.booleans()),
)


def tables(rows: st.SearchStrategy[int]) -> st.SearchStrategy[Floats]:
    return rows.flatmap(lambda count: arrays(np.float64, (count, WIDTH), elements=NUMBERS))


PUBLIC, PRIVATE = tables(st.integers(1, 8)), tables(st.integers(1, 4))
HUGE = np.full((4, WIDTH), 1e308) * [[1.0], [-1.0], [1.0], [-1.0]]


@settings(max_examples=150, deadline=None)
@given(public=PUBLIC, private=PRIVATE)
@example(public=HUGE, private=np.full((1, WIDTH), np.inf))
@example(public=HUGE, private=np.full((1, WIDTH), 1e308))
def test_public_features_are_whole_and_bounded(public: Floats, private: Floats) -> None:
    features = PublicFeatures.fitted(public, 8)
    for rows in (public, private):
        grains = features.grains(rows)
        assert np.isfinite(grains).all()
        assert np.array_equal(grains, np.rint(grains))
        assert (grains[:, -1] == CONSTANT).all()
        assert (np.sum(grains[:, :-1] ** 2, axis=1) <= NORM**2).all()


@settings(max_examples=150, deadline=None)
@given(
    public=PUBLIC,
    rest=PRIVATE,
    one=PRIVATE,
    other=PRIVATE,
    weights=arrays(np.float64, (WIDTH + 1, CLASSES), elements=st.floats(-1e6, 1e6)),
    seed=st.integers(0, 9),
)
@example(
    public=HUGE,
    rest=np.zeros((1, WIDTH)),
    one=np.full((1, WIDTH), 1e308),
    other=np.zeros((1, WIDTH)),
    weights=np.zeros((WIDTH + 1, CLASSES)),
    seed=0,
)
def test_one_patient_moves_the_clipped_sum_by_no_more_than_is_charged_for(
    public: Floats, rest: Floats, one: Floats, other: Floats, weights: Floats, seed: int
) -> None:
    features = PublicFeatures.fitted(public, 8)
    draw = np.random.default_rng(seed)
    rest_labels = draw.integers(0, CLASSES, len(rest))
    at = weights[-features.width :]

    def total(patient: Floats) -> Floats:
        patients = np.append(np.arange(len(rest)), np.full(len(patient), len(rest)))
        labels = np.append(rest_labels, draw.integers(0, CLASSES, len(patient)))
        rows = features.grains(np.vstack([rest, patient]))
        return clipped_sum(rows, labels, rows_of_same_patient(patients), at).astype(float)

    assert np.linalg.norm(total(one) - total(other)) <= 2 * CLIP * _GRAINS


@given(rows=PRIVATE, seed=st.integers(0, 9))
def test_what_is_not_within_its_limit_is_not_summed(rows: Floats, seed: int) -> None:
    parts = np.random.default_rng(seed).normal(size=(len(rows), 2))
    with np.errstate(all="ignore"):
        kept_rows, kept_parts = outer_within(rows, parts, np.full(len(rows), 2.0))
        lengths = np.linalg.norm(kept_rows, axis=1) * np.linalg.norm(kept_parts, axis=1)
        sound = np.linalg.norm(rows, axis=1) * np.linalg.norm(parts, axis=1) <= 2.0
    assert (lengths <= 2.0 * (1 + 1e-12)).all()
    assert np.array_equal(kept_rows[sound], rows[sound])


@settings(max_examples=150, deadline=None)
@given(public=tables(st.integers(2, 8)), private=PRIVATE)
@example(public=HUGE, private=np.full((1, WIDTH), np.inf))
@example(public=np.full((4, WIDTH), 1e-160) * [[1], [2], [3], [4]], private=HUGE)
def test_rows_of_the_certainty_model_have_norm_1_at_most(public: Floats, private: Floats) -> None:
    view = PublicView.of(public)
    for rows in (public, private):
        seen = view.rows(rows)
        assert np.isfinite(seen).all()
        assert (np.linalg.norm(seen, axis=1) <= 1 + 1e-9).all()
        assert np.isin(scores(seen, np.full(WIDTH, 7.0), 0.1), np.arange(1, 16)).all()


@settings(max_examples=60, deadline=None)
@given(public=tables(st.integers(3, 8)), rest=PRIVATE, one=PRIVATE, other=PRIVATE)
def test_one_patient_moves_the_certainty_model_by_no_more_than_is_charged_for(
    public: Floats, rest: Floats, one: Floats, other: Floats
) -> None:
    view, units = PublicView.of(public), len(rest) + 1
    against = view.rows(public[:2])
    plan = CertaintyPlan.calibrated(CertaintySettings(), units, len(against), 0.1)

    def weights(patient: Floats) -> Floats:
        patients = np.append(np.arange(len(rest)), np.full(len(patient), len(rest)))
        own = view.rows(np.vstack([rest, patient]))
        return minimiser(own, shares(patients), against, 0.1, units + len(against))

    assert np.linalg.norm(weights(one) - weights(other)) <= plan.sensitivity
    # A patient without a usable row is a neighbour like any other.
    assert np.linalg.norm(weights(one) - weights(np.zeros((0, WIDTH)))) <= plan.sensitivity


@given(values=arrays(np.float64, (5,), elements=NUMBERS))
def test_finite_numbers_can_be_squared_and_added_up(values: Floats) -> None:
    bounded = finite(values)
    assert np.isfinite(np.sum(bounded**2))
    ordinary = np.abs(values) < 1e90
    assert np.array_equal(bounded[ordinary], values[ordinary])


@settings(deadline=None)
@given(public=tables(st.integers(2, 6)), private=PRIVATE, classes=st.integers(2, 3))
@example(public=HUGE, private=np.full((1, WIDTH), np.inf), classes=2)
def test_the_networks_gradients_stay_on_their_grid(
    public: Floats, private: Floats, classes: int
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    from silo_agent.trainer.privacy.labellers.sgd import (
        GRAINS,
        ClippedGradients,
        PublicScale,
        _network,
    )

    scaled = PublicScale.of(public)(private)
    assert np.isfinite(scaled).all()
    gradients = ClippedGradients(_network((WIDTH,), classes))
    labels = torch.zeros(len(private), dtype=torch.int64)
    for row in range(len(private)):
        present = np.arange(len(private)) == row
        everyone = np.arange(len(private))
        total = gradients.total(torch.from_numpy(scaled), labels, everyone, present, everyone % 2)
        assert np.linalg.norm(total.astype(float)) <= GRAINS


@pytest.mark.parametrize("size", [1e308, 5e-324, 1e38])
def test_the_additive_model_learns_beside_any_public_numbers(size: float) -> None:
    pytest.importorskip("interpret")
    from mechanism_scenes import a_scope

    from silo_agent.trainer.models.protocol import Labelled
    from silo_agent.trainer.privacy.labellers.ebm import EbmTrainer
    from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
    from wire.privacy.randomness import SecureBits

    scope = a_scope(4, 2, epsilon=2.0, units=6)
    trainer = EbmTrainer.for_scope(PrivateLabellerSettings(head="ebm"), scope)
    public = np.array([[1.0, size], [2.0, -size], [3.0, size], [4.0, 0.0]])
    own = np.array([[np.inf, np.nan], [-size, size], [1e308, -1e308], [0.0, 5e-324]])
    # Two of the six patients have no usable row, and one has two.
    private = Labelled(np.vstack([own, own]), np.array([0, 1, -1, 1, 0, 7, 1, 0]))
    patients = np.array([0, 1, 2, 3, 3, 4, 5, 5])
    head = trainer.train(private, patients, public, 2, SecureBits())
    for rows in (public, own):
        assert np.allclose(head.probabilities(rows).sum(axis=1), 1)


# -- what the files may hold ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, nan(12345, True)])
def test_a_public_file_with_numbers_that_are_none_is_refused(tmp_path: Path, number: float) -> None:
    table, array = tmp_path / "table", tmp_path / "array"
    batch = pa.record_batch([pa.array(np.array([1.0, number]), from_pandas=False)], names=["age"])
    write_table(batch, table)
    write_array(np.array([[1.0], [number]]), array)
    for path in (table, array):
        with pytest.raises(Refusal) as refused:
            inspect(path)
        assert refused.value.is_a(PUBLIC_SET_INVALID)


@given(rows=arrays(np.float64, (3,), elements=NUMBERS))
def test_encoded_numbers_and_arrays_are_finite(rows: Floats) -> None:
    column = Column(name="age", type=ColumnType.NUMBER)
    encoder = Encoder(
        SetSchema(kind=SetKind.TABLE, columns=(column,)), Path(), ("age",), {"age": 50.0}
    )
    batch: Any = pa.record_batch([pa.array(np.nan_to_num(rows), pa.float64())], names=["age"])
    assert (np.abs(encoder.encode(batch)) <= 1e38).all()
    images = Encoder(
        SetSchema(kind=SetKind.ARRAY, row_shape=(1,), element_type="float64"), Path(), ("0",)
    )
    assert np.isfinite(images.encode(rows.reshape(3, 1))).all()
