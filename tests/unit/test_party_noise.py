"""Party-level noise: one silo moves the counts no further than claimed, and labels tell no more than claimed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from seeded_bits import SeededBits

from coordinator.consensus import NoisyRule, QualifiedMajority, Rule, Tally, TieKey, majority
from coordinator.consensus import party_noise as module
from coordinator.consensus.party_noise import GRAINS, PartyRelease, release_of, sensitivity
from wire.ballot import (
    ABSTAIN,
    BEST_SCORE,
    BallotShape,
    Encoding,
    pack,
    pack_one_hot,
    pack_scored,
)
from wire.privacy import noise
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import PrivacyDemand
from wire.privacy.events import Laplace
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

KEY = TieKey.of("ef" * 32, 1)
REACH = 120
"""Grains beyond which noise is not enumerated: e^-15 of it at most."""


class OneRow(TieKey):
    """Lets every row stand for the same one, so that ties fall in all of them as they fall in that one."""

    def row_seeds(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
        return super().row_seeds(np.zeros_like(rows))


def every_ballot(shape: BallotShape) -> Iterator[bytes]:
    """Every ballot on one row."""
    match shape.encoding:
        case Encoding.ONE_HOT:
            for ones in itertools.product([False, True], repeat=shape.classes):
                yield pack_one_hot(np.array([ones]), shape)
        case Encoding.INDEX:
            for label in range(-1, shape.classes):
                yield pack(np.array([label]), shape)
        case Encoding.SCORED:
            for label in range(-1, shape.classes):
                for score in range(BEST_SCORE + 1):
                    yield pack_scored(np.array([label]), np.array([score]), shape)


@pytest.mark.parametrize(
    ("encoding", "certainties"),
    [*((encoding, False) for encoding in Encoding), (Encoding.SCORED, True)],
)
@pytest.mark.parametrize(("classes", "votes"), [(2, 1), (3, 2), (5, 1)])
def test_no_exchange_of_one_ballot_moves_a_row_further_than_claimed_and_one_moves_it_so_far(
    encoding: Encoding, certainties: bool, classes: int, votes: int
) -> None:
    shape = BallotShape(1, classes, encoding)
    others = next(every_ballot(shape))
    counts = []
    for mine in every_ballot(shape):
        tally = Tally(shape, certainties=certainties)
        tally.add(others, votes)
        tally.add(mine, votes)
        counts.append(tally.counts()[0].astype(int))
    furthest = max(np.abs(a - b).sum() for a, b in itertools.combinations(counts, 2))
    assert furthest == sensitivity(shape, certainties=certainties, votes=votes)


def test_a_task_without_party_noise_releases_nothing_of_its_kind() -> None:
    plain = TaskDefinition(name="t", public_set="u", rows=10, labels=("a", "b", "c"))
    assert release_of(plain) is None
    noisy = plain.model_copy(update={"privacy": PrivacyDemand(party_gamma=0.25)})
    assert release_of(noisy) == PartyRelease(sensitivity=2, gamma_micros=250_000, rows=10)


@pytest.mark.parametrize(
    ("settings", "moved"),
    [
        ({"encoding": "scored"}, 2),
        ({"encoding": "scored", "consensus": {"rule": "certainty_weighted"}}, 30),
        ({"method": "fedkt", "fedkt": {"level": "L1"}}, 2),
        ({"method": "fedkt", "fedkt": {"level": "L1", "partitions": 3}}, 6),
        ({"encoding": "one_hot"}, 4),
    ],
)
def test_what_a_silo_can_move_follows_from_how_its_ballot_is_counted(
    settings: dict[str, Any], moved: int
) -> None:
    values = {"name": "t", "public_set": "u", "rows": 10, "labels": ["a", "b", "c", "d"]}
    noisy = TaskDefinition.model_validate({**values, "privacy": {"party_gamma": 0.25}, **settings})
    assert release_of(noisy) == PartyRelease(moved, 250_000, 10)


def test_the_event_is_that_of_laplace_noise_on_every_row() -> None:
    release = PartyRelease(sensitivity=2, gamma_micros=250_000, rows=10)
    assert release.event == Laplace(sensitivity=2, scale=4, count=10)
    assert release.pure_epsilon == epsilon([release.event], 0.0) == 5.0
    assert epsilon([release.event], 1e-5) <= 5.0


def test_the_audit_entry_of_a_release_can_be_read_back() -> None:
    release = PartyRelease(sensitivity=30, gamma_micros=1, rows=10**6)
    details = {"round": 3, "digest": "ab", **release.audit_details()}
    assert PartyRelease.in_audit(details) == release
    assert PartyRelease.in_audit({"round": 3, "digest": "ab"}) is None
    assert PartyRelease.in_audit("tampered") is None


def test_an_audit_entry_from_before_draws_were_counted_is_one_draw() -> None:
    release = PartyRelease(sensitivity=2, gamma_micros=50_000, rows=60)
    old = {key: value for key, value in release.audit_details().items() if key != "party_draws"}
    assert len(old) == 3
    assert PartyRelease.in_audit(old) == release


def test_every_draw_of_a_round_costs_what_one_does() -> None:
    once = PartyRelease(sensitivity=2, gamma_micros=50_000, rows=60)
    thrice = replace(once, draws=3)
    assert thrice.pure_epsilon == 3 * once.pure_epsilon == 3 * 60 * 2 * 0.05
    assert epsilon([thrice.event], 1e-5) == epsilon([once.event] * 3, 1e-5)
    assert PartyRelease.in_audit(thrice.audit_details()) == thrice


# -- what the labels tell: every noise there is, weighted by its probability ------------------------------


def enumerated(monkeypatch: pytest.MonkeyPatch, scale: float) -> npt.NDArray[np.float64]:
    """Makes `laplace` give every pair of noises once, one per row; returns their probabilities."""

    def below(z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.where(z < 0, 0.5 * np.exp(z / scale), 1 - 0.5 * np.exp(-z / scale))

    grid = np.arange(-REACH, REACH + 1)
    single = below(grid + 0.5) - below(grid - 0.5)
    first, second = (part.reshape(-1) for part in np.meshgrid(grid, grid, indexing="ij"))

    def laplace(scale_in_grains: float, size: tuple[int, ...], bits: Any) -> Any:
        assert scale_in_grains == scale
        assert size == (2, len(first))
        return np.stack([first, second])

    monkeypatch.setattr(noise, "laplace", laplace)
    monkeypatch.setattr(module, "GRAINS", 2)
    return np.outer(single, single).reshape(-1)


def chances(
    votes: tuple[int, int], rule: Rule, release: PartyRelease, weights: npt.NDArray[np.float64]
) -> dict[int, float]:
    """Probability of every label of a row with these votes."""
    counts = np.tile(np.array(votes, dtype=np.uint8), (len(weights), 1))
    labels = NoisyRule(rule, release, SeededBits(0))(counts, 0, OneRow(KEY.value))
    return {label: float(weights[labels == label].sum()) for label in (ABSTAIN, 0, 1)}


def loss(one: dict[int, float], other: dict[int, float]) -> float:
    return max(abs(math.log(one[label] / other[label])) for label in one if one[label])


@pytest.mark.parametrize("rule", [majority, QualifiedMajority(600)])
@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_every_exchange_of_a_ballot_stays_within_the_claimed_epsilon(
    rule: Rule, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = enumerated(monkeypatch, scale=2 / gamma)
    monkeypatch.setattr(module, "_CELLS", 10**9)
    release = PartyRelease(sensitivity=2, gamma_micros=round(gamma * 10**6), rows=1)
    losses = []
    for others in [(0, 0), (1, 0), (2, 2), (4, 1), (6, 0)]:
        # One silo abstains, votes for the first or votes for the second class.
        seen = [
            chances((others[0] + mine[0], others[1] + mine[1]), rule, release, weights)
            for mine in [(0, 0), (1, 0), (0, 1)]
        ]
        losses += [loss(a, b) for a, b in itertools.permutations(seen, 2)]
    claimed = release.pure_epsilon
    assert max(losses) <= claimed + 1e-6
    # A claim of half the sensitivity would be false, so the bound can be broken.
    assert max(losses) > claimed / 2 + 0.01


# -- how labels are chosen behind it ----------------------------------------------------------------------


def test_much_noise_drowns_the_votes_and_little_leaves_them() -> None:
    counts = np.tile(np.array([0, 5, 0], dtype=np.uint8), (3000, 1))
    bits = SeededBits(1)

    def right(gamma: float) -> float:
        release = PartyRelease(2, round(gamma * 10**6), len(counts))
        return float(np.mean(NoisyRule(majority, release, bits)(counts, 0, KEY) == 1))

    assert right(20.0) == 1.0
    assert 0.7 < right(0.5) < 1.0
    assert abs(right(0.001) - 1 / 3) < 0.05


def test_noise_has_the_scale_that_the_ledger_is_told() -> None:
    counts = np.zeros((20_000, 2), dtype=np.uint8)
    noisy: list[npt.NDArray[Any]] = []

    def listening(seen: Any, first_row: int, key: TieKey) -> Any:
        noisy.append(seen)
        return np.zeros(len(seen), dtype=np.int32)

    NoisyRule(listening, PartyRelease(2, 100_000, 1), SeededBits(2))(counts, 0, KEY)
    votes = np.concatenate(noisy).astype(float) / GRAINS
    # Half of it was negative and is cut off; the mean of the other half is the scale, here 10 votes.
    assert abs(np.mean(votes == 0) - 0.5) < 0.02
    assert votes[votes > 0].mean() == pytest.approx(10, rel=0.03)


def test_a_row_is_left_without_a_label_where_noise_leaves_no_vote() -> None:
    release = PartyRelease(2, 1_000_000, 1)
    counts = np.zeros((4000, 2), dtype=np.uint8)
    labels = NoisyRule(majority, release, SeededBits(3))(counts, 0, KEY)
    # Both noises at or below half a grain.
    assert np.mean(labels == ABSTAIN) == pytest.approx(0.25, abs=0.03)


def test_every_call_draws_anew() -> None:
    counts = np.ones((500, 3), dtype=np.uint8)
    rule = NoisyRule(majority, PartyRelease(2, 100_000, 1), SeededBits(4))
    assert (rule(counts, 0, KEY) != rule(counts, 0, KEY)).any()


def test_noise_is_drawn_in_pieces_whose_rows_keep_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CELLS", 40)
    seen: list[tuple[int, int]] = []

    def listening(counts: Any, first_row: int, key: TieKey) -> Any:
        seen.append((first_row, len(counts)))
        return np.zeros(len(counts), dtype=np.int32)

    counts = np.ones((25, 4), dtype=np.uint8)
    labels = NoisyRule(listening, PartyRelease(2, 100_000, 1), SeededBits(5))(counts, 100, KEY)
    assert seen == [(100, 10), (110, 10), (120, 5)]
    assert len(labels) == 25
