"""Prints the doctor's findings, each as it is made, or all of them as JSON."""

from __future__ import annotations

from silo_agent.agent.doctor.doctor import DoctorInputs, run_checks
from wire.runtime.findings import (
    Finding,
    Status,
    findings_json,
    print_finding,
    print_verdict,
    worst,
)
from wire.runtime.terminal import console, errors, print_json


def report(inputs: DoctorInputs, *, as_json: bool) -> Status:
    """Runs and prints the checks; returns the worst status."""
    findings = list(run_checks(inputs)) if as_json else _printed(inputs)
    if as_json:
        print_json(findings_json(findings))
    else:
        print_verdict(findings, console)
    return worst(findings)


def _printed(inputs: DoctorInputs) -> list[Finding]:
    """Prints findings one by one; a terminal also shows which check is running."""
    findings = []
    with errors.status("") as status:
        for finding in run_checks(inputs, lambda name: status.update(f"{name} …")):
            findings.append(finding)
            print_finding(finding, console)
    return findings
