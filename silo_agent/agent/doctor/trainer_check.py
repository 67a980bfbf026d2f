"""Runs the private side's own checks in a child process; only findings come back, never data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from wire.net.proxy import without_proxy
from wire.runtime.findings import Finding, warning

_TIMEOUT_SECONDS = 600.0


class TrainerCheck:
    """`consilium agent check` in a child process that isolates itself from the network before it reads data."""

    def __init__(self, home: Path) -> None:
        """Starts the child at once: reading data takes longest, so it runs during the network checks."""
        command = ["check", "--isolated", "--json", "--home", str(home)]
        self._process = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-P", "-m", "silo_agent.trainer", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A traceback may quote a cell.
            stderr=subprocess.DEVNULL,
            env=without_proxy(os.environ),
        )

    def findings(self) -> list[Finding]:
        """Waits for the child and returns its findings, or one warning if it failed."""
        try:
            output, _ = self._process.communicate(timeout=_TIMEOUT_SECONDS)
            return [Finding.from_json(values) for values in json.loads(output)["findings"]]
        except subprocess.TimeoutExpired:
            why = f"it took longer than {_TIMEOUT_SECONDS:.0f} s"
        except (ValueError, KeyError, TypeError):
            why = f"it ended with status {self._process.returncode}"
        return [
            warning(
                "private side",
                f"It could not be examined from here: {why}.",
                "Run `consilium agent check` where the trainer runs.",
            )
        ]

    def close(self) -> None:
        """Kills the child if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
