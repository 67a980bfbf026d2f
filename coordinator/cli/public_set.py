"""`consilium public-set`: publish unlabelled data everyone may see, and what they teach."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.connection import Home, admin_link, run
from coordinator.cli.extractors import extractors, pretrain
from coordinator.public_sets.convert import ConvertedSet, convert
from wire.chunks import CHUNK_BYTES
from wire.consilium.v1 import admin_pb2, registry_pb2
from wire.runtime.terminal import (
    JsonFlag,
    as_dict,
    enum_word,
    local_time,
    print_json,
    print_messages,
    print_table,
    say,
    size,
)

app = typer.Typer(no_args_is_help=True, help="Publish public unlabelled sets.")
app.command()(pretrain)
app.command()(extractors)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name to publish it under.")],
    file: Annotated[Path, typer.Argument(help="A .parquet, .csv, .npy or .npz file.")],
    home: Home,
    array: Annotated[str | None, typer.Option(help="Which array of an .npz file.")] = None,
    text_column: Annotated[
        str | None, typer.Option(help="The column to publish as text, without the others.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Column to leave out; repeat for several.")
    ] = None,
    source: Annotated[
        str, typer.Option(help="Where the rows come from, for hospitals to read; part of the set.")
    ] = "",
    licence: Annotated[
        str, typer.Option(help="Under which licence, for hospitals to read; part of the set.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Convert a file, upload it and publish it under the next version of NAME."""

    async def call(converted: ConvertedSet) -> admin_pb2.PublishPublicSetResponse:
        async with admin_link(home) as link:
            return await link.admin.PublishPublicSet(_parts(name, converted))

    with tempfile.TemporaryDirectory() as scratch:
        converted = convert(
            file,
            Path(scratch),
            array=array,
            text_column=text_column,
            drop=drop or (),
            provenance={"source": source, "licence": licence},
        )
        response = run(call(converted))
    if as_json:
        print_json(as_dict(response))
        return
    published = response.public_set
    already = " (it was there already)" if response.already_held else ""
    say(
        "Published [bold]{}@{}[/]{}: {} rows, {}, sha256 {}",
        published.name,
        published.version,
        already,
        published.rows,
        size(published.size_bytes),
        published.digest,
    )


@app.command(name="list")
def list_command(home: Home, as_json: JsonFlag = False) -> None:
    """List every version of every public set."""

    async def call() -> registry_pb2.ListPublicSetsResponse:
        async with admin_link(home) as link:
            return await link.registry.ListPublicSets(registry_pb2.ListPublicSetsRequest())

    found = run(call()).public_sets
    if as_json:
        print_messages("public_sets", found)
        return
    print_table(
        "Public sets",
        [
            {
                "set": f"{public.name}@{public.version}",
                "kind": enum_word(registry_pb2.SetKind, public.schema.kind),
                "rows": public.rows,
                "size": size(public.size_bytes),
                "added": local_time(public.added_at),
                "sha256": public.digest,
            }
            for public in found
        ],
        empty="There is no public set yet: `consilium public-set add NAME FILE`.",
    )


def _parts(name: str, converted: ConvertedSet) -> Iterator[admin_pb2.PublishPublicSetRequest]:
    yield admin_pb2.PublishPublicSetRequest(
        header=admin_pb2.PublicSetHeader(
            name=name, digest=converted.digest, size_bytes=converted.size_bytes
        )
    )
    with converted.path.open("rb") as content:
        while data := content.read(CHUNK_BYTES):
            yield admin_pb2.PublishPublicSetRequest(data=data)
