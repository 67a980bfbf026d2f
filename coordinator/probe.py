"""`consilium coordinator probe`: whether the coordinator of this machine serves, for whoever restarts it.

Loaded alone, so that it starts in a fraction of a second. It asks the process, never the database: a database
that is away is no reason to start a coordinator again.
"""

from __future__ import annotations

import typer

from coordinator.home_option import Home
from wire.runtime.health import health_socket, query_health

WHO = "coordinator"

app = typer.Typer()


@app.command()
def probe(home: Home) -> None:
    """Say in one sentence whether the coordinator of this machine or container serves; status 1 if not."""
    serves = query_health(health_socket(home, WHO))
    if serves:
        typer.echo("The coordinator serves.")
        return
    typer.echo(
        "The coordinator is stopping."
        if serves is False
        else f"No coordinator of {home} answers on this machine."
    )
    raise typer.Exit(1)
