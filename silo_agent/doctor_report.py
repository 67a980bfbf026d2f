"""How the doctor tells: each finding as it is made, or all of them as JSON."""

from __future__ import annotations

from silo_agent.doctor import Surroundings, examine
from silo_agent.findings import Finding, Status, print_finding, worst
from wire.terminal import console, errors, print_json

_VERDICTS = {
    Status.OK: "[green]All is well.[/]",
    Status.WARNING: "[yellow]It works; see the warnings.[/]",
    Status.FAILED: "[bold red]It does not work yet;[/] start with the first line marked failed.",
}


def report(around: Surroundings, *, as_json: bool) -> Status:
    """Examines and prints; the worst status found."""
    findings = list(examine(around)) if as_json else _told(around)
    verdict = worst(findings)
    if as_json:
        told = [finding.as_json() for finding in findings]
        print_json({"status": str(verdict), "findings": told})
    else:
        console.print(f"\n{_VERDICTS[verdict]}")
    return verdict


def _told(around: Surroundings) -> list[Finding]:
    """Prints findings one by one; a terminal also shows what is being looked at."""
    findings = []
    with errors.status("") as status:
        for finding in examine(around, lambda name: status.update(f"{name} …")):
            findings.append(finding)
            print_finding(finding, console)
    return findings
