"""The HTML report: one file, plots inside, readable by someone who runs a hospital."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.demo.outcome import PAPER_WEIGHTS, WEIGHT_BYTES, Outcome
from experiments.demo.plots import accuracy_plot, bytes_plot, rounds_plot
from wire.errors import ConfigurationError
from wire.runtime.files import write_atomically
from wire.runtime.terminal import size

_PLOTS = {
    "accuracy per hospital": accuracy_plot,
    "churn and consensus accuracy per round": rounds_plot,
    "bytes that left each hospital": bytes_plot,
}


@dataclass(frozen=True)
class Report:
    """Where the page is and which plots it shows."""

    page: Path
    plots: tuple[str, ...]


def write_report(outcome: Outcome, folder: Path) -> Report:
    """Writes `index.html` into `folder`, replacing an earlier one."""
    page = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(page, render(outcome).encode())
    except OSError as error:
        raise ConfigurationError(
            f"The report {page} cannot be written: {error.strerror}.", "Choose another `--report`."
        ) from None
    return Report(page, tuple(_PLOTS))


def render(outcome: Outcome) -> str:
    """The whole page; it fetches nothing from anywhere."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": size, "percent": _percent, "points": _points}
    return environment.get_template("report.html").render(
        outcome=outcome,
        plots={name: _data_url(draw(outcome)) for name, draw in _PLOTS.items()},
        weight_bytes=WEIGHT_BYTES,
        paper_weights=PAPER_WEIGHTS,
    )


def _data_url(svg: str) -> str:
    # As an image of its own, its ids cannot clash with those of another plot.
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")
