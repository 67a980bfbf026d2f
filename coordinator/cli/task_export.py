"""`consilium task export`: a task's public set and published labels in a folder, for whoever trains on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.connection import Home, admin_link, run
from coordinator.cli.fetching import fetched_consensus, fetched_set
from wire.consilium.v1 import admin_pb2, ballot_pb2, registry_pb2
from wire.errors import ConfigurationError
from wire.public_file import PublicSetFolder
from wire.remote_text import visible
from wire.runtime.files import digest_of, write_atomically
from wire.runtime.terminal import say, size
from wire.task.definition import TaskDefinition

DEFINITION, PUBLIC_SET = "definition.json", "public-set"
CONSENSUS, README = "consensus.bin", "README.txt"


def export(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    home: Home,
    out: Annotated[Path, typer.Option(help="Folder to write to; made if it is not there.")],
    round_number: Annotated[
        int | None,
        typer.Option("--round", min=1, help="A closed round.", show_default="the latest"),
    ] = None,
) -> None:
    """Write a task's definition, public set and consensus to a folder: public data and published labels."""

    async def call() -> tuple[TaskDefinition, ballot_pb2.ConsensusHeader]:
        async with admin_link(home) as link:
            task = (await link.admin.GetTask(admin_pb2.GetTaskRequest(name=name))).task
            definition = TaskDefinition.from_proto(task.definition)
            # First what may be refused: a task without a consensus leaves no folder behind.
            header, labels = await fetched_consensus(link, name, round_number or 0)
            require_own(out, definition)
            file = out / PUBLIC_SET
            if not file.is_file() or digest_of(file) != definition.public_set:
                folder = PublicSetFolder(out)
                (await fetched_set(link, definition.public_set, folder))[1].replace(file)
            request = registry_pb2.GetPublicSetRequest(reference=definition.public_set)
            public = (await link.registry.GetPublicSet(request)).public_set
        write_atomically(out / CONSENSUS, labels)
        write_atomically(out / DEFINITION, definition.canonical().encode())
        write_atomically(out / README, readme(definition, public, header).encode())
        return definition, header

    definition, header = run(call())
    labelled = definition.rows - header.abstained_rows
    say(
        "Round {} of [bold]{}[/] is in {}: {} rows, {} with a label.",
        header.round,
        name,
        out,
        definition.rows,
        labelled,
    )
    say("Next: `consilium student train --from {}`.", out)


def require_own(folder: Path, definition: TaskDefinition) -> None:
    """ConfigurationError if the folder holds the export of another task."""
    held = folder / DEFINITION
    if held.is_file() and held.read_text() != definition.canonical():
        raise ConfigurationError(
            f"{folder} holds the export of another task.", "Choose another folder with --out."
        )


def readme(
    task: TaskDefinition, public: registry_pb2.PublicSet, header: ballot_pb2.ConsensusHeader
) -> str:
    """What the folder is, and how its files are read."""
    shape = task.shape.as_index()
    return f"""\
The published labels of round {header.round} of the Consilium task {task.name}, and the rows they are for.
Everything here is public within the consortium: no hospital's data, model or ballot is part of it.

{DEFINITION}
    The task as every hospital approved it: canonical JSON, sha256 {task.digest}
{PUBLIC_SET}
    {visible(public.name)}@{public.version}: {task.rows} rows, {size(public.size_bytes)}, sha256 {task.public_set}
    An Arrow IPC file (tables, texts) or an NPY file (arrays).
{CONSENSUS}
    A label for each row, in the order of {PUBLIC_SET}: {header.size_bytes} bytes, sha256 {visible(header.digest)}
    {task.rows - header.abstained_rows} rows have a label, {header.abstained_rows} have none; {header.ballots} ballots were counted.
    {shape.planes} planes of {shape.plane_bytes} bytes, most significant first: a plane has one bit per row, row 0 in the
    most significant bit of byte 0. The bits of a row make the index of its class among the labels of
    {DEFINITION}, counted from 0; {shape.classes} means that there is no label.

To train a model on it: consilium student train --from FOLDER
"""
