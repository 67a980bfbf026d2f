"""`consilium coordinator doctor`: what an operator has to put right, on the coordinator's host."""

from __future__ import annotations

import typer

from coordinator.cli.connection import Home
from coordinator.probe import WHO
from coordinator.server import utc_now
from coordinator.settings import CoordinatorHome
from coordinator.setup.doctor import examine
from wire.runtime.findings import Status, findings_json, print_finding, print_verdict, worst
from wire.runtime.health import health_socket, query_health
from wire.runtime.terminal import JsonFlag, console, print_json


def doctor(home: Home, as_json: JsonFlag = False) -> None:
    """Examine settings, database, certificates, files, disk, clock and ports. Changes nothing."""
    serving = bool(query_health(health_socket(home, WHO)))
    findings = []
    for finding in examine(CoordinatorHome(home), utc_now(), serving=serving):
        findings.append(finding)
        if not as_json:
            print_finding(finding, console)
    if as_json:
        print_json(findings_json(findings))
    else:
        print_verdict(findings, console)
    if worst(findings) is Status.FAILED:
        raise typer.Exit(1)
