"""`consilium silo`: who belongs to the consortium."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from coordinator.cli.connection import Home, admin_link, run
from coordinator.translation import duration
from wire.consilium.v1 import admin_pb2, rounds_pb2
from wire.errors import ConfigurationError
from wire.task import seconds
from wire.terminal import (
    JsonFlag,
    as_dict,
    console,
    enum_word,
    local_time,
    print_json,
    print_messages,
    print_table,
)

app = typer.Typer(no_args_is_help=True, help="Register silos and see how they are.")

Name = Annotated[str, typer.Argument(help="The silo's name.")]


@app.command()
def register(
    name: Name,
    home: Home,
    expires: Annotated[str, typer.Option(help="How long the token is valid.")] = "24h",
    replace_token: Annotated[
        bool, typer.Option(help="Replace the unused token of a silo that has not joined yet.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Register a silo and print its one-time join token."""
    try:
        lifetime = timedelta(seconds=float(seconds(expires)))
    except ValueError as error:
        raise ConfigurationError(f"--expires: {error}.") from None

    async def call() -> admin_pb2.RegisterSiloResponse:
        async with admin_link(home) as link:
            return await link.admin.RegisterSilo(
                admin_pb2.RegisterSiloRequest(
                    name=name, token_lifetime=duration(lifetime), replace_token=replace_token
                )
            )

    response = run(call())
    if as_json:
        print_json(as_dict(response))
        return
    console.print(
        f"Silo [bold]{response.silo.name}[/] is registered. Give this token to its IT, once, over a "
        f"channel you trust; it is valid until {local_time(response.expires_at)}:\n"
    )
    typer.echo(response.join_token)
    console.print("\nThere: `consilium agent join TOKEN`, then `consilium agent run`.")


@app.command(name="list")
def list_command(home: Home, as_json: JsonFlag = False) -> None:
    """List every silo."""

    async def call() -> admin_pb2.ListSilosResponse:
        async with admin_link(home) as link:
            return await link.admin.ListSilos(admin_pb2.ListSilosRequest())

    silos = run(call()).silos
    if as_json:
        print_messages("silos", silos)
        return
    print_table(
        "Silos",
        [silo_row(silo) for silo in silos],
        empty="No silo is registered yet: `consilium silo register NAME`.",
    )


@app.command()
def show(name: Name, home: Home, as_json: JsonFlag = False) -> None:
    """Show one silo."""

    async def call() -> admin_pb2.GetSiloResponse:
        async with admin_link(home) as link:
            return await link.admin.GetSilo(admin_pb2.GetSiloRequest(name=name))

    silo = run(call()).silo
    if as_json:
        print_json(as_dict(silo))
        return
    for key, value in silo_row(silo).items():
        console.print(f"{key:<12} {value}")


@app.command()
def revoke(
    name: Name,
    home: Home,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Refuse every further call of a silo, for good."""
    if not yes:
        typer.confirm(f"Revoke {name}? It cannot come back under this certificate.", abort=True)

    async def call() -> None:
        async with admin_link(home) as link:
            await link.admin.RevokeSilo(admin_pb2.RevokeSiloRequest(name=name))

    run(call())
    console.print(f"Silo [bold]{name}[/] is revoked.")


def silo_row(silo: admin_pb2.Silo) -> dict[str, object]:
    """A silo as a person reads it."""
    status = admin_pb2.SiloStatus.Name(silo.status).removeprefix("SILO_STATUS_")
    activity = rounds_pb2.Activity.Name(silo.activity).removeprefix("ACTIVITY_")
    return {
        "silo": silo.name,
        "status": enum_word(status),
        "connected": "yes" if silo.connected else "no",
        "doing": enum_word(activity) if silo.connected else "–",
        "last seen": local_time(silo.last_seen_at),
        "certificate": local_time(silo.certificate_expires_at),
        "version": silo.agent_version or "–",
    }
