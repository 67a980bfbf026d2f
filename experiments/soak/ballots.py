"""Ballots that depend on everything before them, and the consensus they give in a run without faults.

A ballot is drawn with a key made of silo, round and the last consensus. A ballot that is lost, counted twice or
formed on another consensus therefore changes the consensus, and with it every ballot that follows.
"""

from __future__ import annotations

import hashlib

import numpy as np

from coordinator.consensus import Tally, TieKey, form_consensus, rule_for
from wire.ballot import ABSTAIN, BallotShape, digest, pack, unpack
from wire.task.definition import TaskDefinition

CLASSES = 4
_KNOWN, _FOLLOWED = 0.1, 0.3


def silo_name(number: int) -> str:
    """Name of the silo with this number, counted from 0."""
    return f"silo-{number:02}"


def ballot(shape: BallotShape, silo: str, round_number: int, consensus: bytes) -> bytes:
    """The packed ballot of `silo` in round `round_number`; `consensus` as published, empty before the first.

    A tenth of the rows get the label everyone would give, a fifth the last consensus, the others anything or none:
    votes are so close that every single one matters.
    """
    key = hashlib.sha256(f"{silo}\n{round_number}\n".encode() + consensus).digest()
    random = np.random.default_rng(int.from_bytes(key[:16], "big"))
    labels = random.integers(ABSTAIN, shape.classes, shape.rows)
    draw = random.random(shape.rows)
    if consensus:
        labels = np.where(draw < _FOLLOWED, unpack(consensus, shape.as_index()), labels)
    labels = np.where(draw < _KNOWN, np.arange(shape.rows) % shape.classes, labels)
    return pack(labels, shape)


def expected_consensus(definition: TaskDefinition) -> list[str]:
    """Digests of every round's consensus in a run without faults, oldest first.

    `definition` is the one the coordinator holds: ties depend on its digest.
    """
    shape, rule, consensus = definition.shape, rule_for(definition.consensus), b""
    digests = []
    for round_number in range(1, definition.rounds.max_rounds + 1):
        tally = Tally(shape)
        for silo in definition.silos:
            tally.add(ballot(shape, silo, round_number, consensus))
        labels = form_consensus(tally, rule, TieKey.of(definition.digest, round_number))
        consensus = pack(labels, shape.as_index())
        digests.append(digest(consensus))
    return digests
