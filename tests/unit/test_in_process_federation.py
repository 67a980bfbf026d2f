"""The federation in one process: who takes part, what is told of every round, what a recount gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.consensus.elect import Outcome
from experiments.federation import (
    FederationResult,
    Silo,
    define_task,
    make_silos,
    public_set_digest,
    run_federation,
    silo_names,
)
from experiments.federation.memory_folder import MemoryFolder
from experiments.federation.silo import SiloCannotTakePart
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.settings import (
    PrivacySettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
)
from silo_agent.trainer.settings import TrainingSettings
from silo_agent.trainer.task_folder import Folder, TaskFolder
from wire.ballot import ABSTAIN
from wire.task.consensus_policy import ConsensusPolicy, RuleName
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

TREE = LearnerSpec(name="decision_tree")
NAMES = silo_names(3)
ROUNDS = 2


def some_rows(count: int, seed: int) -> Labelled:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, count)
    return Labelled(labels[:, None] + draw.normal(0, 0.7, (count, 2)), labels)


PUBLIC = some_rows(60, seed=0).features


def the_task() -> TaskDefinition:
    return define_task(PUBLIC, 3, NAMES, rounds={"max_rounds": ROUNDS})


def the_silos(privacy: PrivacySettings | None = None) -> dict[str, Silo]:
    private = [some_rows(40, seed) for seed in (1, 2, 3)]
    settings = TrainingSettings(model=TREE, privacy=privacy or PrivacySettings())
    return make_silos(NAMES, private, lambda _: settings)


def run(**options: object) -> FederationResult:
    return run_federation(the_task(), the_silos(), PUBLIC, **options)  # type: ignore[arg-type]


class TestTask:
    def test_classes_are_numbered_unless_they_have_names(self) -> None:
        assert the_task().labels == ("0", "1", "2")
        assert define_task(PUBLIC, ["ill", "well"], NAMES).labels == ("ill", "well")

    def test_everyone_votes_in_every_round(self) -> None:
        rounds = the_task().rounds
        assert (rounds.max_rounds, rounds.quorum, rounds.stop_patience) == (ROUNDS, 3, 0)

    def test_other_public_rows_are_another_set(self) -> None:
        assert public_set_digest(PUBLIC) == public_set_digest(PUBLIC.copy())
        assert public_set_digest(PUBLIC) != public_set_digest(PUBLIC[::-1])


class TestSilos:
    def test_each_has_its_own_settings_and_patients(self) -> None:
        owners = [np.array([index] * 40) for index in range(3)]
        silos = make_silos(
            NAMES,
            [some_rows(40, 1)] * 3,
            lambda index: TrainingSettings(model=TREE, seed=index),
            owners,
        )
        assert [silo.settings.seed for silo in silos.values()] == [0, 1, 2]
        pairs = zip(silos.values(), owners, strict=True)
        assert all(silo.patients is owner for silo, owner in pairs)

    def test_names_sort_as_their_numbers_do(self) -> None:
        assert sorted(silo_names(120)) == silo_names(120)


class TestRounds:
    def test_every_silo_votes_and_every_round_is_told(self) -> None:
        told: list[tuple[int, Outcome]] = []
        result = run(on_round=lambda number, outcome: told.append((number, outcome)))
        assert told == list(enumerate(result.outcomes, start=1))
        assert [list(ballots) for ballots in result.ballots] == [NAMES] * ROUNDS
        assert list(result.home_models) == list(result.spent) == NAMES

    def test_the_order_of_the_silos_changes_nothing(self) -> None:
        silos = dict(reversed(the_silos().items()))
        result = run_federation(the_task(), silos, PUBLIC, home_models=False)
        assert result.ballots == run(home_models=False).ballots

    def test_the_consensus_of_a_round_is_what_the_next_one_learns_from(self) -> None:
        labels = run(home_models=False).outcomes[0].labels()
        grown = {
            name: Silo(
                Labelled(
                    np.concatenate([silo.private.features, PUBLIC]),
                    np.concatenate([silo.private.labels, labels]).astype(np.int64),
                ),
                silo.settings,
            )
            for name, silo in the_silos().items()
        }
        once = define_task(PUBLIC, 3, NAMES, rounds={"max_rounds": 1})
        first = run_federation(once, grown, PUBLIC, home_models=False).ballots[0]
        assert run(home_models=False).ballots[1] == first

    def test_noise_follows_from_seed_and_name(self) -> None:
        noise = PrivacySettings(mechanism=RandomizedResponseSettings(row_epsilon=0.5))
        first, again = (
            run_federation(the_task(), the_silos(noise), PUBLIC, home_models=False).ballots
            for _ in range(2)
        )
        assert first == again
        same = dict.fromkeys(NAMES, the_silos(noise)[NAMES[0]])
        cast = run_federation(the_task(), same, PUBLIC, home_models=False).ballots[0]
        assert len(set(cast.values())) == len(NAMES)


class TestRecount:
    def test_the_tasks_own_rule_gives_its_consensus_again(self) -> None:
        result = run(home_models=False)
        assert np.array_equal(
            result.recounted(ConsensusPolicy()), result.outcomes[0].labels().astype(np.int64)
        )

    def test_a_stricter_rule_labels_fewer_rows(self) -> None:
        result = run(home_models=False)
        unanimous = ConsensusPolicy(rule=RuleName.QUALIFIED_MAJORITY, min_share=1.0)
        labels = result.recounted(unanimous)
        agreed = labels != ABSTAIN
        assert 0 < agreed.sum() < len(labels)
        assert np.array_equal(labels[agreed], result.outcomes[0].labels()[agreed])


class TestAbsence:
    BROKE = PrivacySettings(mechanism=TeacherVotesSettings(), epsilon=0.05)

    def test_a_silo_that_cannot_serve_the_task_ends_the_run_by_name(self) -> None:
        silos = the_silos() | {NAMES[1]: the_silos(self.BROKE)[NAMES[1]]}
        with pytest.raises(SiloCannotTakePart, match=f"{NAMES[1]} cannot take part: "):
            run_federation(the_task(), silos, PUBLIC)

    def test_where_that_is_allowed_the_others_vote_without_it(self) -> None:
        silos = the_silos() | {NAMES[1]: the_silos(self.BROKE)[NAMES[1]]}
        result = run_federation(the_task(), silos, PUBLIC, absent_allowed=True)
        assert list(result.absent) == [NAMES[1]]
        assert result.absent[NAMES[1]]
        present = [NAMES[0], NAMES[2]]
        assert [list(ballots) for ballots in result.ballots] == [present] * ROUNDS
        assert list(result.home_models) == list(result.spent) == present

    def test_no_round_is_held_for_nobody(self) -> None:
        result = run_federation(the_task(), the_silos(self.BROKE), PUBLIC, absent_allowed=True)
        assert list(result.absent) == NAMES
        assert (result.outcomes, result.ballots) == ((), ())
        assert (result.labels() == ABSTAIN).all()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_folder_in_memory_keeps_what_one_on_disk_keeps(kind: str, tmp_path: Path) -> None:
    folder: Folder = MemoryFolder() if kind == "memory" else TaskFolder(tmp_path, "0" * 64)
    assert folder.rounds_voted() == ()
    assert folder.ballot(1) is folder.kept_ballot(1) is folder.get("head") is None
    assert folder.learner(1) is folder.latest_learner(2) is folder.model_path() is None
    folder.keep_ballot(1, b"ballot", b"slip")
    folder.keep_ballot(3, b"later", b"slip 3")
    folder.put("head", b"weights")
    folder.keep_learner(1, "first")
    folder.keep_learner(2, "second")
    assert folder.rounds_voted() == (1, 3)
    assert (folder.ballot(1), folder.kept_ballot(3)) == (b"ballot", (b"later", b"slip 3"))
    assert folder.get("head") == b"weights"
    assert (folder.learner(2), folder.learner(3)) == ("second", None)
    assert folder.latest_learner(3) == "second"
