"""`consilium agent`, the private side's commands: trainer, check, tasks, approve, ledger, export-model, backup, restore."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from silo_agent.trainer.cli.backup import backup, restore
from silo_agent.trainer.cli.ledger import ledger
from silo_agent.trainer.isolation import give_up_network
from wire.errors import ConfigurationError
from wire.runtime.files import lock_holder
from wire.runtime.findings import Finding, Status, print_finding, worst
from wire.runtime.logs import configure_logs
from wire.runtime.permissions import PRIVATE
from wire.runtime.shutdown import DRAIN_SECONDS, Drain, exit_on_sigterm, kill_children
from wire.runtime.terminal import JsonFlag, console, print_json, print_table, say

private = typer.Typer(help="The private side.")
private.add_typer(ledger, name="ledger")
private.command()(backup)
private.command()(restore)

_PR_SET_PDEATHSIG = 1
_OTHER_SETTINGS = "The trainer runs with other settings than silo.yaml has now."


@private.command()
def trainer(
    home: Home,
    drain: Drain = DRAIN_SECONDS,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    follow_parent: Annotated[
        int, typer.Option(hidden=True, help="End when this process, the one that started it, ends.")
    ] = 0,
) -> None:
    """Run the private side alone: data, model, no network."""
    exit_on_sigterm()
    # This log never leaves the private side.
    configure_logs(log_level, exception_text=True)
    if follow_parent:
        _die_with(follow_parent)
    # Before anything that starts a thread: a user namespace needs a single one.
    isolation = give_up_network()
    from silo_agent.trainer.server import serve

    asyncio.run(serve(SiloHome(home), isolation, drain))
    # A learner may have started some.
    kill_children()


@private.command()
def check(
    home: Home,
    public_set: Annotated[
        Path | None, typer.Option(help="A downloaded public set; default: those of past tasks.")
    ] = None,
    as_json: JsonFlag = False,
    isolated: Annotated[
        bool,
        typer.Option(
            hidden=True, help="For `agent doctor`: give up the network, and tell nothing of rows."
        ),
    ] = False,
) -> None:
    """Check silo.yaml, the private data and the learner before anything starts."""
    isolation = give_up_network() if isolated else None
    from silo_agent.trainer.check import TrainerChecks, without_rows

    checks = TrainerChecks(SiloHome(home), public_set, isolation=isolation)
    if as_json:
        findings = list(checks.findings())
        # The network side's doctor reads this as well, and asks for it isolated: it gets no details.
        if isolated:
            print_json({"findings": [without_rows(finding).as_json() for finding in findings]})
        else:
            said = [finding.as_json() for finding in findings]
            print_json({"findings": said, "details": checks.details})
        if worst(findings) is Status.FAILED:
            raise typer.Exit(1)
        return
    broken = _print_to_first_failure(checks.findings())
    for detail in checks.details:
        say("{}", detail)
    if broken is not None:
        raise ConfigurationError(f"{broken.name}: {broken.sentence}", broken.next_step)


def _print_to_first_failure(findings: Iterable[Finding]) -> Finding | None:
    """Prints findings as they come; the first that failed is returned and none after it is looked for."""
    for finding in findings:
        if finding.status is Status.FAILED:
            return finding
        print_finding(finding, console)
    return None


@private.command()
def tasks(home: Home, as_json: JsonFlag = False) -> None:
    """List every task laid before this hospital, and where it stands."""
    from silo_agent.trainer.approval.view import seen
    from silo_agent.trainer.settings import read_settings

    folder = SiloHome(home)
    settings = read_settings(folder.settings_file)
    found = seen(folder, settings.criteria)
    if as_json:
        print_json({"tasks": [task.to_json() for task in found]})
        return
    empty = "No task has been laid before this silo yet."
    print_table("Tasks", [task.row() for task in found], empty=empty)
    if not _runs_with(folder, settings.fingerprint):
        say("{} Restart it; until then it does nothing.", _OTHER_SETTINGS)


@private.command()
def approve(
    task: Annotated[
        str, typer.Argument(help="Name of a task, or (the first 12 digits of) its digest.")
    ],
    home: Home,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Take the approval back; votes already cast stay cast."),
    ] = False,
    note: Annotated[str, typer.Option(help="Kept with the act: why, or on whose behalf.")] = "",
) -> None:
    """Accept exactly this definition of a task: train for it and vote in it."""
    from silo_agent.trainer.about_task import about_task
    from silo_agent.trainer.approval.consent import ApprovalState, act_on
    from silo_agent.trainer.approval.record import Act, ApprovalRecord
    from silo_agent.trainer.approval.view import find, print_definition, print_lines, seen
    from silo_agent.trainer.settings import read_settings
    from wire.identity.account import os_account

    folder = SiloHome(home)
    settings = read_settings(folder.settings_file)
    chosen = find(seen(folder, settings.criteria), task)
    definition = chosen.definition
    act = Act.WITHDRAWN if withdraw else Act.APPROVED
    print_definition(chosen, console)
    if act is Act.APPROVED:
        if not _runs_with(folder, settings.fingerprint):
            raise ConfigurationError(
                _OTHER_SETTINGS, "Restart the trainer, read the task again, then approve it."
            )
        print_lines("data", about_task(folder, settings, definition), console)
        if chosen.decision.state is ApprovalState.REFUSED:
            raise ConfigurationError(
                f"Task {definition.name} breaks this hospital's policy: "
                f"{'; '.join(chosen.decision.broken)}.",
                "Approval cannot override a limit: ask the admin for another task, or change "
                f"`policy` in {folder.settings_file}.",
            )
        if not yes:
            typer.confirm("Accept this definition?", abort=True)
    entry = act_on(act, definition, chosen.criteria, os_account(), datetime.now(UTC), note)
    ApprovalRecord(folder.approvals).add(entry)
    say("[bold]{}[/] is {}; recorded in {}.", definition.name, act, folder.approvals)


@private.command(name="export-model")
def export_model(
    task: Annotated[str, typer.Argument(help="Name of a finished task.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    home: Home,
) -> None:
    """Copy the final model of a task to a file here at home; load it with joblib.load."""
    from silo_agent.trainer.task_folder import find_task

    path = find_task(SiloHome(home).tasks, task).model_path()
    if path is None:
        raise ConfigurationError(
            f"Task {task} has no final model yet.", "It is trained when the task has finished."
        )
    try:
        shutil.copyfile(path, out)
        out.chmod(PRIVATE.file)
    except OSError as error:
        # shutil's own refusals of pipes and of the file itself carry no reason.
        why = error.strerror or "it is a pipe or the kept model itself"
        raise ConfigurationError(
            f"{out} cannot be written: {why}.", "Name a file with --out."
        ) from None
    say("Model of [bold]{}[/] written to {}; it holds private knowledge.", task, out)


def _runs_with(home: SiloHome, fingerprint: str) -> bool:
    """False if a trainer runs that read something else from silo.yaml."""
    return lock_holder(home.trainer_lock) in (None, fingerprint)


def _die_with(parent: int) -> None:
    """Has the kernel end this process when `parent` does, however that ends.

    Not by SIGTERM, which lets a training finish: the next agent's trainer would share its folder and
    socket with this one for as long as that takes.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before the kernel was asked.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
