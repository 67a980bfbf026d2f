"""Methods over the real wire: label spaces, agreement, previews and exports, each as a member meets it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from federation import ROWS, Federation, federation

from coordinator.cli.task import show
from coordinator.cli.task_export import export
from coordinator.cli.task_preview import preview
from silo_agent.agent.coordinator_client import CoordinatorClient, FetchedConsensus
from wire.ballot import BallotShape, Encoding, digest, pack, unpack
from wire.consilium.v1 import admin_pb2, admin_pb2_grpc, ballot_pb2
from wire.errors import (
    BALLOT_LABEL_SPACE,
    CONSENSUS_UNKNOWN,
    PREVIEW_REFUSED,
    TASK_NAMES_STRANGERS,
    WRONG_ROLE,
    ConfigurationError,
    Fault,
    Refusal,
)
from wire.net.channels import secure_channel, translated
from wire.public_content import inspect
from wire.runtime.terminal import console
from wire.task.consensus_policy import ConsensusPolicy, RuleName
from wire.task.definition import TaskDefinition

SILOS = ("north", "south", "west")
CLASSES = ("a", "b", "c")
INDEX = BallotShape(ROWS, len(CLASSES), Encoding.INDEX)
SPACES = {"north": ["a", "b"], "south": ["b", "c"]}
Votes = npt.NDArray[np.int64]


def votes(*choices: int) -> Votes:
    """A vote in every row: the choices in turn."""
    return np.resize(np.array(choices, dtype=np.int64), ROWS)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator with three joined silos, none of which runs an agent."""
    with federation(tmp_path_factory.mktemp("methods")) as made:
        for name in SILOS:
            made.join(name)
        yield made


def start(live: Federation, name: str, **definition: Any) -> None:
    """A task of one round that closes once all three have voted."""
    rounds = {"quorum": 3, "max_rounds": 1}
    live.start(name, rounds=rounds, silos=list(SILOS), labels=CLASSES, **definition)


def held(live: Federation, name: str, cast_by: Mapping[str, Votes], **definition: Any) -> None:
    """A finished task in which each silo voted as given."""
    start(live, name, **definition)
    for silo, labels in cast_by.items():
        cast(live, silo, name, labels)
    live.until_finished(name)


def cast(
    live: Federation, silo: str, task: str, labels: Votes, encoding: Encoding = Encoding.INDEX
) -> None:
    payload = pack(labels, BallotShape(ROWS, len(CLASSES), encoding))
    header = ballot_pb2.BallotHeader(
        task=task,
        task_digest=live.show(task).task.digest,
        round=1,
        encoding=encoding.to_proto(),
        size_bytes=len(payload),
        digest=digest(payload),
    )
    linked(live, silo, lambda link: link.cast(header, payload))


def linked(live: Federation, silo: str, call: Callable[[CoordinatorClient], Any]) -> Any:
    """What a silo's call answers."""

    async def connected() -> Any:
        link = CoordinatorClient(live.silos[silo].identity())
        try:
            return await call(link)
        finally:
            await link.close()

    return asyncio.run(connected())


def fetched(live: Federation, silo: str, task: str) -> FetchedConsensus:
    found: FetchedConsensus = linked(live, silo, lambda link: link.consensus(task, 1))
    return found


def refused(fault: Fault, act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    assert caught.value.hint
    return caught.value.sentence


def asked(live: Federation, task: str, number: int = 0, **policy: Any) -> Any:
    """An admin's preview."""
    request = admin_pb2.PreviewConsensusRequest(
        task=task, round=number, policy=ConsensusPolicy.model_validate(policy).to_proto()
    )
    return live.admin(lambda link: link.admin.PreviewConsensus(request))


# -- label spaces -----------------------------------------------------------------------------------------


def test_silos_that_know_different_classes_get_different_consensuses(live: Federation) -> None:
    # Of those who know a class more than 40 % claim: a and b in even rows, b and c in odd ones.
    said = {"north": votes(0, 1), "south": votes(1, 2), "west": votes(0, 2)}
    held(
        live,
        "spaces",
        said,
        method="cofed",
        label_spaces=SPACES,
        consensus={"threshold": 0.3},
    )
    seen = {silo: fetched(live, silo, "spaces") for silo in SILOS}
    labels = {silo: unpack(found.data, INDEX) for silo, found in seen.items()}
    # a: both who know it in even rows. b: one of three. c: both who know it in odd rows.
    assert labels["north"].tolist() == votes(-1, 1).tolist()
    assert labels["south"].tolist() == votes(1, -1).tolist()
    assert labels["west"].tolist() == votes(-1, -1).tolist()
    for silo, found in seen.items():
        assert found.header.digest == digest(found.data)
        assert found.header.size_bytes == len(found.data) == INDEX.size_bytes
        assert found.header.abstained_rows == (labels[silo] == -1).sum()
    # What was published is what is stored, in one hot: views are made of it.
    [stored] = live.consensuses("spaces")
    published = live.show("spaces").task.consensus
    assert published.digest == digest(stored) != seen["north"].header.digest
    assert len(stored) == BallotShape(ROWS, len(CLASSES), Encoding.ONE_HOT).size_bytes


def test_where_everyone_knows_everything_the_stored_bits_are_sent(live: Federation) -> None:
    held(live, "plain", {silo: votes(0, 1, 2) for silo in SILOS})
    [stored] = live.consensuses("plain")
    for silo in SILOS:
        found = fetched(live, silo, "plain")
        assert (found.data, found.header.digest) == (stored, digest(stored))


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_vote_for_a_class_the_silo_does_not_know_is_refused(
    live: Federation, encoding: Encoding
) -> None:
    name = f"outside-{encoding}".replace("_", "-")
    start(live, name, method="cofed", label_spaces=SPACES, encoding=str(encoding))
    before = live.counted("consilium_refusals_total", code="BALLOT_LABEL_SPACE")
    # One single row, the last.
    outside = votes(0, 1)
    outside[-1] = 2
    sentence = refused(BALLOT_LABEL_SPACE, lambda: cast(live, "north", name, outside, encoding))
    assert "silo north votes for a class" in sentence
    assert name in sentence
    assert live.ballots(name) == {}
    assert live.counted("consilium_refusals_total", code="BALLOT_LABEL_SPACE") == before + 1
    cast(live, "north", name, votes(0, 1, -1), encoding)
    cast(live, "south", name, votes(2, 1, -1), encoding)
    cast(live, "west", name, votes(0, 1, 2), encoding)
    assert set(live.ballots(name)) == {(1, silo) for silo in SILOS}


@pytest.mark.parametrize(
    "naming",
    [
        {"method": "cofed", "label_spaces": {"nort": ["a"]}},
        {"consensus": {"rule": "weighted", "weights": {"nort": 2}}},
    ],
    ids=["label-spaces", "weights"],
)
def test_a_task_that_names_a_silo_nobody_registered_is_refused_at_its_start(
    live: Federation, naming: dict[str, Any]
) -> None:
    name = f"strange-{next(iter(naming))}"
    rounds = {"quorum": 3, "max_rounds": 1}
    sentence = refused(
        TASK_NAMES_STRANGERS,
        lambda: live.start(name, rounds=rounds, labels=CLASSES, **naming),
    )
    assert sentence.endswith("not registered: nort.")


# -- agreement --------------------------------------------------------------------------------------------


def test_agreement_is_shown_to_admins_and_on_the_metrics_page_also_after_a_restart(
    live: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    off = votes(0, 1, 2, 0)
    off[:50] = (off[:50] + 1) % 3
    said = {"north": votes(0, 1, 2, 0), "south": votes(0, 1, 2, 0), "west": off}
    said["south"][-2:] = -1
    held(live, "compared", said)
    [closed] = live.show("compared").history
    found = {one.silo: (one.compared_rows, one.agreeing_rows) for one in closed.agreement}
    assert found == {
        "north": (ROWS, ROWS),
        "south": (ROWS - 2, ROWS - 2),
        "west": (ROWS, ROWS - 50),
    }

    def on_the_page() -> list[float]:
        metric = "consilium_silo_agreement_ratio"
        return [live.counted(metric, task="compared", silo=silo) for silo in SILOS]

    shown = [1.0, 1.0, pytest.approx((ROWS - 50) / ROWS)]
    assert on_the_page() == shown
    live.coordinator.kill()
    live.serve()
    assert on_the_page() == shown
    capsys.readouterr()
    show("compared", live.home)
    page = capsys.readouterr().out
    west = page.index("far below the others")
    assert "west" in page[page.rindex("\n", 0, west) : west]
    assert page.index("Agreement with the consensus of round 1") < west < page.index("│ north")
    assert "majority: the class with most votes" in page


def test_behind_party_noise_nobody_is_compared_and_nothing_is_previewed(
    live: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    held(live, "hidden", {silo: votes(0, 1) for silo in SILOS}, privacy={"party_gamma": 100})
    [closed] = live.show("hidden").history
    assert list(closed.agreement) == []
    assert 'task="hidden",silo=' not in live.metrics_page()
    assert "another release" in refused(PREVIEW_REFUSED, lambda: asked(live, "hidden"))
    capsys.readouterr()
    show("hidden", live.home)
    assert "How far silos agree is not kept" in capsys.readouterr().out


# -- previews ---------------------------------------------------------------------------------------------

# No rule below can tie: three votes between two classes, or one class and an abstention.
DIVIDED = {
    "north": votes(0, 0, 1, 1, 0, 2),
    "south": votes(0, 0, 1, 0, 1, 2),
    "west": votes(0, 1, 1, 1, 1, -1),
}


@pytest.mark.parametrize(
    "policy",
    [
        {"rule": "qualified_majority", "min_share": 0.9},
        {"rule": "weighted", "weights": {"west": 3}},
        {"rule": "per_class_threshold", "threshold": 0.5},
        {"rule": "trimmed", "trim": 0.1},
        {"rule": "staple"},
    ],
    ids=lambda policy: policy["rule"].replace("_", "-"),
)
def test_a_preview_is_what_the_rule_then_publishes(
    live: Federation, policy: dict[str, Any]
) -> None:
    rule = policy["rule"].replace("_", "-")
    held(live, f"before-{rule}", DIVIDED)
    found = asked(live, f"before-{rule}", **policy)
    held(live, f"after-{rule}", DIVIDED, consensus=policy)
    published = exported(live, f"after-{rule}")
    was = exported(live, f"before-{rule}")
    assert (found.round, found.rows) == (1, ROWS)
    assert list(found.labelled_rows) == [int((published == index).sum()) for index in range(3)]
    assert found.abstained_rows == (published == -1).sum()
    assert found.differing_rows == (published != was).sum()
    [closed] = live.show(f"after-{rule}").history
    assert list(found.agreement) == list(closed.agreement)
    # And nothing was published by looking.
    assert len(live.consensuses(f"before-{rule}")) == 1


def exported(live: Federation, task: str) -> npt.NDArray[np.int32]:
    async def call(link: Any) -> bytes:
        request = admin_pb2.ExportConsensusRequest(task=task)
        return b"".join([part.data async for part in link.admin.ExportConsensus(request)])

    return unpack(live.admin(call), INDEX)


def test_the_tasks_own_rule_differs_nowhere_and_others_must_fit(live: Federation) -> None:
    # Votes for three classes: every row is a tie.
    said = {"north": votes(0, 1, 2), "south": votes(1, 2, 0), "west": votes(2, 0, 1)}
    held(live, "tied", said)
    assert asked(live, "tied").differing_rows == 0
    # Ties fall as they did, whatever the rule.
    assert asked(live, "tied", rule="trimmed", trim=0).differing_rows == 0
    sentence = refused(PREVIEW_REFUSED, lambda: asked(live, "tied", rule="certainty_weighted"))
    assert "reads scored ballots, and these are index" in sentence
    weights = {"weights": {"nort": 3}, "rule": "weighted"}
    assert "weights name nort" in refused(PREVIEW_REFUSED, lambda: asked(live, "tied", **weights))
    refused(CONSENSUS_UNKNOWN, lambda: asked(live, "tied", number=2))
    nothing = admin_pb2.PreviewConsensusRequest(task="tied")
    call = refused(
        PREVIEW_REFUSED, lambda: live.admin(lambda link: link.admin.PreviewConsensus(nothing))
    )
    assert "`rule`" in call


def test_the_command_compares_every_rule_that_fits(
    live: Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 140)
    held(live, "all-rules", DIVIDED)
    capsys.readouterr()
    preview("all-rules", live.home, every=True)
    page = capsys.readouterr().out
    assert "Round 1 of all-rules, 61 rows, published by majority" in page
    for rule in ("majority", "qualified_majority 0.9", "per_class_threshold 0.3", "staple"):
        assert rule in page
    assert "certainty_weighted" not in page
    assert "weighted is left out" in page
    preview("all-rules", live.home, rule=RuleName.WEIGHTED, weight=["west=3"], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["published_by"] == "majority"
    [tried] = found["previews"]
    assert tried["policy"]["weights"] == {"west": 3}
    assert int(tried["differing_rows"]) > 0
    preview("all-rules", live.home, min_share=0.6, rule=RuleName.QUALIFIED_MAJORITY)
    page = capsys.readouterr().out
    assert "Agreement with it" in page
    assert re.search(r"qualified_majority 0.6 +61 +0 +0 ", page)
    with pytest.raises(ConfigurationError, match="--all"):
        preview("all-rules", live.home, every=True, rule=RuleName.STAPLE)


@pytest.mark.parametrize("method", ["PreviewConsensus", "ExportConsensus"])
def test_silos_may_neither_preview_nor_export(live: Federation, method: str) -> None:
    identity = live.silos["north"].identity()

    async def call() -> None:
        async with secure_channel(identity.coordinator_address, identity) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                if method == "PreviewConsensus":
                    await stub.PreviewConsensus(admin_pb2.PreviewConsensusRequest(task="plain"))
                else:
                    request = admin_pb2.ExportConsensusRequest(task="plain")
                    async for _ in stub.ExportConsensus(request):
                        pass
            except Exception as error:
                raise await translated(error, identity.coordinator_address, identity) from None

    assert method in refused(WRONG_ROLE, lambda: asyncio.run(call()))


# -- exports ----------------------------------------------------------------------------------------------


def test_an_export_has_the_definition_the_public_set_and_the_published_labels(
    live: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held(live, "exported", DIVIDED)
    out = tmp_path / "deep" / "folder"
    export("exported", live.home, out=out)
    assert "61 rows, " in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [
        "README.txt",
        "consensus.bin",
        "definition.json",
        "public-set",
    ]
    text = (out / "definition.json").read_text()
    definition = TaskDefinition.model_validate_json(text)
    assert definition.canonical() == text
    assert definition.digest == live.show("exported").task.digest
    content = (out / "public-set").read_bytes()
    assert hashlib.sha256(content).hexdigest() == definition.public_set
    assert inspect(out / "public-set")[0] == ROWS
    [stored] = live.consensuses("exported")
    assert (out / "consensus.bin").read_bytes() == stored
    said = (out / "README.txt").read_text()
    for value in (definition.digest, definition.public_set, digest(stored), "wards@1", "exported"):
        assert value in said
    # Again, after the file was damaged: it is mended.
    (out / "public-set").write_bytes(content[:-1])
    export("exported", live.home, out=out, round_number=1)
    assert (out / "public-set").read_bytes() == content


def test_an_export_of_claims_is_the_view_of_one_who_knows_all_classes(
    live: Federation, tmp_path: Path
) -> None:
    said = {"north": votes(0, 1), "south": votes(1, 1), "west": votes(0, 1)}
    held(live, "claimed", said, method="cofed", label_spaces=SPACES)
    export("claimed", live.home, out=tmp_path)
    labels = unpack((tmp_path / "consensus.bin").read_bytes(), INDEX)
    # In even rows a is claimed by both who know it, and b by one of three.
    assert labels.tolist() == votes(-1, 1).tolist()
    assert fetched(live, "west", "claimed").data == (tmp_path / "consensus.bin").read_bytes()


def test_a_folder_of_another_task_and_a_task_without_a_consensus_are_refused(
    live: Federation, tmp_path: Path
) -> None:
    held(live, "first", DIVIDED)
    held(live, "second", DIVIDED)
    export("first", live.home, out=tmp_path / "first")
    before = (tmp_path / "first" / "README.txt").read_text()
    with pytest.raises(ConfigurationError, match="another task"):
        export("second", live.home, out=tmp_path / "first")
    assert (tmp_path / "first" / "README.txt").read_text() == before
    start(live, "unfinished")
    refused(
        CONSENSUS_UNKNOWN,
        lambda: export("unfinished", live.home, out=tmp_path / "nothing"),
    )
    assert not (tmp_path / "nothing").exists()
