"""The result of a check, as one line for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from rich.console import Console

from wire.errors import ConsiliumError
from wire.runtime.terminal import say, styled


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not run, because an earlier check failed."""


@dataclass(frozen=True)
class Finding:
    """What was checked, the result, and what to do about it."""

    name: str
    status: Status
    sentence: str
    next_step: str = ""

    @classmethod
    def from_json(cls, values: dict[str, str]) -> Finding:
        """The inverse of `as_json`; ValueError or KeyError for anything else."""
        return cls(
            values["name"], Status(values["status"]), values["sentence"], values["next_step"]
        )

    def as_json(self) -> dict[str, str]:
        """The fields as strings."""
        return {key: str(value) for key, value in asdict(self).items()}


Check = Callable[[], Finding]
"""Returns a finding, or raises the ConsiliumError that a person should read."""


def ok(name: str, sentence: str) -> Finding:
    """The check passed."""
    return Finding(name, Status.OK, sentence)


def warning(name: str, sentence: str, next_step: str) -> Finding:
    """The check passed, but a person should know something."""
    return Finding(name, Status.WARNING, sentence, next_step)


def failed(name: str, sentence: str, next_step: str) -> Finding:
    """The check failed."""
    return Finding(name, Status.FAILED, sentence, next_step)


def failure(name: str, error: ConsiliumError) -> Finding:
    """The check failed with `error`."""
    return failed(name, error.sentence, error.hint)


def skipped(name: str, because: str) -> Finding:
    """The check was not run."""
    return Finding(name, Status.SKIPPED, f"Not tried: {because}.")


def run_in_order(
    checks: Sequence[tuple[str, Check]],
    *,
    blocked: str = "",
    on_start: Callable[[str], None] = lambda name: None,
) -> Iterator[Finding]:
    """Runs checks of which each needs the ones before it; after a failure the rest are skipped.

    `blocked` is why not even the first may run; `on_start` is called with each name before its check runs.
    """
    for name, check in checks:
        if blocked:
            yield skipped(name, blocked)
            continue
        on_start(name)
        try:
            finding = check()
        except ConsiliumError as error:
            finding = failure(name, error)
        if finding.status is Status.FAILED:
            blocked = f"{name} failed"
        yield finding


def worst(findings: Sequence[Finding]) -> Status:
    """`failed` if one is, else `warning` if one is, else `ok`."""
    for status in (Status.FAILED, Status.WARNING):
        if any(finding.status is status for finding in findings):
            return status
    return Status.OK


_MARKS = {
    Status.OK: styled("[green]✓ ok     [/]"),
    Status.WARNING: styled("[yellow]! warning[/]"),
    Status.FAILED: styled("[bold red]✗ failed [/]"),
    Status.SKIPPED: styled("[dim]· skipped[/]"),
}
_NAME_WIDTH = 16


_VERDICTS = {
    Status.OK: styled("[green]All is well.[/]"),
    Status.WARNING: styled("[yellow]It works; see the warnings.[/]"),
    Status.FAILED: styled(
        "[bold red]It does not work yet;[/] start with the first line marked failed."
    ),
}


def print_verdict(findings: Sequence[Finding], console: Console) -> None:
    """The last line of a doctor's report."""
    say("\n{}", _VERDICTS[worst(findings)], to=console)


def findings_json(findings: Sequence[Finding]) -> dict[str, object]:
    """A doctor's report for programs."""
    values = [finding.as_json() for finding in findings]
    return {"status": str(worst(findings)), "findings": values}


def print_finding(finding: Finding, console: Console) -> None:
    """One line with a mark, and below it what to do."""
    name = f"{finding.name:<{_NAME_WIDTH}}"
    say("{} [bold]{}[/] {}", _MARKS[finding.status], name, finding.sentence, to=console)
    if finding.next_step:
        say("{}[dim]→[/] {}", " " * (_NAME_WIDTH + 11), finding.next_step, to=console)
