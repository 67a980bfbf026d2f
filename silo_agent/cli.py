"""`consilium agent`, the network side's commands: join, doctor, run, relay, traffic, audit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from silo_agent.audit import movements
from silo_agent.audit_cli import app as audit
from silo_agent.doctor import Surroundings
from silo_agent.doctor_report import report
from silo_agent.findings import Status
from silo_agent.home import SiloHome
from silo_agent.home_option import Home
from silo_agent.joining_again import held_identity, joined_again
from silo_agent.running import RunOptions, run_agent
from silo_agent.traffic import Direction
from wire.ending import DRAIN_SECONDS, Drain, ends_early
from wire.enrolment import join as redeem
from wire.errors import ConfigurationError
from wire.identity import IdentityFiles
from wire.join_token import JoinToken
from wire.logs import configure_logs
from wire.proxy import PROXY_VARIABLE, read_proxy
from wire.terminal import (
    JsonFlag,
    console,
    local_time,
    print_json,
    print_table,
    print_warning,
    size,
)

agent = typer.Typer(no_args_is_help=True, help="Run a hospital: join, take part, see what left.")
agent.add_typer(audit, name="audit")

LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
ProxySetting = Annotated[
    str,
    typer.Option(
        "--proxy",
        envvar=PROXY_VARIABLE,
        metavar="URL",
        help="HTTP proxy: http://[user:password@]host:port, or @FILE that holds it.",
    ),
]
MetricsPort = Annotated[
    int, typer.Option(help="Serve metrics on this port; 0 for none.", min=0, max=65535)
]
MetricsListen = Annotated[
    str, typer.Option(help="Address of the metrics page, which has no authentication.")
]
LeasePatience = Annotated[
    float, typer.Option(help="Seconds to wait for a stale lease of another agent.", min=0)
]


@agent.command()
def join(
    token: Annotated[str, typer.Argument(help="What `consilium silo register` printed, or @FILE.")],
    home: Home,
    proxy: ProxySetting = "",
    if_missing: Annotated[
        bool,
        typer.Option(
            "--if-missing",
            help="Keep an identity that is good, unless the token is another than the one it joined with.",
        ),
    ] = False,
) -> None:
    """Make a key here, redeem the token, store the certificate."""
    folder, via = SiloHome(home).identity, read_proxy(proxy)

    async def redeemed(line: str) -> IdentityFiles:
        return (await redeem(line, folder, lambda: datetime.now(UTC), proxy=via)).files

    held = held_identity(folder) if if_missing else None
    if held is None:
        files = asyncio.run(redeemed(_token_line(token)))
    else:
        line = _line_if_any(token)
        again = asyncio.run(joined_again(held, line, datetime.now(UTC), redeemed, print_warning))
        if again is None:
            console.print(
                f"Joined [bold]{held.consortium}[/] as [bold]{held.name}[/] before; it is kept so."
            )
            return
        files = again
    console.print(
        f"Joined [bold]{files.consortium}[/] as [bold]{files.name}[/]; the certificate is valid until "
        f"{local_time(files.certificate.not_after)}."
    )
    console.print("Next: write silo.yaml, `consilium agent doctor`, `consilium agent run`.")


@agent.command()
def doctor(
    context: typer.Context,
    home: Home,
    token: Annotated[
        str, typer.Option(help="Before joining: examine the way to where this token is redeemed.")
    ] = "",
    proxy: ProxySetting = "",
    network_only: Annotated[
        bool, typer.Option("--network-only", help="Where the trainer has a container of its own.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find what is wrong, from the coordinator's name to the private data. Changes nothing."""
    via = read_proxy(proxy)
    source = context.get_parameter_source("proxy")
    typed = source is not None and source.name == "COMMANDLINE"
    around = Surroundings(
        home=SiloHome(home),
        token=JoinToken.parse(_token_line(token)) if token else None,
        proxy=via,
        password_on_command_line=typed and not proxy.startswith("@") and bool(via and via.password),
        with_private_side=not network_only,
    )
    if report(around, as_json=as_json) is Status.FAILED:
        raise typer.Exit(1)


@agent.command()
def run(
    home: Home,
    metrics_port: MetricsPort = 0,
    metrics_listen: MetricsListen = "127.0.0.1",
    lease_patience: LeasePatience = 60.0,
    drain: Drain = DRAIN_SECONDS,
    proxy: ProxySetting = "",
    log_level: LogLevel = "info",
) -> None:
    """Take part: agent and trainer, each a process of its own. Safe to kill at any moment."""
    page, via = (metrics_port, metrics_listen), read_proxy(proxy)
    _run(home, RunOptions(True, *page, log_level, lease_patience, drain, via))


@agent.command()
def relay(
    home: Home,
    metrics_port: MetricsPort = 0,
    metrics_listen: MetricsListen = "127.0.0.1",
    lease_patience: LeasePatience = 60.0,
    drain: Drain = DRAIN_SECONDS,
    proxy: ProxySetting = "",
    log_level: LogLevel = "info",
) -> None:
    """Run the network side alone, where the trainer has a container of its own."""
    page, via = (metrics_port, metrics_listen), read_proxy(proxy)
    _run(home, RunOptions(False, *page, log_level, lease_patience, drain, via))


@agent.command()
def traffic(home: Home, as_json: JsonFlag = False) -> None:
    """List everything that left this building, and everything that came."""
    crossings = [m for m in movements(SiloHome(home).agent) if m.direction is not Direction.HERE]
    if as_json:
        print_json({"movements": [movement.entry() for movement in crossings]})
        return
    out = sum(m.bytes for m in crossings if m.direction is Direction.OUT)
    came = sum(m.bytes for m in crossings if m.direction is Direction.IN)
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
            for m in crossings
        ],
        empty="Nothing has left this building, and nothing has come.",
        caption=f"{size(out)} out, {size(came)} in",
    )


def _token_line(token: str) -> str:
    """A token as given, or as it stands in @FILE."""
    if not token.startswith("@"):
        return token
    try:
        return Path(token[1:]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{token[1:]} cannot be read: {error}.") from None


def _line_if_any(token: str) -> str:
    """The same, empty where there is no such file: a token that was redeemed may be thrown away."""
    try:
        return _token_line(token)
    except ConfigurationError:
        return ""


def _run(home: Path, options: RunOptions) -> None:
    ends_early()
    configure_logs(options.log_level)
    # gRPC would otherwise be cancelled in the middle of `leave`.
    try:
        asyncio.run(run_agent(SiloHome(home), options))
    except asyncio.CancelledError:
        raise typer.Exit from None
