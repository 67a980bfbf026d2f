"""CoFED's tables: gains silo by silo on classes of their own, and public rows that nobody is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.data import Split
from experiments.data.tables import adult, adult_attributes
from experiments.papers import cofed_adult, cofed_images
from experiments.papers.cofed import Gains, Rule, gains, summed
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled

pytestmark = pytest.mark.slow

TREE, LINEAR = LearnerSpec(name="decision_tree"), LearnerSpec(name="logistic_regression")


class TestGains:
    def test_are_relative_and_a_silos_own(self) -> None:
        found = summed([TREE, LINEAR, TREE], [0.5, 0.8, 0.8], [0.6, 0.8, 0.72], 0.9)
        assert found.gain == pytest.approx((0.2 + 0.0 - 0.1) / 3)
        assert found.gaining == pytest.approx(1 / 3)
        assert found.least == pytest.approx(-0.1)
        assert (found.alone, found.cofed) == pytest.approx((0.7, 2.12 / 3))
        assert found.of("decision_tree") == pytest.approx(0.05)
        assert found.of("logistic_regression") == 0

    def test_come_from_classes_a_silo_knows(self) -> None:
        rows = three_corners()
        spaces = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
        found = gains(rows, [LINEAR] * 4, Rule(0.3, 1.0), 0, spaces)
        # Corners are far apart, so whoever is asked about no strange class is right.
        assert found.alone > 0.95
        assert found.cofed > 0.95
        assert 0.3 < found.labelled <= 1

    def test_are_none_where_labels_are_left_at_the_door(self) -> None:
        found = gains(three_corners(), [TREE] * 4, Rule(0.3, 0.0), 0)
        assert found.gain == 0
        assert found.gaining == 0
        assert found.alone == found.cofed

    def test_need_labels_that_enough_silos_agree_on(self) -> None:
        rows = three_corners(noise=2.0)
        some = gains(rows, [TREE] * 4, Rule(0.5, 1.0), 0)
        few = gains(rows, [TREE] * 4, Rule(0.9, 1.0), 0)
        assert few.labelled < some.labelled


class TestShuffledRows:
    def test_keep_every_attribute_and_nobody(self) -> None:
        rows = np.arange(200, dtype=np.float64).reshape(50, 4)
        attributes = [np.array([0]), np.array([1, 2]), np.array([3])]
        mixed = cofed_adult.shuffled(rows, attributes, np.random.default_rng(0))
        assert np.array_equal(np.sort(mixed, axis=0), rows)
        assert np.array_equal(mixed[:, 2] - mixed[:, 1], np.ones(50))
        assert np.count_nonzero((mixed[:, 0] + 3 == mixed[:, 3]).astype(int)) < 10

    def test_adults_attributes_are_all_its_columns(self, tmp_path: Path) -> None:
        place = tmp_path / "adult"
        place.mkdir()
        pd.DataFrame(
            {
                "age": [20, 30, 40],
                "education": ["BA", "MA", "BA"],
                "education-num": [13, 14, 13],
                "fnlwgt": [1, 2, 3],
                "income": ["<=50K", ">50K", "<=50K"],
                "split": ["test", "train", "train"],
            }
        ).to_csv(place / "adult.csv.gz", index=False)
        rows, reserved = adult(tmp_path)
        attributes = adult_attributes(tmp_path)
        assert [len(columns) for columns in attributes] == [1, 2, 1]
        assert sorted(np.concatenate(attributes)) == list(range(rows.features.shape[1]))
        words = attributes[1]
        assert np.array_equal(rows.features[:, words].sum(axis=1), np.ones(3))
        assert reserved == 1
        assert rows.labels.tolist() == [1, 0, 0]


class TestImages:
    def test_silos_hold_their_classes_alone_and_no_row_twice(self) -> None:
        draw = np.random.default_rng(1)
        pool = Labelled(np.arange(4000.0).reshape(-1, 1), draw.integers(0, 10, 4000))
        spaces = cofed_images.label_spaces(8, 10, draw)
        parts = cofed_images.private_rows(pool, spaces, 15)
        assert all(4 <= len(space) <= 6 for space in spaces)
        for part, space in zip(parts, spaces, strict=True):
            assert dict(
                zip(*np.unique(part.labels, return_counts=True), strict=True)
            ) == dict.fromkeys(space, 15)
        held = np.concatenate([part.features[:, 0] for part in parts])
        assert len(np.unique(held)) == len(held)


class TestLines:
    def test_the_papers_threshold_is_judged_and_kinds_of_learners_are_shown(self) -> None:
        cell = cofed_adult.cells(1, quick=True)[0]
        learners = list(cofed_adult.LEARNERS)
        found = summed(learners, [0.8] * 4, [0.84, 0.88, 0.8, 0.8], 0.9)
        table = cofed_adult.EXPERIMENT.table({cell: found})
        gain, gaining, *kinds = table
        assert gain.ours == pytest.approx((0.0375,))
        assert gaining.ours == (0.5,)
        assert (gain.least, gaining.least) == (0.04, 0.90)
        assert [line.mean for line in kinds] == pytest.approx([0.05, 0.1, 0, 0])

    def test_what_silos_choose_at_home_is_a_line_of_its_own(self) -> None:
        found = summed(list(cofed_adult.LEARNERS), [0.8] * 4, [0.84] * 4, 0.9)
        chosen = [one for one in cofed_adult.cells(2, quick=False) if one.share is None]
        assert len(chosen) == 1
        lines = cofed_adult.EXPERIMENT.table({chosen[0]: found})
        assert {line.where[0] for line in lines} == {"α = 0.3, share chosen at home"}
        assert all(line.least is None for line in lines)


def three_corners(noise: float = 0.3) -> Split:
    """Four silos and three classes, each around a corner of its own."""
    draw = np.random.default_rng(2)
    corners = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])

    def rows(count: int, classes: tuple[int, ...]) -> Labelled:
        labels = np.resize(np.array(classes), count)
        return Labelled(corners[labels] + noise * draw.normal(size=(count, 2)), labels)

    private = tuple(rows(30, space) for space in [(0, 1), (1, 2), (0, 2), (0, 1, 2)])
    public, test = rows(90, (0, 1, 2)), rows(150, (0, 1, 2))
    return Split(private, public.features, public.labels, test, 3)


def test_gains_of_a_kind_that_is_not_there_are_no_number() -> None:
    with pytest.raises(KeyError):
        Gains(0, 0, 0, 0, 0, 0, "svm:0.1").of("mlp")
