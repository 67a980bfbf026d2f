"""The planner: made problems, simulation with the mechanisms' own code, the rule behind its advice, its faces."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from seeded_bits import SeededBits
from typer.testing import CliRunner

from silo_agent.trainer.cli.privacy import privacy
from silo_agent.trainer.planner.candidates import (
    CalibratedCandidate,
    Candidate,
    calibrate_candidate,
    candidates,
)
from silo_agent.trainer.planner.plan import Entry, Measured, Plan, Question
from silo_agent.trainer.planner.problem import learner, problem_of_accuracy, right
from silo_agent.trainer.planner.simulate import Effort, consensus_of, simulate
from silo_agent.trainer.planner.simulated_federation import SimulatedFederation
from silo_agent.trainer.planner.view import check_plot, print_plan, silo_yaml, write_plot
from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.mechanisms.xor import calibrated_flip
from silo_agent.trainer.privacy.settings import (
    NoneSettings,
    PrivacySettings,
    PrivateLabellerSettings,
    TeacherVotesSettings,
    XorSettings,
)
from silo_agent.trainer.privacy.silo_without_data import InMemoryFiles
from wire.ballot import ABSTAIN, BallotShape, Encoding, pack, pack_one_hot, pack_scored
from wire.errors import ConfigurationError
from wire.privacy.declaration import Unit

pytestmark = pytest.mark.slow

SMALL = Question(
    epsilon=8.0,
    delta=1e-5,
    rounds=1,
    public_rows=400,
    classes=4,
    silos=5,
    rows_per_silo=200,
    features=30,
)
ONCE = Effort(repetitions=1, rounds=1, teachers=125)


class Silent:
    def begin(self, doing: str, steps: int) -> None:
        pass

    def step(self) -> None:
        pass


def planned(question: Question, effort: Effort = ONCE) -> Plan:
    return simulate(question, effort, 1, SeededBits(7), Silent())


@pytest.fixture(scope="module")
def generous() -> Plan:
    return planned(SMALL, Effort(repetitions=3, rounds=1, teachers=125))


def named(plan: Plan, name: str) -> Entry:
    return next(entry for entry in plan.entries if entry.name == name)


# -- made problems ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("classes", "rows", "accuracy"), [(2, 100, 0.7), (10, 400, 0.8)])
def test_a_made_problem_is_as_hard_as_it_was_told(classes: int, rows: int, accuracy: float) -> None:
    problem = problem_of_accuracy(classes, 20, rows, accuracy, np.random.default_rng(0))
    rng = np.random.default_rng(99)
    found = []
    for _ in range(8):
        private, fresh = problem.draw(rows, rng), problem.draw(2000, rng)
        model = learner(classes, 20).fit(private.features, private.labels)
        found.append(right(model.predict(fresh.features), fresh.labels))
    assert np.mean(found) == pytest.approx(accuracy, abs=0.025)


def test_an_expert_no_better_than_chance_cannot_be_planned_for() -> None:
    with pytest.raises(ConfigurationError, match="guessing one of 2 classes is right 50"):
        problem_of_accuracy(2, 5, 100, 0.5, np.random.default_rng(0))


def test_an_expert_better_than_the_rows_can_teach_cannot_be_planned_for() -> None:
    with pytest.raises(ConfigurationError, match="5 rows cannot teach 20 classes"):
        problem_of_accuracy(20, 30, 5, 0.9, np.random.default_rng(0))


# -- decoding -----------------------------------------------------------------------------------------


def test_bits_are_summed_over_silos_not_decided_by_each() -> None:
    shape = BallotShape(1, 3, Encoding.ONE_HOT)
    both, one = np.array([[True, True, False]]), np.array([[False, True, False]])
    ballots = [pack_one_hot(both, shape), pack_one_hot(both, shape), pack_one_hot(one, shape)]
    for seed in range(20):
        assert consensus_of(ballots, shape, np.random.default_rng(seed)).tolist() == [1]


def test_certain_votes_outweigh_more_numerous_doubtful_ones() -> None:
    shape = BallotShape(1, 2, Encoding.SCORED)
    ballots = [pack_scored([0], [4], shape), pack_scored([0], [4], shape)]
    ballots.append(pack_scored([1], [15], shape))
    assert consensus_of(ballots, shape, np.random.default_rng(0)).tolist() == [1]


def test_a_row_without_votes_abstains_and_a_tie_is_drawn() -> None:
    shape = BallotShape(2, 2, Encoding.INDEX)
    ballots = [pack([0, ABSTAIN], shape), pack([1, ABSTAIN], shape)]
    found = [consensus_of(ballots, shape, np.random.default_rng(seed)) for seed in range(40)]
    assert {int(labels[0]) for labels in found} == {0, 1}
    assert {int(labels[1]) for labels in found} == {ABSTAIN}


# -- what the simulation finds ----------------------------------------------------------------------------


def test_xor_on_3000_rows_at_epsilon_a_tenth_is_chance_and_the_plan_says_so() -> None:
    issue = Question(
        epsilon=0.1,
        delta=0.0,
        rounds=1,
        public_rows=3000,
        classes=10,
        silos=5,
        rows_per_silo=100,
    )
    plan = planned(issue)
    xor = named(plan, "xor")
    assert xor.parameters["flip"] == pytest.approx(0.5 - 0.1 / (2 * 3000) / 4, abs=1e-9)
    assert "0.5 − 4.2e-06" in xor.noise
    assert xor.labels is not None
    assert xor.labels.mean == pytest.approx(0.1, abs=0.02)
    warning = next(one for one in plan.warnings if "xor" in one)
    assert warning.startswith(
        "With this budget xor is no better than guessing: every bit is flipped"
    )
    assert plan.recommended is None
    assert plan.advice.startswith("Do not federate with this budget")
    assert named(plan, "private_labeller").unfit == "Gaussian noise needs a δ above 0"


def test_with_a_generous_budget_the_private_labeller_is_taken(generous: Plan) -> None:
    best = generous.recommended
    assert best is not None
    assert best.name == "private_labeller"
    assert generous.advice.startswith("Take private_labeller: at ε = 8")
    drowned = next(one for one in generous.warnings if one.startswith("With this budget xor"))
    assert "private_labeller would reach about" in drowned


def test_noise_free_consensus_is_better_than_a_silo_alone_and_costs_infinitely_much(
    generous: Plan,
) -> None:
    free = named(generous, "none")
    assert free.home is not None
    assert free.home.mean > generous.local.mean
    assert math.isinf(free.epsilon)


def test_every_mechanism_spends_its_budget_and_never_more(generous: Plan) -> None:
    spent = {entry.name: entry.epsilon for entry in generous.entries if entry.private}
    assert len(spent) >= 4
    for name, epsilon in spent.items():
        assert 0.9 * SMALL.epsilon < epsilon <= SMALL.epsilon * (1 + 1e-9), name


def test_teachers_answer_fewer_rows_than_there_are(generous: Plan) -> None:
    teachers = named(generous, "teacher_votes")
    assert 0 < teachers.rows < SMALL.public_rows
    assert teachers.parameters["rows"] == teachers.rows


def test_a_guessed_sensitivity_is_marked_warned_of_and_never_recommended() -> None:
    plan = planned(replace(SMALL, changed_rows=1))
    xor = named(plan, "xor")
    assert xor.estimate
    assert xor.epsilon <= SMALL.epsilon * (1 + 1e-9)
    assert xor.labels is not None
    assert xor.labels.mean > 0.6
    assert any("estimate, not a guarantee" in warning for warning in plan.warnings)
    assert plan.recommended is None or plan.recommended.name != "xor"


def test_noise_is_for_all_public_rows_and_all_rounds_even_if_fewer_are_simulated() -> None:
    asked = replace(SMALL, public_rows=9000, rounds=6)
    problem = problem_of_accuracy(4, 5, 200, 0.8, np.random.default_rng(0))
    federation = SimulatedFederation.draw(problem, 1, 200, 50, seed=0)
    side = federation.silo_round(0, 1, federation.labels_of(0, 1, None), InMemoryFiles())
    calibrated = calibrate_candidate(Candidate("xor", XorSettings()), asked, side)
    assert isinstance(calibrated, CalibratedCandidate)
    scope = Scope(
        BallotShape(9000, 4, Encoding.ONE_HOT), 6, asked.epsilon, asked.delta, Unit.PATIENT, 200
    )
    assert calibrated.entry.parameters["flip"] == calibrated_flip(scope, 9000, 6)
    assert calibrated.mechanism.vote(side, SeededBits(0)).packed(calibrated.shape)
    teachers = calibrate_candidate(Candidate("t", TeacherVotesSettings()), asked, side)
    assert isinstance(teachers, CalibratedCandidate)
    assert teachers.entry.rows > 0
    vote = teachers.mechanism.vote(side, SeededBits(0))
    assert vote.labels is not None
    assert len(vote.labels) == 50


def test_paying_once_is_offered_only_where_there_are_several_rounds() -> None:
    assert not [each for each in candidates(SMALL) if "once" in each.name]
    several = candidates(replace(SMALL, rounds=5))
    assert [each.name for each in several if "once" in each.name] == [
        "xor · once",
        "randomized_response · once",
    ]


def test_the_same_seeds_give_the_same_plan() -> None:
    asked = replace(SMALL, public_rows=60, rows_per_silo=50, silos=2)
    assert planned(asked).as_json() == planned(asked).as_json()


# -- the rule -----------------------------------------------------------------------------------------


def entry(name: str, home: float, error: float = 0.01, **more: object) -> Entry:
    known = {
        "settings": PrivateLabellerSettings(),
        "epsilon": 1.0,
        "labels": Measured(home, error),
        "home": Measured(home, error),
        "gain": Measured(home - 0.7, error),
    }
    return Entry(name, **(known | more))  # type: ignore[arg-type]


def plan_of(*entries: Entry, pooled: float = 0.9) -> Plan:
    return Plan(SMALL, Measured(0.7, 0.01), Measured(pooled, 0.01), entries)


def test_the_best_private_mechanism_is_taken() -> None:
    best = plan_of(entry("a", 0.8), entry("b", 0.85), entry("c", 0.75)).recommended
    assert best is not None
    assert best.name == "b"


def test_what_has_no_proof_is_never_taken() -> None:
    none = entry("none", 0.95, settings=NoneSettings(), epsilon=math.inf)
    guessed = entry("xor", 0.94, settings=XorSettings(), estimate=True)
    best = plan_of(none, guessed, entry("b", 0.8)).recommended
    assert best is not None
    assert best.name == "b"
    assert plan_of(none, guessed).recommended is None


def test_a_gain_within_two_standard_errors_is_none() -> None:
    assert plan_of(entry("a", 0.715)).recommended is None
    assert plan_of(entry("a", 0.725)).recommended is not None


def test_where_nothing_helps_the_advice_says_whether_anything_could() -> None:
    assert "no private mechanism makes a silo's own model better" in plan_of(entry("a", 0.6)).advice
    assert "little to gain by any means" in plan_of(entry("a", 0.6), pooled=0.705).advice


def test_a_few_labels_that_happen_to_be_right_are_not_held_up_as_better() -> None:
    lucky = entry("lucky", 0.7, labels=Measured(1.0, 0.1), rows=1)
    drowned = entry("drowned", 0.5, labels=Measured(SMALL.chance, 0.01), noise="much noise")
    (warning,) = plan_of(lucky, entry("good", 0.8), drowned).warnings
    assert warning.endswith("good would reach about 80%.")


def test_a_standard_error_is_no_smaller_than_the_rows_allow() -> None:
    assert Measured.of([0.5, 0.5], 100).error == pytest.approx(0.05)
    assert Measured.of([0.4, 0.6]).error == pytest.approx(0.1)


# -- faces --------------------------------------------------------------------------------------------


def test_the_recommended_lines_are_a_valid_silo_yaml(generous: Plan) -> None:
    for each in generous.entries:
        if each.private:
            section = yaml.safe_load(silo_yaml(generous, each))["privacy"]
            settings = PrivacySettings.model_validate(section)
            assert settings.mechanism == each.settings
            assert settings.epsilon == SMALL.epsilon


def test_the_table_shows_every_mechanism_and_the_references(generous: Plan) -> None:
    console = Console(width=120, file=io.StringIO())
    print_plan(generous, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for name in [one.name for one in generous.entries] + ["guessing", "each silo alone"]:
        assert name in text
    assert "privacy:" in text
    assert "encoding: scored" in text


def test_a_plot_is_drawn_with_and_without_a_curve(generous: Plan, tmp_path: Path) -> None:
    for path, curve in ((tmp_path / "a.svg", ()), (tmp_path / "b.png", (generous, generous))):
        check_plot(path)
        write_plot(generous, path, curve)
        assert path.stat().st_size > 5000


def test_a_plot_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no plot this can write"):
        check_plot(tmp_path / "plan.docx")
    with pytest.raises(ConfigurationError, match="There is no folder"):
        check_plot(tmp_path / "absent" / "plan.svg")


def test_the_command_prints_json_alone() -> None:
    arguments = (
        "plan --quick --json --rounds 1 --public-rows 50 --classes 2 --silos 2 --rows-per-silo 40"
    )
    found = CliRunner().invoke(privacy, [*arguments.split(), "--sensitivity", "3"])
    assert found.exit_code == 0, found.output
    plan = json.loads(found.stdout)
    assert plan["question"]["changed_rows"] == 3
    epsilons = {one["name"]: one["epsilon"] for one in plan["mechanisms"]}
    assert epsilons["none"] is None
    assert epsilons["xor"] <= 1 + 1e-9


@pytest.mark.parametrize("sensitivity", ["0", "many", "3001", "-1"])
def test_an_impossible_sensitivity_is_refused(sensitivity: str) -> None:
    found = CliRunner().invoke(privacy, ["plan", "--sensitivity", sensitivity])
    assert isinstance(found.exception, ConfigurationError)
    assert "1 to 3000" in found.exception.hint
