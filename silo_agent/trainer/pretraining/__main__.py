"""`python -m silo_agent.trainer.pretraining PUBLIC_FILE OUT`: how the coordinator's room, which has no learners, trains one.

Progress goes to standard error; the last line on standard output is JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress as Bar

from wire.errors import ConfigurationError, ConsiliumError
from wire.extractor_file import ExtractorKind, write_extractor
from wire.runtime.files import digest_of
from wire.runtime.permissions import keep_private
from wire.runtime.terminal import errors, print_error, say

try:
    from silo_agent.trainer.pretraining.pretraining import Progress, pretrain
except ImportError as missing:
    print_error(
        ConfigurationError(
            f"Pre-training needs {missing.name or 'a library'}, which cannot be imported.",
            'Install it: pip install "consilium[trainer]"',
        )
    )
    sys.exit(1)


class _Lines(Progress):
    """A line per tenth."""

    def step(self, done: int, steps: int, loss: float) -> None:
        """Prints at every tenth."""
        if done * 10 // steps > (done - 1) * 10 // steps:
            say("{} of {} steps, loss {}", done, steps, f"{loss:.3f}", to=errors)


class _Bar(Progress):
    """A bar for a person who looks on."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("pre-training", total=None)

    def step(self, done: int, steps: int, loss: float) -> None:
        """Moves the bar."""
        self._bar.update(
            self._task, completed=done, total=steps, description=f"pre-training, loss {loss:.3f}"
        )


@contextmanager
def _shown() -> Iterator[Progress]:
    if not errors.is_terminal:
        yield _Lines()
        return
    with Bar(console=errors, transient=True) as bar:
        yield _Bar(bar)


def main(
    public_file: Annotated[Path, typer.Argument(help="A stored public set.", exists=True)],
    out: Annotated[Path, typer.Argument(help="Where the extractor goes.")],
    kind: Annotated[str, typer.Option(help=f"auto, {', '.join(ExtractorKind)}.")] = "auto",
    dimensions: Annotated[int | None, typer.Option(min=1, max=4096)] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Minibatches; networks only.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Train a feature extractor on a public set alone."""
    if kind not in ("auto", *ExtractorKind):
        raise ConfigurationError(
            f"There is no extractor of kind {kind}.",
            f"Choose one of auto, {', '.join(ExtractorKind)}.",
        )
    with _shown() as progress:
        extractor = pretrain(
            public_file,
            None if kind == "auto" else ExtractorKind(kind),
            dimensions=dimensions,
            steps=steps,
            seed=seed,
            progress=progress,
        )
    write_extractor(extractor.file, out)
    made = {
        "digest": digest_of(out),
        "kind": extractor.file.header.kind,
        "dimensions": extractor.dimensions,
        "size_bytes": out.stat().st_size,
    }
    typer.echo(json.dumps(made))


if __name__ == "__main__":
    keep_private()
    command = typer.Typer(add_completion=False)
    command.command()(main)
    try:
        command()
    except ConsiliumError as error:
        print_error(error)
        sys.exit(1)
