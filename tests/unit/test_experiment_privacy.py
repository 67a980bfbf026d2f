"""The privacy experiments: rows dealt once, results kept, attacks that find what is there and nothing else."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from summing_cells import Sum, Total, add
from typer.testing import CliRunner

from experiments.cli import experiment
from experiments.data import Dataset, Sizes, Split, load, pooled, split_dataset
from experiments.harness import Table, run
from experiments.privacy import attack, utility, vulnerability
from experiments.privacy.attack import Evidence, auc, finding, most_allowed
from experiments.privacy.private_task import PrivateTask
from experiments.privacy.reading import margins, smoother
from experiments.privacy.utility import Method
from experiments.privacy.utility_report import sections
from experiments.privacy.vulnerability import Message
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivateLabellerSettings,
    TeacherVotesSettings,
    XorSettings,
)
from wire.ballot import ABSTAIN, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.events import RandomizedResponse

pytestmark = pytest.mark.slow

SIZES = Sizes(silos=4, private=60, public=100, test=80)


def places(rows: Split) -> list[int]:
    """Indices of the rows, which `numbered` data carry as their only feature."""
    parts = [*(part.features for part in rows.private), rows.public, rows.test.features]
    return [int(number) for part in parts for number in part[:, 0]]


def numbered(count: int, classes: int = 4, reserved: int = 0) -> Dataset:
    numbers = np.arange(count)
    rows = Labelled(numbers[:, None].astype(float), numbers % classes)
    return Dataset("numbered", rows, classes, reserved)


class TestSplit:
    @pytest.mark.parametrize("alpha", [None, 0.5])
    def test_no_row_is_in_two_places_and_none_is_lost(self, alpha: float | None) -> None:
        rows = split_dataset(numbered(420), replace(SIZES, alpha=alpha), seed=1)
        found = places(rows)
        assert len(found) == len(set(found)) == 420

    def test_labels_stay_with_their_rows(self) -> None:
        rows = split_dataset(numbered(420), SIZES, seed=1)
        assert np.array_equal(rows.public_labels, rows.public[:, 0] % 4)
        assert all(np.array_equal(part.labels, part.features[:, 0] % 4) for part in rows.private)

    def test_reserved_rows_are_for_the_test_only(self) -> None:
        rows = split_dataset(numbered(600, reserved=150), SIZES, seed=1)
        assert (rows.test.features[:, 0] >= 450).all()
        assert (pooled(rows.private).features[:, 0] < 450).all()
        assert (rows.public[:, 0] < 450).all()

    def test_a_dirichlet_share_is_uneven_and_an_even_one_is_not(self) -> None:
        def spread(alpha: float | None) -> float:
            rows = split_dataset(numbered(420), replace(SIZES, alpha=alpha), seed=1)
            shares = [np.bincount(part.labels, minlength=4) / len(part) for part in rows.private]
            return float(np.std(shares))

        assert spread(0.3) > 2 * spread(None)

    def test_too_many_rows_are_refused_with_the_sizes(self) -> None:
        with pytest.raises(ConfigurationError, match="4 × 60 private, 100 public and 80 test"):
            split_dataset(numbered(300), SIZES, seed=1)

    def test_a_set_that_does_not_come_along_asks_for_its_folder(self) -> None:
        with pytest.raises(ConfigurationError, match="adult does not come with"):
            load("adult")


CELLS = [Sum("a", 0.1, 1), Sum("b", 1 / 3, None), Sum("broken", 1.0, 1)]


class TestHarness:
    def table(self, folder: Path) -> Table[Sum, Total]:
        return Table(folder / "sums.csv", Sum, Total)

    def test_a_failed_cell_is_told_and_costs_no_other(self, tmp_path: Path) -> None:
        told = io.StringIO()
        table = self.table(tmp_path)
        failures = run(table, CELLS, add, Console(file=told), workers=1)
        assert [(one.cell.name, one.sentence) for one in failures] == [
            ("broken", "This cell cannot be added. Take another.")
        ]
        assert "This cell cannot be added." in told.getvalue()
        assert table.read() == {CELLS[0]: Total(1.1), CELLS[1]: Total(1 / 3)}

    def test_what_is_in_the_table_is_not_run_again(self, tmp_path: Path) -> None:
        table = self.table(tmp_path)
        for cell in CELLS:
            table.append(cell, Total(99.0))
        # It would fail, were it run.
        assert run(table, CELLS, add, Console(file=io.StringIO())) == []

    def test_a_line_cut_off_is_run_again_and_harms_no_other(self, tmp_path: Path) -> None:
        table = self.table(tmp_path)
        table.append(CELLS[0], Total(1.1))
        with table.path.open("a") as file:
            file.write("b,0.33")
        assert list(table.read()) == [CELLS[0]]
        table.append(CELLS[1], Total(math.inf))
        assert table.read() == {CELLS[0]: Total(1.1), CELLS[1]: Total(math.inf)}

    def test_another_table_is_not_overwritten(self, tmp_path: Path) -> None:
        table = self.table(tmp_path)
        table.path.write_text("other,columns\n1,2\n")
        with pytest.raises(ConfigurationError, match="other columns"):
            table.read()


@pytest.fixture(scope="module")
def digits() -> Split:
    return split_dataset(load("digits"), Sizes(silos=3, private=150, public=120, test=300), seed=0)


def private_task(
    mechanism: MechanismSettings, encoding: Encoding, budget: float | None, rounds: int = 2
) -> PrivateTask:
    learner = LearnerSpec(name="logistic_regression")
    return PrivateTask(mechanism, encoding, budget, 1e-5, rounds, learner)


class TestPrivateTask:
    def test_without_noise_labels_are_mostly_right_and_have_no_epsilon(self, digits: Split) -> None:
        task = private_task(NoneSettings(), Encoding.INDEX, None)
        result = task.run(digits.private, digits.public, 10, seed=0)
        assert np.mean(result.labels() == digits.public_labels) > 0.85
        assert all(math.isinf(spent) for spent in result.spent.values())
        assert len(result.home_models) == 3

    def test_the_epsilon_told_is_that_of_all_rounds_together(self, digits: Split) -> None:
        xor = XorSettings(flip=0.4, paid_rounds=2)
        task = private_task(xor, Encoding.ONE_HOT, None, rounds=3)
        result = task.run(digits.private, digits.public, 10, seed=0, home_models=False)
        flips = RandomizedResponse(buckets=2, epsilon=math.log(0.6 / 0.4), count=2 * 120)
        spent = pytest.approx(epsilon([flips, flips], 1e-5), rel=1e-3)
        assert list(result.spent.values()) == [spent] * 3
        first, second, third = (ballots["silo-001"] for ballots in result.ballots)
        assert first != second
        assert second == third

    def test_a_head_is_paid_once_and_votes_in_every_round(self, digits: Split) -> None:
        task = private_task(PrivateLabellerSettings(), Encoding.SCORED, 4.0, rounds=3)
        result = task.run(digits.private, digits.public, 10, seed=0, home_models=False)
        assert all(3.9 < spent <= 4.0 for spent in result.spent.values())
        assert result.ballots[0] == result.ballots[2]
        assert np.mean(result.labels() == digits.public_labels) > 0.5

    def test_other_noise_gives_another_ballot_of_the_same_silo(self, digits: Split) -> None:
        task = private_task(PrivateLabellerSettings(), Encoding.INDEX, 1.0, rounds=1)

        def ballots(noise_seed: int) -> Mapping[str, bytes]:
            silos = digits.private[:1]
            return task.run(
                silos, digits.public, 10, 0, noise_seed=noise_seed, home_models=False
            ).ballots[0]

        assert ballots(1) != ballots(2)
        assert ballots(1) == ballots(1)

    def test_silos_of_one_run_draw_their_noise_apart(self, digits: Split) -> None:
        task = private_task(PrivateLabellerSettings(), Encoding.INDEX, 1.0, rounds=1)
        same = (digits.private[0],) * 2
        result = task.run(same, digits.public, 10, 0, home_models=False)
        assert result.ballots[0]["silo-001"] != result.ballots[0]["silo-002"]

    def test_silos_whose_budget_pays_for_nothing_are_absent(self, digits: Split) -> None:
        task = private_task(TeacherVotesSettings(), Encoding.INDEX, 0.05)
        result = task.run(digits.private, digits.public, 10, seed=0)
        assert list(result.absent) == ["silo-001", "silo-002", "silo-003"]
        assert result.ballots == ()
        assert result.home_models == result.spent == {}
        assert (result.labels() == ABSTAIN).all()

    def test_who_can_takes_part_without_the_absent(self, digits: Split) -> None:
        few = digits.private[0][np.arange(10)]
        task = private_task(TeacherVotesSettings(), Encoding.INDEX, 8.0, rounds=1)
        result = task.run((few, *digits.private[1:]), digits.public, 10, seed=0)
        assert list(result.absent) == ["silo-001"]
        assert "25" in result.absent["silo-001"], "as many teachers as it has rows too few for"
        assert list(result.ballots[0]) == list(result.home_models) == ["silo-002", "silo-003"]
        assert (result.labels() != ABSTAIN).any()


SETTING = utility.Setting(
    dataset="digits",
    silos=3,
    rows_per_silo=150,
    public_rows=120,
    test_rows=300,
    alpha=None,
    learner="logistic_regression",
    rounds=2,
    delta=1e-5,
)


class TestUtility:
    def test_more_data_and_more_budget_are_worth_something(self) -> None:
        wanted = utility.cells(
            SETTING, (Method.LOCAL, Method.CENTRAL, Method.FEDCT), budgets=(8.0,), seeds=1
        )
        found = {cell.method: utility.measure(cell, None) for cell in wanted}
        assert found["local"].accuracy < found["fedct"].accuracy
        assert found["local"].accuracy < found["central"].accuracy
        assert found["local"].epsilon == 0
        assert found["local"].worst <= found["local"].accuracy

    def test_who_takes_no_part_has_the_model_it_trains_alone(self) -> None:
        local, absent = utility.cells(
            SETTING, (Method.LOCAL, Method.TEACHER_VOTES), budgets=(0.05,), seeds=1
        )
        alone, result = utility.measure(local, None), utility.measure(absent, None)
        assert (result.accuracy, result.worst) == (alone.accuracy, alone.worst)
        assert (result.consensus, result.answered, result.epsilon) == (None, 0.0, 0.0)

    def test_gains_compare_the_same_split(self) -> None:
        results = {
            utility.Cell(**vars(SETTING), method=method, budget=None, seed=seed): utility.Result(
                value, value, None, None, 0.0
            )
            for method, seed, value in (
                ("local", 0, 0.5),
                ("local", 1, 0.7),
                ("fedct", 1, 0.8),
                ("fedct", 0, 0.9),
            )
        }
        (section,) = sections(results)
        assert sorted(section.gains(Method.FEDCT, None)) == pytest.approx([0.1, 0.4])

    def test_the_command_writes_numbers_page_and_plot(self, tmp_path: Path) -> None:
        options = "--rows-per-silo 100 --public-rows 60 --epsilons 4 --seeds 2 --workers 1"
        methods = "local,private_labeller_scored"
        arguments = ["privacy-utility", *options.split(), "--methods", methods, "--out"]
        done = CliRunner().invoke(experiment, [*arguments, str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert (tmp_path / "privacy-utility.png").stat().st_size > 1000
        page = (tmp_path / "privacy-utility.md").read_text()
        assert "--rows-per-silo 100 --public-rows 60" in page
        assert len((tmp_path / "privacy-utility.csv").read_text().splitlines()) == 5

    def test_an_unknown_method_is_refused_by_name(self) -> None:
        done = CliRunner().invoke(experiment, ["privacy-utility", "--methods", "magic"])
        assert isinstance(done.exception, ConfigurationError)
        assert "'magic'" in str(done.exception)


def evidence(strength: float, federations: int = 120, targets: int = 40, seed: int = 0) -> Evidence:
    """Messages and statistics that say `strength` of every membership, in a way of its own per target."""
    draw = np.random.default_rng(seed)
    members = draw.random((federations, targets)) < 0.5
    # A target's usual level differs more between targets than a membership changes it.
    levels, directions = 5 * draw.normal(size=targets), draw.normal(size=(targets, 60))
    told = strength * members[:, :, None] + draw.normal(size=(federations, targets, 2))
    messages = draw.normal(size=(federations, 60)) + strength * (members - 0.5) @ directions / 6
    return Evidence(members, levels[None, :, None] + told, messages)


def split(whole: Evidence) -> tuple[Evidence, Evidence]:
    return whole.part(slice(0, 80)), whole.part(slice(80, None))


class TestAttack:
    def test_auc_counts_pairs_and_halves_ties(self) -> None:
        scores, members = np.array([[3.0, 1.0, 1.0, 0.0]]), np.array([[True, True, False, False]])
        assert auc(scores, members) == pytest.approx((1 + 1 + 0.5 + 1) / 4)

    @pytest.mark.parametrize("kind", [attack.likelihood, attack.regression])
    def test_shadows_find_what_differs_from_target_to_target(self, kind: object) -> None:
        shadows, victims = split(evidence(1.5))
        assert auc(kind(shadows, victims), victims.members) > 0.7  # type: ignore[operator]
        # Without shadows a target's usual level hides it.
        assert auc(attack.threshold(victims), victims.members) < 0.62

    @pytest.mark.parametrize("kind", [attack.likelihood, attack.regression])
    def test_where_nothing_is_said_nothing_is_found(self, kind: object) -> None:
        found = []
        for seed in range(12):
            shadows, victims = split(evidence(0.0, seed=seed))
            scores = kind(shadows, victims)  # type: ignore[operator]
            found.append(finding(scores, victims.members, seed, draws=100))
        error = math.sqrt(sum(one.deviation**2 for one in found)) / len(found)
        assert abs(np.mean([one.auc for one in found]) - 0.5) < 3 * error
        assert error < 0.01

    def test_the_deviation_is_that_of_repeated_experiments(self) -> None:
        found = []
        for seed in range(24):
            victims = evidence(0.3, seed=seed).part(slice(0, 40))
            found.append(finding(attack.threshold(victims), victims.members, seed, draws=100))
        real = np.std([one.auc for one in found], ddof=1)
        assert 0.6 < np.mean([one.deviation for one in found]) / real < 1.6

    def test_a_private_release_bounds_every_attack(self) -> None:
        assert most_allowed(0.0, 0.0) == pytest.approx(0.5)
        assert most_allowed(1.0, 0.0) == pytest.approx(1 / (1 + math.exp(-1)))
        assert most_allowed(0.0, 0.2) == pytest.approx(0.5 * (1 - 0.8**2) + 0.5)
        assert most_allowed(math.inf, 0.0) == 1.0

    def test_binary_response_attains_the_bound(self) -> None:
        truthful = 1 / (1 + math.exp(-2.0))
        # ROC of an answer that is true with this probability: (0,0), (1−p, p), (1,1).
        area = truthful * (1 - truthful) / 2 + truthful * (1 + truthful) / 2
        assert most_allowed(2.0, 0.0) == pytest.approx(area)


class TestVulnerability:
    def test_the_student_in_closed_form_agrees_with_its_teacher(self) -> None:
        rows = split_dataset(
            load("digits"), Sizes(silos=2, private=100, public=400, test=0), seed=0
        )
        targets = pooled(rows.private)
        labels = np.eye(10)[rows.public_labels]
        said = margins(smoother(rows.public, targets.features) @ labels, targets.labels)
        assert np.mean(said > 0) > 0.85

    @pytest.mark.parametrize("message", [Message.WEIGHTS, Message.SOFT, Message.HARD])
    def test_messages_depend_on_who_is_a_member_and_on_nothing_drawn(
        self, message: Message
    ) -> None:
        setting = vulnerability.Setting("digits", 2, 20, 50, 2, 10, 8, 8, 2, 1e-5)
        (cell,) = vulnerability.cells(setting, (message,), (1.0,), seeds=1)
        setup = vulnerability.AttackSetup.of(cell, None)
        assert setup.members(0).sum() == 20
        assert not np.array_equal(setup.members(0), setup.members(1))
        first, again, other = setup.run(0), setup.run(0), setup.run(1)
        assert np.array_equal(first.message, again.message)
        assert not np.array_equal(first.message, other.message)
        assert first.statistics.shape == (40, 2)

    def test_a_mechanism_draws_its_own_bits_in_every_federation(self) -> None:
        setting = vulnerability.Setting("digits", 2, 40, 50, 2, 10, 8, 8, 2, 1e-5)
        (cell,) = vulnerability.cells(setting, (Message.LABELLER,), (1.0,), seeds=1)
        setup = vulnerability.AttackSetup.of(cell, None)
        same = replace(setup, others=())
        object.__setattr__(same, "members", lambda index: setup.members(0))
        assert not np.array_equal(same.run(1).message, same.run(2).message)

    def test_a_victim_that_cannot_take_part_sends_nothing(self) -> None:
        setting = vulnerability.Setting("digits", 2, 40, 50, 2, 10, 8, 8, 2, 1e-5)
        (cell,) = vulnerability.cells(setting, (Message.TEACHER_VOTES,), (0.05,), seeds=1)
        seen = vulnerability.AttackSetup.of(cell, None).run(0)
        assert seen.epsilon == 0
        assert not seen.message.any()
        assert seen.statistics.shape == (80, 2)

    def test_an_overfitted_network_gives_its_members_away(self) -> None:
        setting = vulnerability.Setting("digits", 2, 30, 40, 1, 40, 16, 32, 12, 1e-5)
        (cell,) = vulnerability.cells(setting, (Message.WEIGHTS,), (), seeds=1)
        found = vulnerability.measure(cell, None).finding("likelihood")
        assert found.auc - 3 * found.deviation > 0.55


@pytest.mark.parametrize("command", ["privacy-utility", "vulnerability"])
def test_a_data_set_that_is_not_there_is_told_once_and_before_anything_runs(
    command: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for data in ([], ["--data", str(tmp_path)]):
        done = CliRunner().invoke(
            experiment, [command, "--dataset", "adult", *data, "--out", str(out)]
        )
        assert isinstance(done.exception, ConfigurationError)
        assert "adult/adult.csv.gz" in f"{done.exception.sentence} {done.exception.hint}"
    assert not out.exists()
