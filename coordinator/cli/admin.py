"""`consilium admin`: who may administer the consortium."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import typer

from coordinator.api.translation import duration
from coordinator.cli.connection import Home, admin_link, renewed_admin, run, token_lifetime
from coordinator.server import utc_now
from wire.consilium.v1 import admin_pb2, identity_pb2
from wire.identity.identity import Role
from wire.net.enrolment import join as redeem
from wire.runtime.secret_option import secret_text
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

app = typer.Typer(no_args_is_help=True, help="Register further admins, each with a certificate.")

Name = Annotated[str, typer.Argument(help="The admin's name.")]


@app.command()
def register(
    name: Name,
    home: Home,
    expires: Annotated[str, typer.Option(help="How long the token is valid.")] = "24h",
    replace_token: Annotated[
        bool, typer.Option(help="Replace the unused token of an admin that has not joined yet.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Register an admin and print its one-time join token."""
    request = admin_pb2.RegisterAdminRequest(
        name=name, token_lifetime=duration(token_lifetime(expires)), replace_token=replace_token
    )

    async def call() -> admin_pb2.RegisterAdminResponse:
        async with admin_link(home) as link:
            return await link.admin.RegisterAdmin(request)

    response = run(call())
    if as_json:
        print_json(as_dict(response))
        return
    say(
        "Admin [bold]{}[/] is registered; the token is valid until {}:\n",
        name,
        local_time(response.expires_at),
    )
    say_plain(response.join_token)
    say("\nThere: `consilium admin join @FILE`, with the token in FILE.")


@app.command()
def join(
    token: Annotated[
        str, typer.Argument(help="What `consilium admin register` printed, or @FILE.")
    ],
    home: Home,
) -> None:
    """Make a key here, redeem the token, store the certificate."""
    enrolled = asyncio.run(redeem(secret_text(token), home / "admin", utc_now, role=Role.ADMIN))
    joined = enrolled.files
    say("Joined [bold]{}[/] as admin [bold]{}[/].", joined.consortium, joined.name)


@app.command()
def renew(home: Home) -> None:
    """Renew this admin's certificate now; otherwise commands do it at two thirds of its life."""

    async def call() -> datetime:
        expires = (await renewed_admin(home)).certificate.not_after
        async with admin_link(home) as link:
            # The first call with the new certificate withdraws the old one.
            await link.identity.WhoAmI(identity_pb2.WhoAmIRequest())
        return expires

    say("Renewed; the certificate is valid until {}.", local_time(run(call())))


@app.command(name="list")
def list_command(home: Home, as_json: JsonFlag = False) -> None:
    """List every admin."""

    async def call() -> admin_pb2.ListAdminsResponse:
        async with admin_link(home) as link:
            return await link.admin.ListAdmins(admin_pb2.ListAdminsRequest())

    admins = run(call()).admins
    if as_json:
        print_messages("admins", admins)
        return
    print_table(
        "Admins",
        [
            {
                "admin": admin.name,
                "status": enum_word(admin_pb2.MemberStatus, admin.status),
                "registered": local_time(admin.registered_at),
                "certificate": local_time(admin.certificate_expires_at),
            }
            for admin in admins
        ],
        empty="There is no admin.",
    )


@app.command()
def revoke(
    name: Name,
    home: Home,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Refuse every further call of an admin, for good."""
    if not yes:
        typer.confirm(f"Revoke admin {name}?", abort=True)

    async def call() -> None:
        async with admin_link(home) as link:
            await link.admin.RevokeAdmin(admin_pb2.RevokeAdminRequest(name=name))

    run(call())
    say("Admin [bold]{}[/] is revoked.", name)
