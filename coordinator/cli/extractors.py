"""`consilium public-set pretrain` and `extractors`: what a public set's rows teach without any label."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from coordinator.cli.connection import Home, admin_link, run
from coordinator.cli.fetching import fetched_set
from wire.chunks import CHUNK_BYTES
from wire.consilium.v1 import admin_pb2, registry_pb2
from wire.errors import ConfigurationError
from wire.extractor_file import ExtractorKind
from wire.public_file import PublicSetFolder
from wire.runtime.files import digest_of
from wire.runtime.terminal import (
    JsonFlag,
    as_dict,
    local_time,
    print_json,
    print_messages,
    print_table,
    say,
    size,
)

# The coordinator imports no learner: training is a program of the trainer's, run as a child process.
_TRAINING = "silo_agent.trainer.pretraining"
_KINDS: Final = ("auto", *ExtractorKind)


def pretrain(
    name: Annotated[str, typer.Argument(help="The public set: name, name@version or digest.")],
    home: Home,
    kind: Annotated[
        str,
        typer.Option(help=f"How to train: {', '.join(_KINDS)}; auto goes by what the rows are."),
    ] = "auto",
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Length of the vector a row becomes.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Minibatches to train with.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same extractor.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train an extractor on a public set alone, here, and publish it with the set."""
    if kind not in _KINDS:
        raise ConfigurationError(
            f"--kind: there is no extractor {kind}.", f"Choose one of {', '.join(_KINDS)}."
        )
    given = {"kind": kind, "dimensions": dimensions, "steps": steps, "seed": seed}
    options = [
        word
        for option, value in given.items()
        if value is not None
        for word in (f"--{option}", str(value))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        trained = Path(scratch) / "extractor"
        public, rows = run(_fetched(home, name, Path(scratch)))
        _train(rows, trained, options)
        response = run(_published(home, public.digest, trained))
    if as_json:
        print_json(as_dict(response))
        return
    extractor = response.extractor
    already = " (it was there already)" if response.already_held else ""
    say(
        "Published an extractor of [bold]{}@{}[/]{}: {}, {} dimensions, {}. Write into task.yaml:",
        public.name,
        public.version,
        already,
        extractor.kind,
        extractor.dimensions,
        size(extractor.size_bytes),
    )
    say("extractor: {}", extractor.digest)


def extractors(
    home: Home,
    name: Annotated[
        str | None, typer.Argument(help="Of which public set: name, name@version or digest.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the extractors published with public sets, newest first."""

    async def call() -> tuple[dict[str, str], Sequence[registry_pb2.Extractor]]:
        async with admin_link(home) as link:
            wanted = registry_pb2.ListExtractorsRequest()
            if name is not None:
                about = registry_pb2.GetPublicSetRequest(reference=name)
                wanted.public_set = (await link.registry.GetPublicSet(about)).public_set.digest
            found = await link.registry.ListExtractors(wanted)
            sets = await link.registry.ListPublicSets(registry_pb2.ListPublicSetsRequest())
        names = {public.digest: f"{public.name}@{public.version}" for public in sets.public_sets}
        return names, found.extractors

    names, found = run(call())
    if as_json:
        print_messages("extractors", found)
        return
    print_table(
        "Extractors",
        [
            {
                "set": names[extractor.public_set],
                "kind": extractor.kind,
                "dimensions": extractor.dimensions,
                "size": size(extractor.size_bytes),
                "added": local_time(extractor.added_at),
                "sha256": extractor.digest,
            }
            for extractor in found
        ],
        empty="There is no extractor yet: `consilium public-set pretrain NAME`.",
    )


async def _fetched(home: Path, name: str, scratch: Path) -> tuple[registry_pb2.PublicSet, Path]:
    """The set and its file, verified."""
    async with admin_link(home) as link:
        return await fetched_set(link, name, PublicSetFolder(scratch))


def _train(rows: Path, out: Path, options: Sequence[str]) -> None:
    """Runs the training; its progress, and what it may lack, it tells this terminal itself. Ctrl-C ends both."""
    program = [sys.executable, "-P", "-m", _TRAINING, str(rows), str(out), *options]
    ended = subprocess.run(  # noqa: S603  our own program
        program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
    )
    if ended.returncode < 0:
        raise ConfigurationError(
            f"The training was ended by signal {-ended.returncode}; nothing was published.",
            "It may have needed more memory than this machine has.",
        )
    if ended.returncode:
        raise typer.Exit(ended.returncode)


async def _published(home: Path, public_set: str, file: Path) -> admin_pb2.PublishExtractorResponse:
    async with admin_link(home) as link:
        return await link.admin.PublishExtractor(_parts(public_set, file))


def _parts(public_set: str, file: Path) -> Iterator[admin_pb2.PublishExtractorRequest]:
    yield admin_pb2.PublishExtractorRequest(
        header=admin_pb2.ExtractorHeader(
            public_set=public_set, digest=digest_of(file), size_bytes=file.stat().st_size
        )
    )
    with file.open("rb") as content:
        while data := content.read(CHUNK_BYTES):
            yield admin_pb2.PublishExtractorRequest(data=data)
