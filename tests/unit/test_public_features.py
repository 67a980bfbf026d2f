"""Features come from U alone, and a row's features from that row alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from silo_agent.trainer.privacy.labellers import public_features
from silo_agent.trainer.privacy.labellers.public_features import CONSTANT, NORM, PublicFeatures

pytestmark = pytest.mark.slow


@pytest.fixture
def public() -> np.ndarray:
    generator = np.random.default_rng(1)
    mixed = generator.normal(size=(200, 12)) @ generator.normal(size=(12, 12))
    return np.asarray(mixed + 3.0)


def lengths(grains: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(grains[:, :-1] ** 2, axis=1))


def test_features_are_integers_and_end_with_the_constant(public: np.ndarray) -> None:
    grains = PublicFeatures.fitted(public, 5).grains(public)

    assert grains.shape == (200, 6)
    assert np.array_equal(grains, np.rint(grains))
    assert np.all(grains[:, -1] == CONSTANT)


def test_half_of_the_public_rows_are_not_cut(public: np.ndarray) -> None:
    cut = lengths(PublicFeatures.fitted(public, 12).grains(public)) > NORM - 5

    assert 0.4 < cut.mean() < 0.6


@pytest.mark.parametrize("value", [1e30, -1e300, np.finfo(np.float64).max, np.inf, -np.inf, np.nan])
def test_a_private_outlier_is_cut_to_the_public_norm(public: np.ndarray, value: float) -> None:
    features = PublicFeatures.fitted(public, 12)
    outliers = np.repeat(public[:1], 12, axis=0)
    np.fill_diagonal(outliers, value)

    grains = features.grains(np.vstack([outliers, np.full((1, 12), value)]))

    assert np.all(np.isfinite(grains))
    assert np.all(np.sum(grains[:, :-1] ** 2, axis=1) <= NORM**2)


def test_no_row_moves_by_a_bit_with_the_company_it_is_in() -> None:
    generator = np.random.default_rng(2)
    public = generator.lognormal(size=(300, 90))
    rows = generator.lognormal(sigma=2.0, size=(157, 90))
    features = PublicFeatures.fitted(public, 64)
    together = features.grains(rows)

    alone = np.vstack([features.grains(row[np.newaxis]) for row in rows])
    order = generator.permutation(len(rows))[:71]

    assert np.array_equal(alone, together)
    assert np.array_equal(features.grains(rows[order]), together[order])


def test_a_projection_is_a_sum_of_integers_that_floats_hold_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(5)
    public = generator.lognormal(size=(300, 90))
    features = replace(PublicFeatures.fitted(public, 64), grain=1.0)
    projected: list[np.ndarray] = []
    cut = public_features._cut
    monkeypatch.setattr(
        public_features, "_cut", lambda rows: (projected.append(rows), cut(rows))[1]
    )

    features.grains(np.vstack([public, np.full((1, 90), 1e9)]))

    # The last row has the largest sum there can be; 4096 times as many columns would still fit.
    assert np.array_equal(projected[0], np.rint(projected[0]))
    assert 0 < np.abs(8 * 256 * features.axes).sum(axis=0).max() < 2.0**53 / 4096


def test_what_is_constant_in_public_counts_for_nothing(public: np.ndarray) -> None:
    public[:, 4] = 7.0
    features = PublicFeatures.fitted(public, 12)
    other = public.copy()
    other[:, 4] = -1000.0

    assert np.array_equal(features.grains(other), features.grains(public))


def test_a_rare_category_counts_no_more_than_a_common_one() -> None:
    generator = np.random.default_rng(3)
    public = np.column_stack([generator.random(1000) < 0.5, generator.random(1000) < 0.01]).astype(
        float
    )
    features = PublicFeatures.fitted(public, 2)

    common, rare = features.spread

    assert rare == pytest.approx(common)


def test_images_are_rows_of_pixels(public: np.ndarray) -> None:
    images = public.reshape(-1, 3, 4)

    flat, shaped = PublicFeatures.fitted(public, 5), PublicFeatures.fitted(images, 5)

    assert np.array_equal(shaped.grains(images), flat.grains(public))


def test_rows_wider_than_there_are_rows_have_axes_too() -> None:
    generator = np.random.default_rng(4)
    hidden = generator.normal(size=(30, 3))
    wide = hidden @ generator.normal(size=(3, 400)) + 0.01 * generator.normal(size=(30, 400))

    grains = PublicFeatures.fitted(wide, 3).grains(wide)[:, :-1]

    # Three directions made these rows, so three features must tell them apart as well as they did.
    explained = np.linalg.lstsq(np.column_stack([grains, np.ones(30)]), hidden, rcond=None)[0]
    assert grains.shape == (30, 3)
    assert np.corrcoef(grains @ explained[:3, 0], hidden[:, 0])[0, 1] > 0.8


def test_a_public_set_of_one_repeated_row_leaves_the_constant() -> None:
    features = PublicFeatures.fitted(np.ones((10, 4)), 3)

    assert features.width == 1
    assert np.array_equal(features.grains(np.zeros((2, 4))), np.full((2, 1), CONSTANT))
