"""`consilium coordinator admit-admin`: a new certificate for an admin, on the coordinator's host."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from coordinator.cli.connection import Home
from coordinator.server import utc_now
from coordinator.settings import CoordinatorHome
from coordinator.setup.init import open_existing_store
from coordinator.setup.readmission import admit_admin as readmit
from coordinator.setup.readmission import default_admin, readmission_warnings
from coordinator.store.actors import LocalActor
from wire.identity.account import os_account
from wire.runtime.terminal import local_time, say


def admit_admin(
    home: Home,
    name: Annotated[
        str, typer.Argument(help="The admin's name; default: whose identity is in the folder.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give an admin a new certificate when its own has expired or is lost.

    Run it on the coordinator's host, also while it serves. It is recorded with the name of your account.
    """
    folder = CoordinatorHome(home)
    with closing(open_existing_store(folder, folder.settings())) as store:
        name = name or default_admin(folder, store)
        warnings = readmission_warnings(folder, store, name, utc_now())
        if warnings and not yes:
            for warning in warnings:
                say("{}", warning)
            typer.confirm(f"Admit {name} as an admin?", abort=True)
        identity = readmit(folder, store, name, utc_now(), LocalActor(f"host/{os_account()}"))
    say(
        "Admin [bold]{}[/] has a new certificate in {}, valid until {}.",
        name,
        folder.admin,
        local_time(identity.certificate.not_after),
    )
