"""`consilium agent`, the network side's commands: join, run, relay, traffic."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from silo_agent.enrolment import join as redeem
from silo_agent.home import SiloHome, default_home
from silo_agent.running import RunOptions, run_agent
from silo_agent.traffic import Direction, Traffic
from wire.errors import ConfigurationError
from wire.logs import configure_logs
from wire.terminal import JsonFlag, console, local_time, print_json, print_table, size

agent = typer.Typer(no_args_is_help=True, help="Run a hospital: join, take part, see what left.")

Home = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="CONSILIUM_SILO_HOME",
        default_factory=default_home,
        show_default="~/.consilium/silo",
        help="The silo's folder.",
    ),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
MetricsPort = Annotated[
    int, typer.Option(help="Serve metrics on this loopback port; 0 for none.", min=0, max=65535)
]
LeasePatience = Annotated[
    float, typer.Option(help="Seconds to wait for a stale lease of another agent.", min=0)
]


@agent.command()
def join(
    token: Annotated[str, typer.Argument(help="What `consilium silo register` printed, or @FILE.")],
    home: Home,
) -> None:
    """Make a key here, redeem the token, store the certificate."""
    if token.startswith("@"):
        try:
            token = Path(token[1:]).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{token[1:]} cannot be read: {error}.") from None
    enrolled = asyncio.run(redeem(token, SiloHome(home).identity, lambda: datetime.now(UTC)))
    files = enrolled.files
    console.print(
        f"Joined [bold]{files.consortium}[/] as [bold]{files.name}[/]; the certificate is valid until "
        f"{local_time(enrolled.certificate.not_after)}."
    )
    console.print("Next: write silo.yaml, `consilium agent check`, `consilium agent run`.")


@agent.command()
def run(
    home: Home,
    metrics_port: MetricsPort = 0,
    lease_patience: LeasePatience = 60.0,
    log_level: LogLevel = "info",
) -> None:
    """Take part: agent and trainer, each a process of its own. Safe to kill at any moment."""
    _run(home, RunOptions(True, metrics_port, log_level, lease_patience))


@agent.command()
def relay(
    home: Home,
    metrics_port: MetricsPort = 0,
    lease_patience: LeasePatience = 60.0,
    log_level: LogLevel = "info",
) -> None:
    """Run the network side alone, where the trainer has a container of its own."""
    _run(home, RunOptions(False, metrics_port, log_level, lease_patience))


@agent.command()
def traffic(home: Home, as_json: JsonFlag = False) -> None:
    """List everything that left this building, and everything that came."""
    movements = list(Traffic(SiloHome(home).agent / "traffic.jsonl").movements())
    if as_json:
        print_json({"movements": [asdict(movement) for movement in movements]})
        return
    out = sum(m.bytes for m in movements if m.direction is Direction.OUT)
    came = sum(m.bytes for m in movements if m.direction is Direction.IN)
    print_table(
        "Traffic",
        [
            {
                "time": local_time(datetime.fromisoformat(m.at)),
                "": "→ out" if m.direction is Direction.OUT else "← in",
                "what": m.kind,
                "task": m.task,
                "round": m.round or "–",
                "size": size(m.bytes),
                "sha256": m.digest,
            }
            for m in movements
        ],
        empty="Nothing has left this building, and nothing has come.",
        caption=f"{size(out)} out, {size(came)} in",
    )


def _run(home: Path, options: RunOptions) -> None:
    configure_logs(options.log_level)
    # gRPC would otherwise be cancelled in the middle of `leave`.
    try:
        asyncio.run(run_agent(SiloHome(home), options))
    except asyncio.CancelledError:
        raise typer.Exit from None
