"""The papers' tables: what is run, kept, judged and written, shown on a table of dice."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import tiny_experiment
from matplotlib.figure import Figure
from rich.console import Console
from tiny_experiment import EXPERIMENT, Landing, Throw
from typer.testing import CliRunner

from experiments.cli import experiment as commands
from experiments.harness import Table
from experiments.papers import EXPERIMENTS, find
from experiments.papers.experiment import Line, by_seed
from experiments.papers.plots import curves_over, dots
from experiments.papers.report import Machine, Run, number, shown, text, write
from experiments.papers.results import gather
from experiments.papers.run import command, run_experiment
from wire.errors import ConfigurationError

pytestmark = pytest.mark.slow

PNG = b"\x89PNG"


def throw(folder: Path, seeds: int = 3, quick: bool = False) -> tuple[int, str]:
    told = io.StringIO()
    failed = run_experiment(
        EXPERIMENT,
        Console(file=told, width=200),
        seeds=seeds,
        quick=quick,
        folder=None,
        out=folder,
        workers=1,
    )
    return failed, told.getvalue()


@pytest.fixture(scope="module")
def thrown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thrown")
    failed, told = throw(folder)
    assert failed == 1
    assert "This throw went under the table." in told
    return folder


class TestLine:
    def test_it_is_met_from_the_target_on(self) -> None:
        line = Line(("a",), (0.9, 0.8), paper=0.9, least=0.85)
        assert line.met is True
        assert replace(line, least=0.8501).met is False
        assert replace(line, least=None).met is None

    def test_values_come_in_the_order_of_their_seeds(self) -> None:
        results = {
            Throw("tree", 1, seed): Landing(accuracy=seed / 10, local=None) for seed in (2, 0, 1)
        }
        assert by_seed(results, lambda _: True, lambda one: one.accuracy) == (0.0, 0.1, 0.2)
        assert by_seed(results, lambda cell: cell.seed == 2, lambda one: one.accuracy) == (0.2,)
        assert by_seed(results, lambda _: True, lambda one: one.local) == ()


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "written"),
        [(0.7358, "0.7358"), (0.9, "0.90"), (1.0, "1.00"), (None, "–"), (-0.03, "-0.03")],
    )
    def test_the_papers_digits_are_kept(self, value: float | None, written: str) -> None:
        assert number(value) == written

    def test_ours_have_an_error_from_two_seeds_on(self) -> None:
        assert shown((0.9,)) == "0.900"
        assert shown((0.9, 0.8)) == "0.850 ± 0.050"
        assert shown(()) == "–"


class TestConduct:
    def test_a_failed_seed_costs_no_other(self, thrown: Path) -> None:
        found = Table(thrown / "tiny-table.csv", Throw, Landing).read()
        assert {(cell.learner, cell.seed) for cell in found} == {
            ("tree", 0),
            ("tree", 1),
            ("forest", 0),
            ("forest", 1),
            ("forest", 2),
        }

    def test_what_is_there_is_not_run_again(self, tmp_path: Path) -> None:
        table = Table(tmp_path / "tiny-table.csv", Throw, Landing)
        for cell in tiny_experiment.cells(3, False):
            table.append(cell, Landing(accuracy=0.5, local=0.25, seconds=60.0))
        before = table.path.read_text()
        # One of the cells fails whenever it is run.
        assert throw(tmp_path)[0] == 0
        assert table.path.read_text() == before

    def test_page_and_plot_lie_beside_the_numbers(self, thrown: Path) -> None:
        assert (thrown / "tiny-table.png").read_bytes().startswith(PNG)
        page = (thrown / "tiny-table.md").read_text()
        assert "| dice | tree | 0.95 | 0.905 ± 0.005 | -0.045 | ≥ 0.93 | **no** | – |" in page
        assert "| dice | forest | 0.92 | 0.960 ± 0.006 | +0.040 | ≥ 0.90 | yes | – |" in page
        assert "**Met: 1 of 2.**" in page
        assert "- **dice, tree**: 0.905 where 0.93 is the target. The dice are small." in page
        assert "1 of 6 runs are missing here." in page
        assert "consilium experiment tiny-table --seeds 3\n" in page
        assert str(thrown) not in page

    def test_a_quick_look_has_files_of_its_own(self, tmp_path: Path) -> None:
        assert throw(tmp_path, seeds=1, quick=True)[0] == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "tiny-table-quick.csv",
            "tiny-table-quick.md",
            "tiny-table-quick.png",
        ]
        page = (tmp_path / "tiny-table-quick.md").read_text()
        assert "**A quick look**" in page
        assert "](tiny-table-quick.png)" in page
        assert "--seeds 1 --quick" in page

    def test_a_missing_data_set_is_told_before_anything_runs(self, tmp_path: Path) -> None:
        needy = replace(EXPERIMENT, datasets=("covertype",))
        with pytest.raises(ConfigurationError, match="covertype does not come with"):
            run_experiment(needy, Console(), seeds=1, quick=False, folder=None, out=tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert "--data DIR" in command(needy, 1, False)


class TestPage:
    RUN = Run("consilium experiment tiny-table", date(2026, 1, 2), Machine(2, 24))

    def test_runs_of_other_settings_are_not_mixed_in(self, tmp_path: Path) -> None:
        results = {
            cell: Landing(accuracy=0.99, local=None) for cell in tiny_experiment.cells(1, True)
        }
        results |= {
            cell: Landing(accuracy=0.5, local=None) for cell in tiny_experiment.cells(1, False)
        }
        page, _ = write(EXPERIMENT, results, self.RUN, tmp_path)
        assert "0.500" in page.read_text()
        assert "0.990" not in page.read_text()

    def test_it_names_day_machine_and_minutes(self) -> None:
        results = {
            cell: Landing(accuracy=0.95, local=None, seconds=90.0)
            for cell in tiny_experiment.cells(2, False)
        }
        page = text(EXPERIMENT, results, EXPERIMENT.table(results), 0, self.RUN)
        assert "2026-01-02, 2 cores, 24 GiB of memory" in page
        assert "2 seeds, 6 minutes of one core" in page
        assert "missing" not in page
        assert "fall short" not in page

    def test_time_is_measured(self, thrown: Path) -> None:
        line = (thrown / "tiny-table.csv").read_text().splitlines()[0]
        assert line == "learner,size,seed,seconds,accuracy,local"


class TestPlots:
    def test_every_number_is_drawn(self) -> None:
        lines = [
            Line(("a", "x"), (0.8, 0.9), paper=0.7, least=0.75, beside={"local": (0.5,)}),
            Line(("a", "y"), (0.6,), paper=0.7, least=0.75, beside={"local": (0.4,)}),
            Line(("b", "x"), (0.9,), beside={"local": ()}),
        ]
        drawing = dots(lines)
        assert [axes.get_title(loc="left") or axes.get_title() for axes in drawing.axes] == [
            "a",
            "b",
        ]
        found = _points(drawing)
        assert {0.85, 0.7, 0.75, 0.5, 0.6, 0.4, 0.9} <= {round(x, 6) for x, _ in found}
        (legend,) = drawing.legends
        assert [entry.get_text() for entry in legend.get_texts()].count("ours") == 1

    def test_a_curve_goes_through_its_means(self) -> None:
        lines = [Line(("FedCT", str(m)), (0.8, 0.9), paper=0.8) for m in (5, 10, 80)]
        found = _points(curves_over("silos")(lines))
        assert {(5.0, 0.85), (10.0, 0.85), (80.0, 0.85), (80.0, 0.8)} <= {
            (x, round(y, 6)) for x, y in found
        }


def _points(drawing: Figure) -> set[tuple[float, float]]:
    return {
        (float(x), float(y))
        for axes in drawing.axes
        for line in axes.lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)  # type: ignore[arg-type]
    }


class TestResults:
    def test_every_target_is_listed(self, thrown: Path, tmp_path: Path) -> None:
        index, found = gather(["tiny-table", "unknown"], lambda _: EXPERIMENT, thrown, tmp_path)
        assert found == ["tiny-table"]
        page = index.read_text()
        assert "**1 of 2 targets are met.**" in page
        assert (
            "| [tiny-table](results/tiny-table.md) | dice, tree | 0.95 | 0.905 ± 0.005 | -0.045 | ≥ 0.93 | **no** |"
            in page
        )
        for kind in ("md", "csv", "png"):
            copied = tmp_path / "results" / f"tiny-table.{kind}"
            assert copied.read_bytes() == (thrown / copied.name).read_bytes()

    def test_a_quick_look_is_no_result(self, tmp_path: Path) -> None:
        throw(tmp_path, seeds=1, quick=True)
        with pytest.raises(ConfigurationError, match="holds no finished experiment"):
            gather(["tiny-table"], lambda _: EXPERIMENT, tmp_path, tmp_path / "docs")

    def test_what_the_documents_have_stays_until_it_is_measured_again(
        self, thrown: Path, tmp_path: Path
    ) -> None:
        gather(["tiny-table"], lambda _: EXPERIMENT, thrown, tmp_path)
        (tmp_path / "empty").mkdir()
        index, found = gather(["tiny-table"], lambda _: EXPERIMENT, tmp_path / "empty", tmp_path)
        assert found == []
        assert "tiny-table" in index.read_text()


class TestRegistry:
    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_every_table_is_whole(self, name: str) -> None:
        found = find(name)
        assert found.name == name
        for quick in (False, True):
            cells = found.cells(2, quick)
            assert len(set(cells)) == len(cells) > 0
            assert {cell.seed for cell in cells} <= {0, 1}
            assert all(isinstance(cell, found.cell) for cell in cells)
        # More seeds never change what is run for the ones before.
        assert list(found.cells(2, False)[: len(found.cells(1, False))]) == found.cells(1, False)
        assert found.table({}) == []

    def test_every_table_is_a_command(self) -> None:
        told = CliRunner().invoke(commands, ["--help"]).output
        assert all(name in told for name in [*EXPERIMENTS, "papers", "results"])
