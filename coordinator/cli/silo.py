"""`consilium silo`: who belongs to the consortium."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from coordinator.api.translation import duration
from coordinator.cli.connection import Home, admin_link, run, token_lifetime
from wire.consilium.v1 import admin_pb2, rounds_pb2
from wire.runtime.terminal import (
    JsonFlag,
    as_dict,
    enum_word,
    local_time,
    print_json,
    print_messages,
    print_table,
    say,
    say_plain,
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

    async def call() -> admin_pb2.RegisterSiloResponse:
        async with admin_link(home) as link:
            return await link.admin.RegisterSilo(
                admin_pb2.RegisterSiloRequest(
                    name=name,
                    token_lifetime=duration(token_lifetime(expires)),
                    replace_token=replace_token,
                )
            )

    response = run(call())
    if as_json:
        print_json(as_dict(response))
        return
    say(
        "Silo [bold]{}[/] is registered. Give this token to its IT, once, over a channel you trust; "
        "it is valid until {}:\n",
        response.silo.name,
        local_time(response.expires_at),
    )
    say_plain(response.join_token)
    say(
        "\nThere: `consilium agent join @FILE`, with the token in FILE, then `consilium agent run`."
    )


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
        say("{} {}", f"{key:<12}", value)


class Ballots(StrEnum):
    """What becomes of a silo's ballots in the rounds that are open."""

    KEEP = "keep"
    DROP = "drop"

    @property
    def dropped(self) -> bool:
        """True if they no longer count."""
        match self:
            case Ballots.KEEP:
                return False
            case Ballots.DROP:
                return True


BallotsOption = Annotated[
    Ballots, typer.Option(help="Whether its ballots in open rounds still count.")
]


@app.command()
def revoke(
    name: Name,
    ballots: BallotsOption,
    home: Home,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Refuse every further call of a silo, for good, and end its open streams."""
    if not yes:
        typer.confirm(f"Revoke {name}? To come back it needs a new token.", abort=True)
    request = admin_pb2.RevokeSiloRequest(name=name, drop_ballots=ballots.dropped)

    async def call() -> None:
        async with admin_link(home) as link:
            await link.admin.RevokeSilo(request)

    run(call())
    say("Silo [bold]{}[/] is revoked.", name)


@app.command()
def suspend(name: Name, ballots: BallotsOption, home: Home) -> None:
    """Refuse a silo's calls until it is resumed; its certificate stays good."""
    request = admin_pb2.SuspendSiloRequest(name=name, drop_ballots=ballots.dropped)

    async def call() -> None:
        async with admin_link(home) as link:
            await link.admin.SuspendSilo(request)

    run(call())
    say("Silo [bold]{}[/] is suspended.", name)


@app.command()
def resume(name: Name, home: Home) -> None:
    """Let a suspended silo in again, from the next round on."""

    async def call() -> None:
        async with admin_link(home) as link:
            await link.admin.ResumeSilo(admin_pb2.ResumeSiloRequest(name=name))

    run(call())
    say("Silo [bold]{}[/] takes part again.", name)


def silo_row(silo: admin_pb2.Silo) -> dict[str, object]:
    """A silo as a person reads it."""
    return {
        "silo": silo.name,
        "status": enum_word(admin_pb2.MemberStatus, silo.status),
        "connected": "yes" if silo.connected else "no",
        "doing": enum_word(rounds_pb2.Activity, silo.activity) if silo.connected else "–",
        "last seen": local_time(silo.last_seen_at),
        "certificate": local_time(silo.certificate_expires_at),
        "version": silo.agent_version or "–",
    }
