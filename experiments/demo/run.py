"""The demo from beginning to end: split the patients, run the federation, score, report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

from rich.console import Console

from experiments.demo.federation import Federation
from experiments.demo.hospitals import split_patients
from experiments.demo.live import Step, view_for
from experiments.demo.outcome import Outcome, make_outcome
from experiments.demo.processes import Processes
from experiments.demo.report import Report, write_report
from experiments.demo.scores import score


async def run_demo(
    folder: Path, seed: int, max_rounds: int, report: Path, shown: Console
) -> tuple[Outcome, Report]:
    """Runs in `folder`, writes the report and tells `shown` how far it is; leaves no process behind."""
    began = perf_counter()
    with view_for(shown, max_rounds, perf_counter) as view:
        cohorts = split_patients(seed)
        async with Processes(folder) as processes:
            federation = Federation(folder, processes, view)
            federation_run = await processes.guard(federation.run(cohorts, seed, max_rounds))
        seconds = perf_counter() - began
        # In a thread, so that a Ctrl-C is heard meanwhile.
        scores = await asyncio.to_thread(
            score,
            federation_run.homes,
            federation_run.models,
            federation_run.public_file,
            cohorts.test,
        )
        view.advance(Step.SCORES)
        outcome = make_outcome(federation_run, cohorts, scores, seed=seed, seconds=seconds)
        written = await asyncio.to_thread(write_report, outcome, report)
        view.advance(Step.REPORT)
    return outcome, written
