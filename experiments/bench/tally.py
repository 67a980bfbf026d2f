"""How fast ballots are counted and how small they are, as ratios measured in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.consensus import Tally, TieKey, form_consensus, majority
from coordinator.consensus.tally import ROW_BLOCK
from experiments.bench import Measurement
from wire.ballot import BallotShape, Encoding, Packed, pack

FEDAVG_WEIGHTS: Final = 669_706
"""Parameters of the FedCT paper's network for FashionMNIST, which FedAvg sends as float32."""


def run(
    rows: int = 1_000_000, classes: int = 10, ballots: int = 100, repeats: int = 15
) -> list[Measurement]:
    """Counting `ballots` ballots, then ballot sizes in the papers' setting; some 8 s and 400 MB."""
    return [*counting(rows, classes, ballots, repeats), *sizes()]


def counting(rows: int, classes: int, ballots: int, repeats: int) -> list[Measurement]:
    """Tallies against copying the same bytes and against numpy's unpackbits; best of `repeats`.

    Random bits stand for one-hot ballots: the time does not depend on what they say.
    """
    random = np.random.default_rng(0)
    shape = BallotShape(rows, classes, Encoding.ONE_HOT)
    # One piece and touched before: the fastest copy there is, so that the ratio flatters nobody.
    source = np.frombuffer(random.bytes(ballots * shape.size_bytes), dtype=np.uint8)
    target = np.zeros_like(source)
    one_hot = [piece.data for piece in source.reshape(ballots, shape.size_bytes)]
    copied, tallied, counted, unpacked = _best(
        repeats,
        lambda: np.copyto(target, source),
        lambda: _tally(shape, one_hot).counts(0, 1),
        lambda: _count_all(_tally(shape, one_hot)),
        lambda: _count_unpacked(one_hot),
    )
    index = [_index_ballot(shape, random) for _ in range(ballots)]
    key = TieKey.of("bench", 1)
    index_counted, index_formed = _best(
        repeats,
        lambda: _count_all(_tally(shape.as_index(), index)),
        lambda: form_consensus(_tally(shape.as_index(), index), majority, key),
    )
    what = f"{ballots} ballots × {rows} rows × {classes} classes"
    return [
        Measurement(f"copy of {what}", copied * 1e3, "ms"),
        Measurement("tally", tallied * 1e3, "ms"),
        Measurement("tally and all counts", counted * 1e3, "ms"),
        Measurement("unpackbits and add", unpacked * 1e3, "ms"),
        Measurement("tally and all counts, index ballots", index_counted * 1e3, "ms"),
        Measurement("tally, counts and majority, index ballots", index_formed * 1e3, "ms"),
        Measurement.at_most("tally / copy", tallied / copied, "×", 4),
        Measurement.at_most("tally and all counts / copy", counted / copied, "×", 4),
        Measurement.at_least("unpackbits / tally", unpacked / tallied, "×", 3),
        Measurement.at_least("unpackbits / tally and all counts", unpacked / counted, "×", 3),
    ]


def sizes(rows: int = 10_000, classes: int = 10) -> list[Measurement]:
    """What a silo sends per round in the papers' setting, against the weights FedAvg sends."""
    one_hot = BallotShape(rows, classes, Encoding.ONE_HOT).size_bytes
    index = BallotShape(rows, classes, Encoding.INDEX).size_bytes
    fedavg = FEDAVG_WEIGHTS * np.dtype(np.float32).itemsize
    what = f"{rows} rows, {classes} classes"
    return [
        Measurement(f"FedAvg upload, {FEDAVG_WEIGHTS} weights", fedavg, "B"),
        Measurement.at_most(f"one-hot ballot, {what}", one_hot, "B", rows * classes / 8),
        Measurement.at_most(f"index ballot, {what}", index, "B", one_hot),
        Measurement.at_least("FedAvg / one-hot ballot", fedavg / one_hot, "×", 214),
        Measurement.at_least("FedAvg / index ballot", fedavg / index, "×", 214),
    ]


def _best(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """Least seconds of each action; they take turns, so a busy machine is busy for all of them."""
    least = [float("inf")] * len(actions)
    for _ in range(repeats):
        for position, action in enumerate(actions):
            began = time.perf_counter()
            action()
            least[position] = min(least[position], time.perf_counter() - began)
    return least


def _index_ballot(shape: BallotShape, random: np.random.Generator) -> Packed:
    return pack(random.integers(-1, shape.classes, shape.rows), shape.as_index())


def _tally(shape: BallotShape, ballots: Sequence[Packed]) -> Tally:
    tally = Tally(shape)
    for ballot in ballots:
        tally.add(ballot)
    return tally


def _count_all(tally: Tally) -> None:
    for start in range(0, tally.shape.rows, ROW_BLOCK):
        tally.counts(start, min(start + ROW_BLOCK, tally.shape.rows))


def _count_unpacked(ballots: Sequence[Packed]) -> npt.NDArray[np.uint8]:
    counts = np.zeros(8 * len(ballots[0]), dtype=np.uint8)
    for ballot in ballots:
        counts += np.unpackbits(np.frombuffer(ballot, dtype=np.uint8))
    return counts
