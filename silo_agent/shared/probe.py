"""`consilium agent probe` and `probe-trainer`: health checks for container engines and Kubernetes.

They are loaded without the other commands, so that they start in a fraction of a second.
"""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from wire.runtime.health import health_socket, query_health

COMPONENT = "agent"
CONNECTED = "connected"
"""Name of the health state that is true while the agent holds the coordinator's lease."""

# Its machine may be busy training.
_TRAINER_SECONDS = 8.0

agent = typer.Typer()
trainer = typer.Typer()


@agent.command(name="probe")
def probe(
    home: Home,
    connected: Annotated[
        bool, typer.Option("--connected", help="Also ask whether the coordinator is connected.")
    ] = False,
) -> None:
    """Say in one sentence whether the agent of this machine or container runs; status 1 if not."""
    socket = health_socket(home, COMPONENT)
    runs = query_health(socket)
    if not runs:
        _fail("The agent is stopping." if runs is False else f"No agent of {home} answers here.")
    if not connected:
        typer.echo("The agent runs.")
    elif query_health(socket, CONNECTED):
        typer.echo("The agent runs and is connected with the coordinator.")
    else:
        _fail("The agent runs; the coordinator is not connected.")


@trainer.command(name="probe-trainer")
def probe_trainer(home: Home) -> None:
    """Say in one sentence whether the trainer answers on its socket; status 1 if not."""
    socket = SiloHome(home).socket
    if not query_health(socket, seconds=_TRAINER_SECONDS):
        _fail(f"No trainer answers at {socket}.")
    typer.echo("The trainer answers.")


def _fail(sentence: str) -> NoReturn:
    typer.echo(sentence)
    raise typer.Exit(1)
