"""`consilium coordinator admit-admin`: an admin's way back, on the coordinator's host."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from coordinator.cli.connection import Home
from coordinator.founding import founded_store
from coordinator.readmission import admit_admin as readmit
from coordinator.readmission import misgivings, usual_admin
from coordinator.server import utc_now
from coordinator.settings import CoordinatorHome
from wire.account import person
from wire.terminal import console, local_time


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
    with closing(founded_store(folder, folder.settings())) as store:
        name = name or usual_admin(folder, store)
        doubts = misgivings(folder, store, name, utc_now())
        if doubts and not yes:
            for doubt in doubts:
                console.print(doubt, markup=False)
            typer.confirm(f"Admit {name} as an admin?", abort=True)
        identity = readmit(folder, store, name, utc_now(), f"host/{person()}")
    console.print(
        f"Admin [bold]{name}[/] has a new certificate in {folder.admin}, valid until "
        f"{local_time(identity.certificate.not_after)}."
    )
