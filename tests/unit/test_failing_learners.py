"""A learner that fails, or has nothing to learn from, makes a ballot all the same, which is paid for like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mechanism_scenes import Kept, a_scope, a_silo
from seeded_bits import SeededBits
from session_scenes import opened, packed, votes

from silo_agent.trainer.methods.local_learner import DiskFailed
from silo_agent.trainer.models.failures import LAST_FAILURE, checked_labels
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.models.teachers import fit_predict
from silo_agent.trainer.privacy.labellers.one_row import NO_ROW, one_row_each
from silo_agent.trainer.privacy.ledger.release import Kind
from silo_agent.trainer.privacy.mechanisms import teacher_votes
from silo_agent.trainer.privacy.mechanisms.private_labeller import PrivateLabeller
from silo_agent.trainer.privacy.mechanisms.teacher_votes import TeacherVotes
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings, TeacherVotesSettings
from silo_agent.trainer.session import Session
from wire.ballot import Encoding

pytestmark = pytest.mark.slow

LABELS = ("ill", "well")
PUBLIC = pd.DataFrame({"age": np.linspace(20, 80, 12)})
PRIVATE = pd.DataFrame({"age": np.linspace(25, 75, 20), "label": ["ill"] * 10 + ["well"] * 10})
NOISY = {"privacy": {"mechanism": "randomized_response", "epsilon": 1}}


class Fails:
    """A learner that cannot be fitted, and whose message quotes a patient."""

    def fit(self, X: Any, y: Any) -> None:
        raise ZeroDivisionError("patient smith")

    def predict(self, X: Any) -> Any:
        raise AssertionError("never fitted")


class Babbles(Fails):
    """Fits, and answers with something that is no label."""

    answer: Any = np.full((12, 2), 0.5)

    def fit(self, X: Any, y: Any) -> None:
        pass

    def predict(self, X: Any) -> Any:
        return self.answer


class BabblesNumbers(Babbles):
    answer = np.full(12, np.nan)


class Stumbles:
    """A learner that continues, until it fails."""

    def advance(self, private: Labelled, pseudo: Labelled | None, steps: int, seed: int) -> None:
        raise MemoryError

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X), dtype=np.int64)


def session(folder: Path, learner: type, private: pd.DataFrame = PRIVATE, **given: Any) -> Session:
    model = f"{learner.__module__}:{learner.__name__}"
    rounds = {"max_rounds": 3, "quorum": 2}
    made, misfits = opened(
        folder, PUBLIC, private, LABELS, {"model": model, **given}, rounds=rounds
    )
    assert made is not None, misfits
    return made


@pytest.mark.parametrize("learner", [Fails, Babbles, BabblesNumbers, Stumbles])
def test_without_noise_a_learner_that_fails_abstains(tmp_path: Path, learner: type) -> None:
    made = session(tmp_path, learner)
    assert votes(made, 1).tolist() == [-1] * len(PUBLIC)
    [release] = made.releaser.ledger.releases()
    assert (release.kind, release.reason) == (Kind.BALLOT, "")
    said = (made.folder.get(LAST_FAILURE) or b"").decode()
    assert said.startswith("the training of round 1 failed with ")
    assert "smith" not in said


def test_it_costs_and_declares_what_a_success_does(tmp_path: Path) -> None:
    made = session(tmp_path / "a", Fails, **NOISY)
    fine, _ = opened(
        tmp_path / "b",
        PUBLIC,
        PRIVATE,
        LABELS,
        {"model": "decision_tree", **NOISY},
        rounds={"max_rounds": 3, "quorum": 2},
    )
    assert fine is not None
    for number in (1, 2):
        failed, succeeded = made.vote(number, None), fine.vote(number, None)
        assert (failed.declaration, failed.abstained) == (succeeded.declaration, "")
    assert made.releaser.spent() == fine.releaser.spent() > 0
    # What noise makes of abstentions is no abstention.
    assert set(votes(made, 1).tolist()) == {0, 1}


def test_the_end_of_a_task_is_the_same_and_leaves_no_model(tmp_path: Path) -> None:
    made = session(tmp_path, Fails)
    made.finish(3, packed(made, np.zeros(len(PUBLIC), dtype=int)))
    assert made.folder.model_path() is None
    assert b"the final training failed" in (made.folder.get(LAST_FAILURE) or b"")


def test_a_full_disk_is_no_failure_of_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(tmp_path, Stumbles)
    monkeypatch.setattr(Stumbles, "advance", lambda *arguments: None)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(made.folder), "keep_learner", full)
    with pytest.raises(DiskFailed):
        made.vote(1, None)
    assert made.releaser.ledger.releases() == ()


@pytest.mark.parametrize("labels", [["unclear"] * 20, ["ill"] * 20])
@pytest.mark.parametrize("model", ["decision_tree", "torch_mlp"])
def test_patients_are_counted_whatever_their_labels(
    tmp_path: Path, labels: list[str], model: str
) -> None:
    if model.startswith("torch"):
        pytest.importorskip("torch")
    made, misfits = opened(
        tmp_path, PUBLIC, PRIVATE.assign(label=labels), LABELS, {"model": model, **NOISY}
    )
    assert made is not None, misfits
    assert made.releaser.scope.units == len(PRIVATE)
    assert made.vote(1, None).abstained == ""


def test_a_head_that_cannot_be_trained_is_paid_for_once_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism = PrivateLabeller(
        PrivateLabellerSettings(), a_scope(5, 2, epsilon=1.0, encoding=Encoding.SCORED)
    )

    def fail(*arguments: object) -> None:
        raise FloatingPointError("patient smith")

    monkeypatch.setattr(type(mechanism._trainer), "train", fail)
    kept = Kept()
    silo = a_silo([0] * 5, kept=kept)
    price = mechanism.offer(silo)
    vote = mechanism.vote(silo, SeededBits(0))
    assert vote.labels is not None
    assert vote.scores is not None
    assert len(set(vote.labels.tolist())) == 1
    assert not vote.scores.any()
    # In later rounds it is the model that was paid for, as any other would be.
    assert mechanism.offer(silo).once == price.once
    assert b"private labeller failed with FloatingPointError" in kept.content[LAST_FAILURE]


def test_teachers_are_dealt_all_patients_also_those_without_a_usable_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def watch(build: Any, private: Labelled, shards: Any, *more: Any) -> Any:
        seen.append(shards)
        return np.zeros((len(more[0]), more[1]), dtype=np.int64)

    monkeypatch.setattr(teacher_votes, "count_votes", watch)
    settings = TeacherVotesSettings(teachers=4, rows=2)
    mechanism = TeacherVotes(settings, a_scope(5, 2, epsilon=8.0, units=20))
    labels = np.arange(20) % 2
    whole = replace(
        a_silo([0] * 5),
        private=Labelled(np.zeros((20, 1)), labels),
        patients=np.arange(20),
    )
    # The last patient's label is foreign: its row is left out, and nobody else is dealt differently.
    fewer = replace(whole, private=whole.private[np.arange(19)], patients=whole.patients[:19])
    for silo in (whole, fewer):
        mechanism.vote(silo, SeededBits(5))
    assert np.array_equal(seen[0][:19], seen[1])


def test_one_row_each_has_a_place_for_everyone() -> None:
    patients = np.array([0, 2, 2, 3])
    drawn = one_row_each(patients, 5, SeededBits(1), times=50)
    assert drawn.shape == (50, 5)
    assert (drawn[:, [0, 2]] == [0, 3]).all()
    assert set(drawn[:, 1].tolist()) == {1, 2}
    assert (drawn[:, 3:] == NO_ROW).all()
    assert (one_row_each(np.empty(0, dtype=np.int64), 3, SeededBits(1)) == NO_ROW).all()


@pytest.mark.parametrize("learner", [Fails, Babbles, BabblesNumbers])
def test_a_teacher_that_fails_in_any_way_casts_no_vote(learner: type) -> None:
    rows = Labelled(np.zeros((4, 1)), np.array([0, 1, 0, 1]))
    assert fit_predict(learner(), rows, np.zeros((12, 1)), 0, 2).tolist() == [-1] * 12


@pytest.mark.parametrize("said", [[0.5, 0], [2, 0], [-2, 0], [0], ["a", "b"], [np.nan, 0]])
def test_labels_are_class_indices_one_for_each_row(said: Any) -> None:
    with pytest.raises(ValueError, match="a learner says"):
        checked_labels(said, 2, 2)
    assert checked_labels([1.0, -1], 2, 2).tolist() == [1, -1]
