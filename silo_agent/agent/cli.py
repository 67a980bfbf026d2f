"""`consilium agent`, the network side's commands: join, doctor, run, relay, fetch, traffic, audit."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from silo_agent.agent.audit.cli import app as audit
from silo_agent.agent.audit.entries import AuditEntry, Direction
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.agent.doctor.doctor import DoctorInputs
from silo_agent.agent.doctor.report import report
from silo_agent.agent.fetch import fetch_public_set
from silo_agent.agent.rejoin import existing_identity, rejoin
from silo_agent.agent.run import RunOptions, run_agent
from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from wire.errors import ConfigurationError
from wire.identity.files import IdentityFiles
from wire.identity.join_token import JoinToken
from wire.net.enrolment import join as redeem
from wire.net.metrics_page import MetricsPage, PageAccess
from wire.net.proxy import PROXY_VARIABLE, read_proxy
from wire.runtime.findings import Status
from wire.runtime.logs import configure_logs
from wire.runtime.secret_option import secret_text
from wire.runtime.shutdown import DRAIN_SECONDS, Drain, exit_on_sigterm
from wire.runtime.terminal import (
    JsonFlag,
    local_time,
    print_json,
    print_table,
    print_warning,
    say,
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
    str,
    typer.Option(help="Address of the metrics page; anybody who reaches it may read it, unless…"),
]
MetricsCredentials = Annotated[
    Path | None,
    typer.Option(
        envvar="CONSILIUM_METRICS_CREDENTIALS_FILE",
        help="…this file holds a bearer token or user:password that the page wants.",
    ),
]
MetricsTls = Annotated[
    Path | None,
    typer.Option(
        envvar="CONSILIUM_METRICS_TLS_FOLDER",
        help="Folder with tls.crt and tls.key: the metrics page is served with TLS.",
    ),
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

    async def redeemed(text: str) -> IdentityFiles:
        return (await redeem(text, folder, lambda: datetime.now(UTC), proxy=via)).files

    existing = existing_identity(folder) if if_missing else None
    if existing is None:
        files = asyncio.run(redeemed(secret_text(token)))
    else:
        text, now = _token_text_if_any(token), datetime.now(UTC)
        renewed = asyncio.run(rejoin(existing, text, now, redeemed, print_warning))
        if renewed is None:
            say(
                "Joined [bold]{}[/] as [bold]{}[/] before; it is kept so.",
                existing.consortium,
                existing.name,
            )
            return
        files = renewed
    say(
        "Joined [bold]{}[/] as [bold]{}[/]; the certificate is valid until {}.",
        files.consortium,
        files.name,
        local_time(files.certificate.not_after),
    )
    say("Next: write silo.yaml, `consilium agent doctor`, `consilium agent run`.")


@agent.command()
def doctor(
    context: typer.Context,
    home: Home,
    token: Annotated[
        str,
        typer.Option(
            help="Before joining: examine the way to where this token is redeemed; or @FILE."
        ),
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
    on_command_line = source is not None and source.name == "COMMANDLINE"
    inputs = DoctorInputs(
        home=SiloHome(home),
        token=JoinToken.parse(secret_text(token)) if token else None,
        proxy=via,
        password_on_command_line=on_command_line
        and not proxy.startswith("@")
        and bool(via and via.password),
        with_private_side=not network_only,
    )
    if report(inputs, as_json=as_json) is Status.FAILED:
        raise typer.Exit(1)


@agent.command()
def run(
    home: Home,
    metrics_port: MetricsPort = 0,
    metrics_listen: MetricsListen = "127.0.0.1",
    metrics_credentials_file: MetricsCredentials = None,
    metrics_tls_folder: MetricsTls = None,
    lease_patience: LeasePatience = 60.0,
    drain: Drain = DRAIN_SECONDS,
    proxy: ProxySetting = "",
    log_level: LogLevel = "info",
) -> None:
    """Take part: agent and trainer, each a process of its own. Safe to kill at any moment."""
    access = PageAccess(metrics_credentials_file, metrics_tls_folder)
    page, via = MetricsPage(metrics_listen, metrics_port, access), read_proxy(proxy)
    _run(home, RunOptions(True, page, log_level, lease_patience, drain, via))


@agent.command()
def relay(
    home: Home,
    metrics_port: MetricsPort = 0,
    metrics_listen: MetricsListen = "127.0.0.1",
    metrics_credentials_file: MetricsCredentials = None,
    metrics_tls_folder: MetricsTls = None,
    lease_patience: LeasePatience = 60.0,
    drain: Drain = DRAIN_SECONDS,
    proxy: ProxySetting = "",
    log_level: LogLevel = "info",
) -> None:
    """Run the network side alone, where the trainer has a container of its own."""
    access = PageAccess(metrics_credentials_file, metrics_tls_folder)
    page, via = MetricsPage(metrics_listen, metrics_port, access), read_proxy(proxy)
    _run(home, RunOptions(False, page, log_level, lease_patience, drain, via))


@agent.command()
def fetch(
    digest: Annotated[str, typer.Argument(help="A public set's digest, from `agent tasks`.")],
    home: Home,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    proxy: ProxySetting = "",
) -> None:
    """Fetch a public set before deciding on its task; sets of approved tasks are fetched by themselves."""
    via = read_proxy(proxy)

    def agreed(length: int) -> bool:
        return yes or typer.confirm(f"Fetch {size(length)}?")

    if asyncio.run(fetch_public_set(SiloHome(home), digest, via, agreed)):
        say("Public set {} is in {}.", digest, SiloHome(home).public_sets)


@agent.command()
def traffic(home: Home, as_json: JsonFlag = False) -> None:
    """List everything that left this building, and everything that came."""
    entries = read_entries(SiloHome(home).agent)
    crossings = [entry for entry in entries if entry.direction is not Direction.HERE]
    if as_json:
        print_json({"movements": [entry.as_json() for entry in crossings]})
        return
    crossed = Counter[Direction]()
    for entry in crossings:
        crossed[entry.direction] += entry.bytes
    print_table(
        "Traffic",
        [_traffic_row(entry) for entry in crossings],
        empty="Nothing has left this building, and nothing has come.",
        caption=f"{size(crossed[Direction.OUT])} out, {size(crossed[Direction.IN])} in",
    )


def _traffic_row(entry: AuditEntry) -> dict[str, object]:
    return {
        "time": local_time(datetime.fromisoformat(entry.at)),
        "": "→ out" if entry.direction is Direction.OUT else "← in",
        "what": entry.kind,
        "task": entry.task,
        "round": entry.round or "–",
        "size": size(entry.bytes),
        "sha256": entry.digest,
    }


def _token_text_if_any(token: str) -> str:
    """A token as given or the content of @FILE, empty if there is no such file: one whose token was redeemed may be deleted."""
    try:
        return secret_text(token)
    except ConfigurationError:
        return ""


def _run(home: Path, options: RunOptions) -> None:
    exit_on_sigterm()
    configure_logs(options.log_level)
    # gRPC would otherwise be cancelled in the middle of `leave`.
    try:
        asyncio.run(run_agent(SiloHome(home), options))
    except asyncio.CancelledError:
        raise typer.Exit from None
