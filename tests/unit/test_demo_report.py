"""The demo's result as a person reads it: the table, the sentences, the self-contained page."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from experiments.demo.hospitals import HOSPITALS, LABELS
from experiments.demo.outcome import HospitalOutcome, Outcome, RoundOutcome
from experiments.demo.report import Report, render, write_report
from experiments.demo.scores import Scores, agreement
from experiments.demo.summary import print_summary
from silo_agent.trainer.models.catalogue import LearnerSpec, build
from wire.errors import ConfigurationError

pytestmark = pytest.mark.slow

OUTCOME = Outcome(
    seed=11,
    max_rounds=5,
    seconds=20.0,
    hospitals=tuple(
        HospitalOutcome(
            hospital=hospital,
            patients=17,
            scores=Scores(alone=0.80 + place / 100, consilium=0.90, pooled=0.95),
            bytes_up=282,
            bytes_down=94_300,
            file_bytes=4_400,
            isolation="own namespace",
        )
        for place, hospital in enumerate(HOSPITALS)
    ),
    rounds=(
        RoundOutcome(1, 5, 1.0, 0.91, 2.0, "everyone voted"),
        RoundOutcome(2, 5, 0.013, 0.92, 1.5, "everyone voted"),
        RoundOutcome(3, 5, 0.0, 0.92, 1.5, "grace"),
    ),
    reason="The consensus <settled>.",
    public_rows=370,
    test_rows=114,
    ballot_bytes=94,
    features=30,
    task_digest="a" * 64,
    public_set_digest="b" * 64,
)


def images(page: str) -> list[str]:
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', page)
    assert all(alt.startswith("Plot: ") for _, alt in found)
    return [base64.b64decode(data).decode() for data, _ in found]


def test_the_page_has_its_plots_inside_and_fetches_nothing() -> None:
    page = render(OUTCOME)
    plots = images(page)
    assert len(plots) == 3
    for plot in plots:
        assert ElementTree.fromstring(plot).tag.endswith("svg")
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "url(" not in page


def test_the_page_says_what_happened_and_how_to_repeat_it() -> None:
    page = render(OUTCOME)
    for said in ("82.0 %", "90.0 %", "95.0 %", "+8.0", "282 B", "94.3 kB", "1.3 %", "first labels"):
        assert said in page, said
    assert "consilium demo --seed 11 --rounds 5" in page
    assert "The consensus &lt;settled&gt;." in page
    assert all(hospital.title in page for hospital in HOSPITALS)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_short_federation_has_a_page_too(rounds: int) -> None:
    assert len(images(render(replace(OUTCOME, rounds=OUTCOME.rounds[:rounds])))) == 3


def test_the_same_result_gives_the_same_page() -> None:
    assert render(OUTCOME) == render(OUTCOME)


def test_the_report_names_its_plots_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "report"
    write_report(OUTCOME, folder)
    written = write_report(replace(OUTCOME, seed=12), folder)
    assert "--seed 12" in written.page.read_text(encoding="utf-8")
    assert len(written.plots) == 3


def test_a_report_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_report(OUTCOME, tmp_path / "file")


def test_the_terminal_shows_every_hospital_within_eighty_columns() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    print_summary(OUTCOME, Report(Path("demo-report/index.html"), ("a plot",)), console)
    shown = console.export_text()
    for hospital in HOSPITALS:
        assert re.search(rf"{hospital.title} +{hospital.learner_title} .*0\.900", shown)
    assert re.search(r"mean +0\.820 +0\.900 +0\.950 +\+0\.080", shown)
    assert "…" not in shown
    assert "282 B: 3 ballots of 94 B" in " ".join(shown.split())
    assert "a plot" in shown


def test_json_holds_plain_numbers() -> None:
    result = OUTCOME.as_json()
    assert result["rounds"] == 3
    assert result["mean"]["consilium"] == pytest.approx(0.90)
    assert result["hospitals"][1]["gain"] == pytest.approx(0.09)
    assert [one["churn"] for one in result["consensus"]] == [1.0, 0.013, 0.0]


def test_the_network_weighs_what_the_learner_trains() -> None:
    learner = build(LearnerSpec(name="mlp"), 2, (30,), 0)
    rows = np.random.default_rng(0).normal(size=(20, 30))
    learner.fit(rows, np.arange(20) % 2)  # type: ignore[union-attr]
    network = next(part for part in _parts(learner) if hasattr(part, "coefs_"))
    weights = sum(layer.size for layer in [*network.coefs_, *network.intercepts_])
    assert OUTCOME.network_weights == weights


def test_an_abstention_is_no_true_label() -> None:
    truth = np.array([LABELS[0], LABELS[1], LABELS[1], LABELS[0]])
    assert agreement(np.array([0, 1, -1, 1]), truth) == 0.5


def _parts(thing: object) -> list[object]:
    """Everything reachable from a fitted learner by its attributes and pipeline steps."""
    found, waiting = [], [thing]
    while waiting:
        found.append(part := waiting.pop())
        inner = list(vars(part).values()) if hasattr(part, "__dict__") else []
        inner += [step for _, step in getattr(part, "steps", [])]
        waiting += [
            one for one in inner if type(one).__module__.startswith(("sklearn", "silo_agent"))
        ]
    return found
