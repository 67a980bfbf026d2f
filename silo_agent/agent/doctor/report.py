"""Prints the doctor's findings, each as it is made, or all of them as JSON."""

from __future__ import annotations

from silo_agent.agent.doctor.doctor import DoctorInputs, run_checks
from silo_agent.shared.findings import Finding, Status, print_finding, worst
from wire.runtime.terminal import console, errors, print_json, styled

_VERDICTS = {
    Status.OK: styled("[green]All is well.[/]"),
    Status.WARNING: styled("[yellow]It works; see the warnings.[/]"),
    Status.FAILED: styled(
        "[bold red]It does not work yet;[/] start with the first line marked failed."
    ),
}


def report(inputs: DoctorInputs, *, as_json: bool) -> Status:
    """Runs and prints the checks; returns the worst status."""
    findings = list(run_checks(inputs)) if as_json else _printed(inputs)
    verdict = worst(findings)
    if as_json:
        values = [finding.as_json() for finding in findings]
        print_json({"status": str(verdict), "findings": values})
    else:
        console.print("", _VERDICTS[verdict], sep="\n")
    return verdict


def _printed(inputs: DoctorInputs) -> list[Finding]:
    """Prints findings one by one; a terminal also shows which check is running."""
    findings = []
    with errors.status("") as status:
        for finding in run_checks(inputs, lambda name: status.update(f"{name} …")):
            findings.append(finding)
            print_finding(finding, console)
    return findings
