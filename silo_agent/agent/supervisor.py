"""Runs the trainer as a child process of the agent and restarts it when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path

import structlog

from silo_agent.agent.backoff import Backoff
from silo_agent.agent.trainer_client import TrainerClient
from wire.errors import ConfigurationError, Refusal
from wire.net.proxy import without_proxy

log = structlog.get_logger()

# Part of the drain time that the trainer may not use: for its own exit and the agent's.
_RESERVE_SECONDS = 2.0


async def supervise_trainer(
    home: Path, trainer: TrainerClient, log_level: str, drain: float
) -> None:
    """Runs the trainer until cancelled, then lets it finish within `drain` seconds.

    ConfigurationError if it ends before it was ever ready.
    """
    backoff, was_ready = Backoff(first=0.5), False
    while True:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # What lies in the folder the agent was started from is no part of the trainer.
            "-P",
            "-m",
            "silo_agent.trainer",
            "trainer",
            "--home",
            str(home),
            "--log-level",
            log_level,
            "--follow-parent",
            str(os.getpid()),
            "--drain",
            str(max(0.0, drain - _RESERVE_SECONDS)),
            # Its own process group, so that its children can be killed with it.
            process_group=0,
            env=without_proxy(os.environ),
        )
        try:
            was_ready = await _became_ready(process, trainer) or was_ready
            code = await process.wait()
        finally:
            await _stop(process, drain)
        if not was_ready:
            raise ConfigurationError(
                f"The trainer ended with status {code} before it was ready.",
                "Its message stands above; correct silo.yaml and start again.",
            )
        pause = backoff.next()
        log.error("trainer_died", status=code, restart_seconds=round(pause, 1))
        await asyncio.sleep(pause)


async def _became_ready(process: Process, trainer: TrainerClient) -> bool:
    """True once the trainer answers; False if it ended before."""
    while process.returncode is None:
        try:
            await trainer.describe()
            return True
        except Refusal:
            await asyncio.sleep(0.05)
    return False


async def _stop(process: Process, seconds: float) -> None:
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
