"""A trainer killed with -9 anywhere between drawing noise and handing out: one ballot, paid for once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from coordinator.public_sets.convert import convert
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from silo_agent.trainer.task_folder import TaskFolder
from wire.ballot import digest
from wire.privacy.declaration import MechanismName, Unit
from wire.runtime.crash_points import BUDGET_POINTS, VARIABLE
from wire.task.definition import TaskDefinition

ROWS = 40
SCRIPT = Path(__file__).with_name("voting_once.py")
POINTS = ("vote-asked", "ballot-made", "ballot-kept", "ballot-paying", "ballot-paid")
MADE, PAID = ("ballot-kept", "ballot-paying", "ballot-paid"), ("ballot-paid",)
TEACHERS = {"name": "teacher_votes", "teachers": 3, "rows": 9}


class Trainer:
    """A silo with one task, whose every vote is a process of its own."""

    def __init__(
        self, folder: Path, mechanism: object, method: str = "fedct", **privacy: object
    ) -> None:
        self.home = SiloHome(folder)
        values = np.random.default_rng(1).normal(size=(60, 2))
        rows = "".join(f"{a:.6f},{b:.6f},{'ill' if a + b > 0 else 'well'}\n" for a, b in values)
        (folder / "data.csv").write_text("age,marker,state\n" + rows)
        public = "".join(f"{a:.6f},{b:.6f}\n" for a, b in values[:ROWS] + 0.1)
        (folder / "public.csv").write_text("age,marker\n" + public)
        convert(folder / "public.csv", folder / "public")
        fedaux = method == "fedaux"
        definition = TaskDefinition.model_validate(
            {
                "name": "trial",
                "public_set": "ab" * 32,
                "rows": ROWS,
                "labels": ("well", "ill"),
                "method": method,
                **({"extractor": "ef" * 32} if fedaux else {"encoding": "one_hot"}),
            }
        )
        self.folder = TaskFolder(self.home.tasks, definition.digest)
        (folder / "task.json").write_text(definition.canonical())
        settings = {
            "data": {"path": "data.csv", "label": "state"},
            "model": "decision_tree",
            "privacy": {"mechanism": mechanism, "epsilon": 4, **privacy}
            if mechanism != "none"
            else {},
        }
        self.home.settings_file.write_text(yaml.safe_dump(settings))

    def vote(self, number: int, dying_at: str = "") -> bytes:
        """The ballot of a round, or b"" if the process died where it was told to."""
        done = subprocess.run(
            [sys.executable, SCRIPT, self.home.root, str(number)],
            env={**os.environ, VARIABLE: dying_at, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        expected = -signal.SIGKILL if dying_at else 0
        assert done.returncode == expected, done.stderr
        return bytes.fromhex(done.stdout)

    def refusal(self, number: int) -> str:
        """What a process says that hands out nothing."""
        done = subprocess.run(
            [sys.executable, SCRIPT, self.home.root, str(number)], capture_output=True, text=True
        )
        assert done.returncode == 1
        assert not done.stdout
        return done.stderr

    def releases(self) -> tuple[Release, ...]:
        home = self.home
        return Ledger(home.ledger, home.ledger_witness, lambda: datetime.now(UTC)).releases()


@pytest.mark.parametrize(
    ("mechanism", "points"),
    [
        ("xor", POINTS),
        # What they keep at home for later rounds comes before the ballot, and must not be paid for twice either.
        ("private_labeller", ("ballot-made", "ballot-paying")),
        (TEACHERS, ("ballot-made", "ballot-paying")),
    ],
    ids=["xor", "private_labeller", "teacher_votes"],
)
def test_killed_at_one_point_after_the_other_it_pays_once_for_one_ballot(
    tmp_path: Path, mechanism: object, points: tuple[str, ...]
) -> None:
    trainer = Trainer(tmp_path, mechanism)
    kept = set()
    for point in points:
        assert trainer.vote(1, dying_at=point) == b""
        ballot = trainer.folder.ballot(1)
        assert (ballot is not None) == (point in MADE)
        kept |= {ballot} - {None}
        assert len(trainer.releases()) == (point in PAID)
    # Once kept it is the same ballot, whatever happens.
    assert kept == {trainer.vote(1)}
    (release,) = trainer.releases()
    assert release.ballot_digest == digest(*kept)
    assert release.costs


@pytest.mark.parametrize(
    ("mechanism", "points"),
    [("none", POINTS), ("private_labeller", ("ballot-made", "ballot-kept", "ballot-paying"))],
)
def test_killed_anywhere_certainties_are_trained_once_and_paid_once(
    tmp_path: Path, mechanism: str, points: tuple[str, ...]
) -> None:
    """FEDAUX: killed before the model is kept, it was never offered; from then on it is the same, by the same name."""
    trainer = Trainer(tmp_path, mechanism, method="fedaux")
    models = set()
    for point in points:
        assert trainer.vote(1, dying_at=point) == b""
        models |= {trainer.folder.get("certainty-model")} - {None}
        assert len(trainer.releases()) == (point in PAID)
    first = trainer.vote(1)
    assert {trainer.folder.get("certainty-model")} == models
    # The next round is killed, too, and rests on what the first one paid for.
    trainer.vote(2, dying_at="ballot-paying")
    trainer.vote(2)
    paying, free = trainer.releases()
    assert paying.ballot_digest == digest(first)
    noisy = [event for event in paying.events if event.kind == "gaussian"]
    assert len(noisy) == len(paying.pays_for) == (1 if mechanism == "none" else 2)
    assert free.made_from == paying.made_from
    assert free.pays_for == ()
    assert not any(event.kind == "gaussian" for event in free.events)


def test_killed_while_an_abstention_takes_a_ballots_place_nothing_leaves_unpaid(
    tmp_path: Path,
) -> None:
    """The budget is spent elsewhere while a drawn ballot waits to be paid for."""
    trainer = Trainer(tmp_path, "xor", lifetime_epsilon=4)
    drawn = with_spent_budget(trainer)
    for point in (*BUDGET_POINTS, "ballot-paying", "ballot-paid"):
        assert trainer.vote(1, dying_at=point) == b""
        replaced = point != "ballot-overspent"
        assert (trainer.folder.ballot(1) == drawn) != replaced
    ballot = trainer.vote(1)
    assert not any(ballot), "a one-hot ballot without ones abstains everywhere"
    (release,) = (release for release in trainer.releases() if release.kind is Kind.ABSTENTION)
    assert release.ballot_digest == digest(ballot)
    assert "would be exceeded" in release.reason
    assert not release.costs


def with_spent_budget(trainer: Trainer) -> bytes:
    """A drawn ballot that is kept and can no longer be paid for."""
    trainer.vote(1, dying_at="ballot-kept")
    home = trainer.home
    ledger = Ledger(home.ledger, home.ledger_witness, lambda: datetime.now(UTC))
    ledger.write_off("private", 4, 1e-5, 0, "test", "spent elsewhere", Unit.ROW)
    drawn = trainer.folder.ballot(1)
    assert drawn is not None
    assert any(drawn)
    return drawn


def test_a_ballot_beside_the_record_of_an_abstention_is_never_handed_out(tmp_path: Path) -> None:
    """As versions that kept them in two files leave it when they are killed between the two."""
    trainer = Trainer(tmp_path, "xor", lifetime_epsilon=4)
    drawn = with_spent_budget(trainer)
    trainer.vote(1, dying_at="abstention-kept")
    kept = trainer.folder.kept_ballot(1)
    assert kept is not None
    (file,) = trainer.home.tasks.glob("*/ballot-000001.kept")
    file.unlink()
    file.with_suffix(".bin").write_bytes(drawn)
    file.with_name("slip-000001.json").write_bytes(kept[1])
    ballot = trainer.vote(1)
    assert not any(ballot)
    assert trainer.releases()[-1].ballot_digest == digest(ballot)


def test_a_paid_ballot_that_was_exchanged_on_the_disk_is_never_handed_out(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, "xor")
    trainer.vote(1)
    (file,) = trainer.home.tasks.glob("*/ballot-000001.kept")
    record, _, ballot = file.read_bytes().partition(b"\n")
    file.write_bytes(record + b"\n" + bytes(255 - byte for byte in ballot))
    assert "BALLOT_DAMAGED" in trainer.refusal(1)
    # One whose record is another round's, too.
    file.write_bytes(record + b"\n" + ballot)
    file.rename(file.with_name("ballot-000002.kept"))
    assert "BALLOT_DAMAGED" in trainer.refusal(2)


def test_an_unpaid_ballot_made_without_noise_does_not_leave_when_noise_was_approved(
    tmp_path: Path,
) -> None:
    trainer = Trainer(tmp_path, "none")
    trainer.vote(1, dying_at="ballot-kept")
    bare = trainer.folder.ballot(1)
    settings = yaml.safe_load(trainer.home.settings_file.read_text())
    settings["privacy"] = {"mechanism": {"name": "xor", "flip": 0.4}}
    trainer.home.settings_file.write_text(yaml.safe_dump(settings))
    assert trainer.vote(1) != bare
    (release,) = trainer.releases()
    assert release.mechanism is MechanismName.XOR


def test_a_paid_ballot_is_handed_out_as_it_is_whatever_silo_yaml_says_later(tmp_path: Path) -> None:
    """As long as no more privacy is promised than it has."""
    trainer = Trainer(tmp_path, "xor")
    paid = trainer.vote(1)
    settings = yaml.safe_load(trainer.home.settings_file.read_text())
    settings["seed"], settings["privacy"]["epsilon"] = 7, 5
    trainer.home.settings_file.write_text(yaml.safe_dump(settings))
    assert trainer.vote(1) == paid
    assert len(trainer.releases()) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"mechanism": {"name": "xor", "flip": 0.4}}),
        (
            {"mechanism": {"name": "xor", "paid_rounds": 1}, "epsilon": 4},
            {"mechanism": {"name": "xor", "paid_rounds": 1}, "epsilon": 2},
        ),
    ],
    ids=["without noise", "with less noise"],
)
def test_a_paid_ballot_stays_here_once_more_privacy_is_promised(
    tmp_path: Path, before: dict[str, object], after: dict[str, object]
) -> None:
    trainer = Trainer(tmp_path, "none")
    settings = yaml.safe_load(trainer.home.settings_file.read_text())

    def promise(privacy: dict[str, object]) -> None:
        trainer.home.settings_file.write_text(yaml.safe_dump(settings | {"privacy": privacy}))

    promise(before)
    weak = trainer.vote(1)
    promise(after)
    assert "BALLOT_OUTDATED" in trainer.refusal(1)
    # Nor is it what later rounds repeat.
    assert trainer.vote(2) != weak
    promise(before)
    assert trainer.vote(1) == weak
