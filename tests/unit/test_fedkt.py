"""FedKT in the silo: the ballot stands for the silo's students, whose votes the paper counts at the server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_scenes import Kept, a_scope, dearest, every_ballot, rows_together
from seeded_bits import SeededBits

from coordinator.consensus.elect import Outcome
from coordinator.consensus.tally import Tally
from coordinator.consensus.ties import TieKey, ranks
from experiments.federation import FederationResult, Silo, define_task, run_federation
from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.methods.fedkt import (
    draw_shards,
    majority,
    student_labels,
)
from silo_agent.trainer.methods.local_learner import LocalLearner
from silo_agent.trainer.methods.registry import method_for
from silo_agent.trainer.models.catalogue import LearnerSpec, build
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.models.teachers import agreed
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.mechanisms.catalogue import build as build_mechanism
from silo_agent.trainer.privacy.mechanisms.protocol import Scope, SiloRound
from silo_agent.trainer.privacy.mechanisms.teacher_students import TeacherStudents
from silo_agent.trainer.privacy.mechanisms.teacher_votes import TeacherVotes
from silo_agent.trainer.privacy.settings import (
    PrivacySettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
    XorSettings,
)
from silo_agent.trainer.session import Session, SessionInputs, TaskStorage, assemble
from silo_agent.trainer.settings import TrainingSettings
from silo_agent.trainer.task_folder import Folder, TaskFolder
from wire.ballot import BallotShape, Encoding, unpack, unpack_one_hot
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.events import Event, Gaussian, Laplace, RandomizedResponse
from wire.task.methods import FedktPolicy

pytestmark = pytest.mark.slow

ROWS = 60
TREE = LearnerSpec(name="decision_tree")


def some_rows(count: int, classes: int, seed: int, apart: float = 1.5) -> Labelled:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, size=count)
    angles = 2 * np.pi * labels / classes
    corners = apart * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return Labelled(corners + draw.normal(size=(count, 2)), labels)


def co_training(
    classes: int, seed: int = 0, make: Callable[[int], Any] | None = None, count: int = 45
) -> CoTraining:
    return CoTraining(
        private=some_rows(count, classes, seed=10 + seed),
        public=some_rows(ROWS, classes, seed=1).features,
        build=make or (lambda number: build(TREE, classes, (2,), number)),
        local_steps=1,
        seed=seed,
    )


def a_federation(
    classes: int, partitions: int, silos: int = 4, privacy: Any = None, **settings: Any
) -> FederationResult:
    names = [f"silo-{index}" for index in range(silos)]
    public = some_rows(ROWS, classes, seed=1).features
    section = {"partitions": partitions, "teachers": 3, **settings.pop("fedkt", {})}
    definition = define_task(public, classes, names, method="fedkt", fedkt=section, **settings)
    members = {
        name: Silo(
            some_rows(45, classes, seed=10 + index),
            TrainingSettings(model=TREE, seed=index, privacy=privacy or PrivacySettings()),
        )
        for index, name in enumerate(names)
    }
    return run_federation(definition, members, public, home_models=False)


# -- the paper's server -----------------------------------------------------------------------------


def local_learner(training: CoTraining, patients: np.ndarray | None = None) -> LocalLearner:
    whose = np.arange(len(training.private)) if patients is None else patients
    return LocalLearner(training, whose, None)


def papers_counts(students: list[np.ndarray], classes: int) -> np.ndarray:
    """Algorithm 1, lines 14-19, by a server that has the (s, rows) labels of every silo's students."""
    counts = np.zeros((ROWS, classes), dtype=int)
    for row in range(ROWS):
        for party in students:
            for one in range(classes):
                if np.sum(party[:, row] == one) == len(party):
                    counts[row, one] += len(party)
    return counts


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_counts_and_consensus_are_those_of_a_server_that_has_all_students(
    classes: int, partitions: int
) -> None:
    result = a_federation(classes, partitions)
    definition, (ballots,) = result.definition, result.ballots
    policy = FedktPolicy(partitions=partitions, teachers=3)
    students = [
        student_labels(local_learner(co_training(classes, seed)), policy, classes)
        for seed in range(4)
    ]
    expected = papers_counts(students, classes)

    tally = Tally(definition.shape)
    for payload in ballots.values():
        tally.add(payload, definition.votes_per_ballot)

    assert definition.votes_per_ballot == partitions
    assert np.array_equal(tally.counts(), expected)
    assert np.array_equal(result.labels(), elected(result.outcomes[0], expected, definition.digest))
    if partitions > 1:
        assert any(np.any(unpack(one, definition.shape) == -1) for one in ballots.values())


def elected(outcome: Outcome, counts: np.ndarray, digest: str) -> np.ndarray:
    """argmax of the counts, ties by the published rule; no label where nobody voted."""
    seeds = TieKey.of(digest, 1).row_seeds(np.arange(ROWS))
    tie_breakers = np.stack([ranks(seeds, one) for one in range(counts.shape[1])], axis=1)
    best = counts == counts.max(axis=1, keepdims=True)
    return np.where(counts.any(axis=1), np.where(best, tie_breakers, 0).argmax(axis=1), -1)


def test_a_silo_says_the_same_again_and_another_seed_says_something_else() -> None:
    first, again = a_federation(3, 2).ballots[0], a_federation(3, 2).ballots[0]

    assert first == again
    one, other = (
        agreed(student_labels(local_learner(replace(co_training(3), seed=seed)), FedktPolicy(), 3))
        for seed in (0, 7)
    )
    assert not np.array_equal(one, other)


# -- teachers and students --------------------------------------------------------------------------


def test_whole_patients_are_dealt_alike_and_anew_for_every_partition() -> None:
    patients = np.arange(10)
    deals = np.array([draw_shards(patients, 4, 0, partition) for partition in range(400)])

    assert np.allclose(np.bincount(deals.ravel()) / deals.size, 0.25, atol=0.04)
    meet = np.mean(deals[:, 0] == deals[:, 1])
    assert meet == pytest.approx(1 / 4, abs=5 * math.sqrt(3 / 16 / 400))
    assert np.array_equal(deals[3], draw_shards(patients, 4, 0, 3))
    assert not np.array_equal(deals[3], draw_shards(patients, 4, 1, 3))


class Watching:
    """Notes what it is fitted on; says 1 of every row."""

    lessons: list[np.ndarray]

    def __init__(self, lessons: list[np.ndarray]) -> None:
        self.lessons = lessons

    def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
        self.lessons.append(rows[:, 0])

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.ones(len(rows), dtype=np.int64)


def test_a_teacher_has_all_rows_of_its_patients_and_a_student_none() -> None:
    lessons: list[np.ndarray] = []
    patients = np.array([0, 1, 2, 0, 3, 4, 5, 4])
    private = Labelled(np.arange(8.0)[:, None], np.zeros(8, dtype=np.int64))
    public = np.arange(100.0, 104.0)[:, None]
    training = CoTraining(private, public, lambda _: Watching(lessons), 1, 0)

    policy = FedktPolicy(partitions=2, teachers=3)
    labels = agreed(student_labels(local_learner(training, patients), policy, 2))

    assert labels.tolist() == [1, 1, 1, 1]
    assert len(lessons) == 2 * (3 + 1)
    for partition in range(2):
        *teachers, student = lessons[4 * partition : 4 * partition + 4]
        shards = draw_shards(patients, 3, 0, partition)
        assert [sorted(rows) for rows in teachers] == [
            np.flatnonzero(shards == teacher).tolist() for teacher in range(3)
        ]
        assert student.tolist() == public[:, 0].tolist()


def test_a_teacher_that_cannot_learn_casts_no_vote() -> None:
    class Picky:
        def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
            # Teachers have a row each; the one of row 0 fails, and the student has all of U.
            if len(rows) == 1 and rows[0, 0] == 0:
                raise ValueError("too few rows")
            self.says = labels[0] if len(rows) == 1 else np.bincount(labels).argmax()

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.full(len(rows), self.says)

    def said(labels: list[int]) -> list[int]:
        private = Labelled(np.arange(float(len(labels)))[:, None], np.array(labels))
        training = CoTraining(private, np.zeros((3, 1)) + 9, lambda _: Picky(), 1, 0)
        policy = FedktPolicy(partitions=1, teachers=len(labels))
        return agreed(student_labels(local_learner(training), policy, 3)).tolist()

    assert said([0, 2]) == [2, 2, 2]
    assert said([0]) == [-1, -1, -1]


def test_ties_among_teachers_prefer_no_class() -> None:
    labels = majority(np.tile([[2, 0, 2]], (4000, 1)), seed=0, partition=0)

    assert set(labels) == {0, 2}
    assert np.mean(labels == 0) == pytest.approx(0.5, abs=0.04)
    assert majority(np.zeros((2, 3), dtype=np.int64), 0, 0).tolist() == [-1, -1]


def test_a_label_needs_every_student() -> None:
    students = np.array([[0, 1, 2, -1], [0, 2, 2, -1], [0, 1, -1, -1]])

    assert agreed(students).tolist() == [0, -1, -1, -1]


def test_leaving_a_patient_out_moves_nobody_else() -> None:
    learner, policy = local_learner(co_training(3)), FedktPolicy(partitions=1, teachers=9)
    whole = student_labels(learner, policy, 3)

    changed = [
        float(np.mean(whole != student_labels(learner.without(unit), policy, 3)))
        for unit in range(45)
    ]
    # One of nine teachers has a patient less.
    assert 0 < max(changed) < 0.4


def test_networks_are_fitted_from_nothing_as_often_as_they_are_needed() -> None:
    names = ["a", "b"]
    public = some_rows(ROWS, 3, seed=1, apart=4).features
    network = LearnerSpec(
        name="torch_mlp", parameters={"hidden": [8], "fit_steps": 40, "learning_rate": 0.05}
    )
    few = {"partitions": 1, "teachers": 2}
    definition = define_task(public, 3, names, method="fedkt", local_steps=1, fedkt=few)
    members = {
        name: Silo(some_rows(90, 3, seed=10 + index, apart=4), TrainingSettings(model=network))
        for index, name in enumerate(names)
    }

    result = run_federation(definition, members, public)

    truth = some_rows(ROWS, 3, seed=1, apart=4).labels
    voted = result.labels() != -1
    assert np.mean(result.labels()[voted] == truth[voted]) > 0.85
    assert all(
        np.mean(model.predict(public) == truth) > 0.85 for model in result.home_models.values()
    )


# -- L2: noise on the teachers' votes ---------------------------------------------------------------

DELTA = 1e-5
SCOPE = Scope(BallotShape(500, 3, Encoding.INDEX), 1, 8.0, DELTA, Unit.PATIENT, 300)


def a_side(kept: Kept | None = None, make: Callable[[int], Any] | None = None) -> SiloRound:
    def never(*_: object) -> Any:
        raise AssertionError("teachers vote, not the silo's own learner")

    return SiloRound(
        private=some_rows(300, 3, seed=2, apart=3),
        patients=np.arange(300),
        public=some_rows(500, 3, seed=3, apart=3).features,
        classes=3,
        round_number=1,
        relabel_without=never,
        build=make or (lambda seed: build(TREE, 3, (2,), seed)),
        kept=kept or Kept(),
    )


def level_two(partitions: int, **settings: Any) -> TeacherStudents:
    definition = define_task(
        np.zeros((500, 2)),
        3,
        ["a", "b"],
        method="fedkt",
        fedkt={"level": "L2", "partitions": partitions},
        privacy={"mechanisms": ["teacher_votes"]},
    )
    privacy = PrivacySettings(mechanism=TeacherVotesSettings(teachers=7, **settings))
    made = method_for(definition).mechanism(privacy, SCOPE)
    assert isinstance(made, TeacherStudents)
    return made


@pytest.mark.parametrize(
    ("noise", "partitions"),
    [("gaussian", 1), ("gaussian", 3), ("confident", 3), ("laplace", 3)],
)
def test_partitions_share_the_budget_and_every_one_is_charged(noise: Any, partitions: int) -> None:
    # Laplace is slow to calibrate; a few given rows will do.
    mechanism = level_two(partitions, noise=noise, rows=8 if noise == "laplace" else None)
    plan = mechanism.plan
    offer = mechanism.offer(a_side())

    one: tuple[Event, ...] = (
        Gaussian(sensitivity=math.sqrt(2), scale=plan.scale, count=plan.rows),
    )
    if noise == "laplace":
        one = (Laplace(sensitivity=2.0, scale=plan.scale, count=plan.rows),)
    if noise == "confident":
        one += (Gaussian(sensitivity=1.0, scale=plan.check_scale, count=plan.checks),)
    cost = epsilon(offer.events, DELTA)
    assert cost == pytest.approx(epsilon(one * partitions, DELTA), rel=1e-6)
    assert cost == offer.declaration.epsilon <= 8.0
    assert cost > 7.0
    assert (plan.teachers, plan.partitions) == (25, partitions)
    assert offer.parameters["teachers"] == 25
    assert offer.parameters["partitions"] == partitions
    assert offer.parameters["teachers_set_by"] == "task"


def test_students_label_what_was_never_asked_and_agree_or_abstain() -> None:
    mechanism = level_two(2)

    labels = mechanism.vote(a_side(), SeededBits(1)).labels

    assert labels is not None
    voted = labels != -1
    truth = some_rows(500, 3, seed=3, apart=3).labels
    assert mechanism.plan.rows < 100 < np.sum(voted) < 500
    assert np.mean(labels[voted] == truth[voted]) > 0.8


def test_a_students_ballot_is_made_once_whatever_silo_yaml_says_later() -> None:
    def exhausted(seed: int) -> Any:
        raise AssertionError("nothing is trained again")

    kept = Kept()
    first = level_two(2)
    offered = first.offer(a_side(kept))
    labels = first.vote(a_side(kept), SeededBits(1)).labels

    later = level_two(2, rows=1)
    again = later.offer(a_side(kept))

    assert later.plan != first.plan
    assert (again.events, again.declaration) == (offered.events, offered.declaration)
    assert np.array_equal(later.vote(a_side(kept, exhausted), SeededBits(2)).labels, labels)


def test_without_an_answer_there_is_no_student() -> None:
    class Lost:
        def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
            raise ValueError("nothing to learn from")

        def predict(self, rows: np.ndarray) -> np.ndarray:
            raise AssertionError

    labels = level_two(1).vote(a_side(make=lambda _: Lost()), SeededBits(1)).labels

    assert labels is not None
    assert set(labels) == {-1}


def test_outside_fedkt_teachers_are_silo_yamls_and_nothing_is_kept() -> None:
    mechanism = build_mechanism(TeacherVotesSettings(teachers=40), SCOPE)
    kept = Kept()
    labels = mechanism.vote(a_side(kept), SeededBits(1)).labels

    assert isinstance(mechanism, TeacherVotes)
    assert mechanism.plan.teachers == 40
    assert np.sum(labels != -1) == mechanism.plan.rows
    assert not kept.content
    assert "partitions" not in mechanism.offer(a_side(kept)).parameters


def test_a_task_of_level_two_is_charged_in_every_silos_ledger() -> None:
    public = some_rows(ROWS, 2, seed=1).features
    names = ["a", "b"]
    definition = define_task(
        public,
        2,
        names,
        method="fedkt",
        fedkt={"level": "L2", "partitions": 2, "teachers": 20},
        privacy={"mechanisms": ["teacher_votes"]},
    )
    privacy = PrivacySettings(mechanism=TeacherVotesSettings(), epsilon=6.0)
    members = {
        name: Silo(
            some_rows(200, 2, seed=10 + index),
            TrainingSettings(model=TREE, seed=index, privacy=privacy),
        )
        for index, name in enumerate(names)
    }

    result = run_federation(definition, members, public, home_models=False)

    assert all(5.0 < spent <= 6.0 for spent in result.spent.values())
    assert np.mean(result.labels() != -1) > 0.5


def test_a_trainer_that_dies_before_its_ballot_is_kept_pays_for_the_same_one(
    tmp_path: Path,
) -> None:
    class Dying(TaskFolder):
        def keep_ballot(self, number: int, ballot: bytes, record: bytes) -> None:
            raise KeyboardInterrupt

    public = some_rows(ROWS, 2, seed=1).features
    definition = define_task(
        public,
        2,
        ["a"],
        method="fedkt",
        rounds={"quorum": 1},
        fedkt={"level": "L2", "partitions": 2},
        privacy={"mechanisms": ["teacher_votes"]},
    )
    ledger = Ledger(tmp_path / "ledger.db", tmp_path / "witness.json", lambda: datetime.now(UTC))

    def session(folder: Folder, budget: float, seed: int) -> Session:
        privacy = PrivacySettings(mechanism=TeacherVotesSettings(), epsilon=budget)
        return assemble(
            SessionInputs(
                definition=definition,
                settings=TrainingSettings(model=TREE, privacy=privacy),
                private=some_rows(200, 2, seed=10),
                public=public,
                patients=np.arange(200),
                unit=Unit.PATIENT,
                storage=TaskStorage(folder, ledger, SeededBits(seed)),
            )
        )

    with pytest.raises(KeyboardInterrupt):
        session(Dying(tmp_path, definition.digest), 6.0, seed=1).vote(1, None)
    assert not ledger.releases()
    kept = json.loads(TaskFolder(tmp_path, definition.digest).get("teachers-students") or b"")

    # Meanwhile silo.yaml allows more: what was drawn under the old noise is charged as that.
    ballot = session(TaskFolder(tmp_path, definition.digest), 8.0, seed=2).vote(1, None)

    assert unpack(ballot.data, definition.shape).tolist() == kept["labels"]
    (release,) = ledger.releases()
    assert release.parameters["scale"] == kept["plan"]["scale"]
    assert 5.0 < epsilon(release.events, DELTA) <= 6.0


# -- other mechanisms meet abstentions --------------------------------------------------------------


def test_flipped_bits_hide_whether_a_silo_abstained() -> None:
    mechanism = build_mechanism(XorSettings(flip=0.2), a_scope(1, 3))
    (event,) = mechanism.offer(a_side()).events
    row_law = {
        label: {
            bits: math.prod(
                0.8 if bit == (place == label) else 0.2 for place, bit in enumerate(bits)
            )
            for bits in every_pattern(3)
        }
        for label in range(-1, 3)
    }
    laws = {labels: rows_together(row_law, labels) for labels in every_ballot(1, 3)}

    assert isinstance(event, RandomizedResponse)
    assert dearest(laws, 1) <= event.count * event.epsilon * (1 + 1e-9)
    # From a label to an abstention one bit changes; the ledger has two.
    assert dearest({(0,): laws[(0,)], (-1,): laws[(-1,)]}, 1) == pytest.approx(math.log(4))


def every_pattern(classes: int) -> list[tuple[int, ...]]:
    return [tuple(number >> place & 1 for place in range(classes)) for number in range(2**classes)]


@pytest.mark.parametrize(
    ("mechanism", "answers"),
    [
        (XorSettings(flip=0.3), 2 * ROWS),
        (RandomizedResponseSettings(row_epsilon=1.0), ROWS),
    ],
)
def test_every_row_is_charged_and_answered_whether_the_students_agree_or_not(
    mechanism: Any, answers: int
) -> None:
    plain = a_federation(3, 3)
    result = a_federation(3, 3, privacy=PrivacySettings(mechanism=mechanism), encoding="one_hot")

    scope = a_scope(ROWS, 3)
    (event,) = build_mechanism(mechanism, scope).offer(a_side()).events
    assert isinstance(event, RandomizedResponse)
    assert event.count == answers
    assert all(spent == pytest.approx(epsilon([event], DELTA)) for spent in result.spent.values())
    silent = np.concatenate(
        [unpack(one, plain.definition.shape) == -1 for one in plain.ballots[0].values()]
    )
    answered = np.concatenate(
        [unpack_one_hot(one, result.definition.shape) for one in result.ballots[0].values()]
    )
    assert silent.sum() > 30
    # Silence is answered too: some ones where nothing was said, and not only in the first class.
    assert answered[silent].any(axis=0).all()
