"""Privacy over the real wire: what is declared is judged, kept, shown and used; noisy consensuses are booked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from federation import LABELS, ROWS, Federation, federation

from coordinator.cli.audit import privacy as audit_privacy
from coordinator.cli.task import show
from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.ballot import BallotShape, Encoding, digest, pack, pack_scored, unpack
from wire.consilium.v1 import admin_pb2, ballot_pb2, privacy_pb2
from wire.errors import (
    BALLOT_SCORE,
    FIELD_TOO_LONG,
    MESSAGE_MALFORMED,
    PRIVACY_TOO_WEAK,
    Fault,
    Refusal,
)
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, MechanismName, Unit
from wire.privacy.events import Laplace

SILOS = ("north", "south", "west")
INDEX = BallotShape(ROWS, len(LABELS), Encoding.INDEX)
NOTHING = np.zeros(ROWS, dtype=np.int64)
EVERYTHING = np.ones(ROWS, dtype=np.int64)
DECLARED = Declaration(
    mechanism=MechanismName.PRIVATE_LABELLER, epsilon=0.75, delta=1e-6, unit=Unit.PATIENT
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator with three joined silos, none of which runs an agent."""
    with federation(tmp_path_factory.mktemp("privacy")) as made:
        for name in SILOS:
            made.join(name)
        yield made


def start(live: Federation, name: str, **definition: Any) -> None:
    """A task of one round that closes once all three have voted."""
    live.start(name, rounds={"quorum": 3, "max_rounds": 1}, silos=list(SILOS), **definition)


def cast(
    live: Federation,
    silo: str,
    task: str,
    payload: bytes,
    said: Declaration | privacy_pb2.PrivacyDeclaration | None = None,
    encoding: Encoding = Encoding.INDEX,
    seen: Sequence[str] = (),
) -> ballot_pb2.Receipt:
    """A silo's ballot in round 1 with what it declares, or nothing."""
    header = ballot_pb2.BallotHeader(
        task=task,
        task_digest=live.show(task).task.digest,
        round=1,
        encoding=encoding.to_proto(),
        size_bytes=BallotShape(ROWS, len(LABELS), encoding).size_bytes,
        digest=digest(payload),
        privacy=said.to_proto() if isinstance(said, Declaration) else said,
        consensuses_seen=seen,
    )

    async def call() -> ballot_pb2.Receipt:
        link = CoordinatorClient(live.silos[silo].identity())
        try:
            return await link.cast(header, payload)
        finally:
            await link.close()

    return asyncio.run(call())


def refused(fault: Fault, act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    assert caught.value.hint
    return caught.value.sentence


def consensus(live: Federation, task: str) -> npt.NDArray[np.int32]:
    live.until_finished(task)
    [payload] = live.consensuses(task)
    return unpack(payload, INDEX)


# -- declarations -----------------------------------------------------------------------------------------


def test_a_ballot_with_less_than_the_task_asks_for_is_refused_before_it_is_read(
    live: Federation,
) -> None:
    accepted = ["private_labeller", "xor"]
    start(live, "strict", privacy={"mechanisms": accepted, "max_epsilon": 1, "max_delta": 1e-5})
    before = live.counted("consilium_refusals_total", code="PRIVACY_TOO_WEAK")
    # No ballot of any task is this short: whoever read it would say so.
    payload = b"\0"
    weaker = [
        (None, "it accepts private_labeller or xor, not none"),
        (DECLARED.model_copy(update={"epsilon": 1.00001}), "it allows ε ≤ 1, not 1.00001"),
        (DECLARED.model_copy(update={"delta": 1e-4}), "it allows δ ≤ 1e-05, not 0.0001"),
        (DECLARED.model_copy(update={"estimate": True}), "no ε that is only an estimate"),
    ]
    for said, why in weaker:
        sentence = refused(
            PRIVACY_TOO_WEAK, lambda said=said: cast(live, "north", "strict", payload, said)
        )
        assert "Task strict" in sentence
        assert why in sentence
    assert live.counted("consilium_refusals_total", code="PRIVACY_TOO_WEAK") == before + len(weaker)
    assert live.ballots("strict") == {}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"mechanism": privacy_pb2.MECHANISM_UNSPECIFIED},
        {"unit": privacy_pb2.UNIT_UNSPECIFIED},
        {"one_if_voted_ppb": 2 * 10**9},
        {"delta_picos": 10**12},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_declaration_that_makes_no_sense_is_refused(
    live: Federation, nonsense: dict[str, Any]
) -> None:
    name = f"nonsense-{next(iter(nonsense)).replace('_', '-')}"
    start(live, name)
    said = DECLARED.to_proto()
    for field, value in nonsense.items():
        setattr(said, field, value)
    refused(MESSAGE_MALFORMED, lambda: cast(live, "north", name, pack(NOTHING, INDEX), said))
    assert live.ballots(name) == {}


def tasks(live: Federation) -> list[Any]:
    return list(live.admin(lambda link: link.admin.ListTasks(admin_pb2.ListTasksRequest())).tasks)


def test_what_is_declared_is_kept_and_shown(
    live: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    start(live, "shown", privacy={"accept_estimates": True, "max_epsilon": 9})
    estimated = Declaration(
        mechanism=MechanismName.XOR,
        epsilon=3.25,
        estimate=True,
        one_if_voted=0.75,
        one_if_not=0.25,
    )
    cast(live, "north", "shown", pack(NOTHING, INDEX), DECLARED)
    cast(live, "south", "shown", pack(NOTHING, INDEX), estimated)
    # The same bits again, better described: what was said first stands.
    cast(live, "north", "shown", pack(NOTHING, INDEX), Declaration(epsilon=0.1))
    kept = {one.silo: one for one in live.show("shown").declarations}
    assert Declaration.from_proto(kept["north"].privacy) == DECLARED
    assert Declaration.from_proto(kept["south"].privacy) == estimated
    capsys.readouterr()
    show("shown", live.home)
    page = capsys.readouterr().out
    assert "ε ≤ 9 at δ ≤ 1e-05, estimates accepted" in page
    north, south = (next(line for line in page.splitlines() if name in line) for name in SILOS[:2])
    assert all(word in north for word in ("private_labeller", "0.75", "1e-06", "patient"))
    assert "estimate" not in north
    assert all(word in south for word in ("xor", "3.25 (estimate)", "row"))
    show("shown", live.home, as_json=True)
    [first, _] = json.loads(capsys.readouterr().out)["declarations"]
    assert first["privacy"]["epsilon_micros"] == "750000"


def test_a_watching_silo_hears_how_many_ballots_of_its_own_are_held(live: Federation) -> None:
    start(live, "heard")
    cast(live, "west", "heard", pack(NOTHING, INDEX))

    async def first_notice() -> int:
        link = CoordinatorClient(live.silos["west"].identity())
        try:
            async for _ in link.watch("one", 0, lambda: None):
                break
            await link.leave("one")
            return link.ballots_held
        finally:
            await link.close()

    stored = sum(
        silo == "west" for task in tasks(live) for _, silo in live.ballots(task.definition.name)
    )
    assert asyncio.run(first_notice()) == stored > 0


# -- decoding ---------------------------------------------------------------------------------------------


def test_scored_votes_count_by_their_certainty(live: Federation) -> None:
    shape = BallotShape(ROWS, len(LABELS), Encoding.SCORED)
    start(live, "scored", encoding="scored", consensus={"rule": "certainty_weighted"})
    abstaining = bytearray(pack(np.full(ROWS, -1), shape))
    abstaining[shape.label_planes * shape.plane_bytes] |= 0x80
    refused(
        BALLOT_SCORE,
        lambda: cast(live, "north", "scored", bytes(abstaining), encoding=Encoding.SCORED),
    )
    scores = {"north": 7, "south": 7, "west": 15}
    for silo, score in scores.items():
        labels = EVERYTHING if silo == "west" else NOTHING
        ballot = pack_scored(labels, np.full(ROWS, score), shape)
        cast(live, silo, "scored", ballot, encoding=Encoding.SCORED)
    assert (consensus(live, "scored") == 1).all()


@pytest.mark.parametrize(("noise", "winner"), [(0.45, 0), (0.0, 1)], ids=["noisier", "alike"])
def test_two_silos_outvote_a_third_unless_they_declare_much_more_noise(
    live: Federation, noise: float, winner: int
) -> None:
    shape = BallotShape(ROWS, len(LABELS), Encoding.ONE_HOT)
    name = f"flips-{winner}"
    start(live, name, encoding="one_hot")
    for silo in SILOS:
        flips = 0.0 if silo == "north" else noise
        said = Declaration(
            mechanism=MechanismName.XOR, epsilon=5, one_if_voted=1 - flips, one_if_not=flips
        )
        labels = NOTHING if silo == "north" else EVERYTHING
        cast(live, silo, name, pack(labels, shape), said, Encoding.ONE_HOT)
    assert (consensus(live, name) == winner).all()


# -- party-level noise ------------------------------------------------------------------------------------


def test_a_noisy_consensus_is_booked_audited_and_its_cost_derived(
    live: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, gamma in (("faint", 1000), ("loud", 0.001), ("bare", None)):
        start(live, name, privacy={"party_gamma": gamma})
        for silo in SILOS:
            # Weights would let the first win; behind party-level noise every ballot counts one.
            flips = 0.0 if silo == "north" else 0.45
            said = Declaration(epsilon=1.0, one_if_voted=1 - flips, one_if_not=flips)
            cast(live, silo, name, pack(EVERYTHING if flips else NOTHING, INDEX), said)
    assert (consensus(live, "faint") == 1).all()
    assert len(np.unique(consensus(live, "loud"))) > 1
    assert (consensus(live, "bare") == 0).all()
    capsys.readouterr()
    audit_privacy(live.home, delta=1e-5, as_json=True)
    page = json.loads(capsys.readouterr().out)
    assert [(e["task"], e["round"], e["rows"]) for e in page["entries"]] == [
        ("faint", 1, ROWS),
        ("loud", 1, ROWS),
    ]
    loud = Laplace(sensitivity=2, scale=1000.0, count=ROWS)
    assert page["tasks"]["loud"]["epsilon"] == epsilon([loud], 1e-5)
    assert page["total"]["consensuses"] == 2
    assert page["rounds_without_party_noise"]["bare"] == 1
    spent = live.counted("consilium_party_epsilon_spent", task="loud")
    assert spent == pytest.approx(0.002 * ROWS)
    audit_privacy(live.home, delta=1e-5)
    shown = capsys.readouterr().out
    assert "all of them" in shown
    assert "bare (1)" in shown


def test_consensuses_that_only_silos_remember_are_booked_with_the_next_of_their_round(
    live: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = digest(b"first life"), digest(b"second life")
    ballot = pack(EVERYTHING, INDEX)
    start(live, "again", privacy={"party_gamma": 1})
    for senseless in (["x" * 64], [first.upper()], [first[:63]]):
        refused(
            MESSAGE_MALFORMED,
            lambda seen=senseless: cast(live, "north", "again", ballot, seen=seen),
        )
    too_many = [first] * 17
    refused(FIELD_TOO_LONG, lambda: cast(live, "north", "again", ballot, seen=too_many))
    for silo, seen in zip(SILOS, ([first], [], [second, first]), strict=True):
        cast(live, silo, "again", ballot, seen=seen)
    live.until_finished("again")
    capsys.readouterr()
    audit_privacy(live.home, delta=0, as_json=True)
    page = json.loads(capsys.readouterr().out)
    [drawn] = [entry["draws"] for entry in page["entries"] if entry["task"] == "again"]
    assert drawn == 3
    assert page["tasks"]["again"]["consensuses"] == 3
    assert page["tasks"]["again"]["epsilon"] == pytest.approx(3 * 2 * ROWS)
    spent = live.counted("consilium_party_epsilon_spent", task="again")
    assert spent == pytest.approx(3 * 2 * ROWS)
