"""A member that asks for what is another's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from federation import LABELS, ROWS, federation

from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.ballot import BallotShape, Encoding, digest, pack
from wire.consilium.v1 import ballot_pb2
from wire.errors import CONSENSUS_UNKNOWN, RECEIPT_UNKNOWN, Refusal
from wire.identity.files import IdentityFiles

BALLOT = pack(np.zeros(ROWS, dtype=np.int64), BallotShape(ROWS, len(LABELS), Encoding.INDEX))


def test_a_receipt_is_for_the_silo_that_voted(tmp_path: Path) -> None:
    with federation(tmp_path) as live:
        voter, curious = (live.join(name).identity() for name in ("north", "south"))
        live.start("trial", rounds={"quorum": 2}, silos=["north", "south"])
        header = ballot_pb2.BallotHeader(
            task="trial",
            task_digest=live.show("trial").task.digest,
            round=1,
            encoding=ballot_pb2.ENCODING_INDEX,
            size_bytes=len(BALLOT),
            digest=digest(BALLOT),
        )

        async def ask(files: IdentityFiles, *, first_vote: bool) -> ballot_pb2.Receipt:
            link = CoordinatorClient(files)
            try:
                if first_vote:
                    await link.cast(header, BALLOT)
                return await link.receipt("trial", 1)
            finally:
                await link.close()

        assert asyncio.run(ask(voter, first_vote=True)).silo == "north"
        with pytest.raises(Refusal) as caught:
            asyncio.run(ask(curious, first_vote=False))
        assert caught.value.is_a(RECEIPT_UNKNOWN)
        assert digest(BALLOT) not in caught.value.sentence
        # The same bits of its own are its own: the answer does not tell that another has cast them.
        own = asyncio.run(ask(curious, first_vote=True))
        assert own.silo == "south"


def test_a_consensus_is_for_the_silos_that_take_part(tmp_path: Path) -> None:
    with federation(tmp_path) as live:
        voter, outsider = (live.join(name).identity() for name in ("north", "south"))
        live.start("trial", rounds={"quorum": 1, "max_rounds": 1}, silos=["north"])
        header = ballot_pb2.BallotHeader(
            task="trial",
            task_digest=live.show("trial").task.digest,
            round=1,
            encoding=ballot_pb2.ENCODING_INDEX,
            size_bytes=len(BALLOT),
            digest=digest(BALLOT),
        )

        async def fetch(files: IdentityFiles, *, first_vote: bool) -> bytes:
            link = CoordinatorClient(files)
            try:
                if first_vote:
                    await link.cast(header, BALLOT)
                    await asyncio.to_thread(live.until_finished, "trial")
                return (await link.consensus("trial", 1)).data
            finally:
                await link.close()

        assert asyncio.run(fetch(voter, first_vote=True)) == BALLOT
        with pytest.raises(Refusal) as caught:
            asyncio.run(fetch(outsider, first_vote=False))
        assert caught.value.is_a(CONSENSUS_UNKNOWN)
