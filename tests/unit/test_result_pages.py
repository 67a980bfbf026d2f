"""The pages of the documents show the numbers beside them, as today's code reads these."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.harness import Table
from experiments.papers import EXPERIMENTS, find
from experiments.papers.report import table
from experiments.papers.results import Gathered, text
from experiments.privacy import utility, utility_report, vulnerability, vulnerability_report

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def gathered(name: str) -> tuple[Gathered, int]:
    """A finished experiment's lines, and how many of its runs the CSV file lacks."""
    experiment = find(name)
    known = Table(DOCS / "results" / f"{name}.csv", experiment.cell, experiment.result).read()
    results, missing = experiment.current(known, quick=False)
    return Gathered(experiment, experiment.table(results)), missing


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_papers_page_has_the_table_of_its_numbers_and_says_how_it_is_run(name: str) -> None:
    found, missing = gathered(name)
    experiment = found.experiment
    page = (DOCS / "results" / f"{name}.md").read_text(encoding="utf-8")
    assert missing == 0
    assert table(experiment.columns, found.lines) in page
    for told in (experiment.title, experiment.paper, experiment.success, experiment.about.strip()):
        assert told in page


def test_the_index_has_every_target() -> None:
    index = (DOCS / "results.md").read_text(encoding="utf-8")
    assert index == text([gathered(name)[0] for name in EXPERIMENTS])


@pytest.mark.parametrize(
    ("name", "cell", "result", "text"),
    [
        ("privacy-utility", utility.Cell, utility.Result, utility_report.text),
        ("vulnerability", vulnerability.Cell, vulnerability.Result, vulnerability_report.text),
    ],
)
def test_a_page_about_privacy_is_written_from_its_numbers(
    name: str, cell: type, result: type, text: object
) -> None:
    known = Table(DOCS / f"{name}.csv", cell, result).read()
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == text(known)  # type: ignore[operator]
