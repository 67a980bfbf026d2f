"""Elections on made ballots, for the tests of the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from coordinator.consensus import Outcome, TieKey, elect
from coordinator.consensus.poll import Poll
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack
from wire.privacy.declaration import Declaration
from wire.task.definition import TaskDefinition

KEY = TieKey.of("cd" * 32, 1)
PLAIN = Declaration()


def task(rows: int, classes: int, rule: str = "majority", **settings: Any) -> TaskDefinition:
    """A task by a rule; `consensus` may say more of it."""
    consensus = {"rule": rule, **settings.pop("consensus", {})}
    labels = [chr(ord("a") + index) for index in range(classes)]
    return TaskDefinition.model_validate(
        {
            "name": "t",
            "public_set": "u",
            "rows": rows,
            "labels": labels,
            "consensus": consensus,
            **settings,
        }
    )


def silos(count: int) -> list[str]:
    return [f"silo-{number:02}" for number in range(count)]


def box(votes: npt.ArrayLike, shape: BallotShape) -> dict[str, bytes]:
    """(silos, rows) labels as ballots of silo-00, silo-01, ..."""
    cast = np.asarray(votes)
    return {name: pack(row, shape) for name, row in zip(silos(len(cast)), cast, strict=True)}


def held(
    definition: TaskDefinition,
    ballots: Mapping[str, bytes],
    declared: Mapping[str, Declaration] | None = None,
    **settings: Any,
) -> Outcome:
    """The outcome of round 1."""
    said = {silo: (declared or {}).get(silo, PLAIN) for silo in ballots}
    return elect(definition, 1, said, list(ballots.items()), **settings)


def poll(votes: npt.ArrayLike, classes: int, weights: Sequence[int] | None = None) -> Poll:
    """INDEX ballots of silos that know every class."""
    cast = np.asarray(votes)
    shape = BallotShape(cast.shape[1], classes, Encoding.INDEX)
    each = weights or [1] * len(cast)
    return Poll(
        shape=shape,
        ballots=list(box(cast, shape).items()),
        weights=dict(zip(silos(len(cast)), each, strict=True)),
        key=KEY,
        known=lambda silo: range(classes),
    )


@st.composite
def elections(
    draw: st.DrawFn, silos: int = 7, rows: int = 30, classes: int = 5
) -> tuple[npt.NDArray[np.int32], int]:
    """(silos, rows) labels and the number of classes; some abstain, some agree more than by chance."""
    shape = draw(st.integers(1, silos)), draw(st.integers(1, rows))
    count = draw(st.integers(2, classes))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    truth = random.integers(0, count, shape[1])
    right = random.random(shape) < random.random((shape[0], 1))
    votes = np.where(right, truth, random.integers(ABSTAIN, count, shape))
    return votes.astype(np.int32), count
