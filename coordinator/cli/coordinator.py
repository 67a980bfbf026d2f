"""`consilium coordinator`: make a consortium, serve it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

import typer
import yaml

from coordinator.authority import Authority
from coordinator.cli.connection import Home
from coordinator.server import serve, server_files, utc_now
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from wire.configuration import checked
from wire.errors import ConfigurationError
from wire.files import write_atomically
from wire.identity import IdentityFiles
from wire.logs import configure_logs
from wire.terminal import console

app = typer.Typer(no_args_is_help=True, help="Make a consortium and run its coordinator.")

_SERVER_LIFETIME = timedelta(days=365)
_ADMIN_LIFETIME = timedelta(days=365)


@app.command()
def init(
    home: Home,
    consortium: Annotated[str, typer.Option(help="Name of the consortium.")] = "consilium",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address silos reach this machine by; repeat for several."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the mutually authenticated services.")] = 7443,
    enrolment_port: Annotated[int, typer.Option(help="Port where tokens are redeemed.")] = 7444,
    metrics_port: Annotated[int, typer.Option(help="Port of the metrics page.")] = 9464,
    listen: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104
    lease: Annotated[str, typer.Option(help="How long a silent silo counts as connected.")] = "30s",
    admin: Annotated[str, typer.Option(help="Name of the first admin.")] = "admin",
) -> None:
    """Make the consortium's authority, the server's certificate and the first admin's identity."""
    folder = CoordinatorHome(home)
    settings = checked(
        {
            "consortium": consortium,
            "hosts": tuple(host or ["localhost"]),
            "listen": listen,
            "port": port,
            "enrolment_port": enrolment_port,
            "metrics_port": metrics_port,
            "lease": lease,
        },
        CoordinatorSettings,
        "options",
    )
    now = utc_now()
    authority = Authority.create(folder.authority, settings.consortium, now)
    issue_server(folder, authority, settings)
    issued = authority.issue_admin(admin, _ADMIN_LIFETIME, now)
    IdentityFiles(
        folder=folder.admin,
        key_pem=issued.key_pem,
        certificate_pem=issued.certificate_pem,
        authorities_pem=authority.certificate_pem,
        coordinator_address=settings.address,
        consortium=settings.consortium,
        name=admin,
    ).store()
    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
    write_atomically(folder.settings_file, text.encode())
    console.print(f"Consortium [bold]{settings.consortium}[/] made in {home}.")
    console.print(f"Authority  {authority.fingerprint}")
    console.print("Next: `consilium coordinator serve`, then `consilium silo register NAME`.")


def issue_server(
    folder: CoordinatorHome, authority: Authority, settings: CoordinatorSettings
) -> None:
    """Makes the server's key and certificate for the hosts in `settings`."""
    issued = authority.issue_server(list(settings.hosts), _SERVER_LIFETIME, utc_now())
    issued.store(*server_files(folder.server))


@app.command(name="serve")
def serve_command(
    home: Home,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve until stopped; safe to kill at any moment."""
    folder = CoordinatorHome(home)
    if not folder.settings_file.exists():
        raise ConfigurationError(
            f"There is no coordinator in {home}.", "Make one with `consilium coordinator init`."
        )
    configure_logs(log_level)
    asyncio.run(serve(folder))
