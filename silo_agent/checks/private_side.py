"""Has the private side examine itself, in a process of its own; only findings come back, never values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from silo_agent.findings import Finding, warning
from wire.proxy import without_proxy

_PATIENCE_SECONDS = 600.0


class PrivateSide:
    """`consilium agent check` in a child process that gives up the network before it reads anything."""

    def __init__(self, home: Path) -> None:
        """Starts at once: reading data takes longest, so it goes on while the network is examined."""
        command = ["-m", "silo_agent.trainer", "check", "--isolated", "--json", "--home", str(home)]
        self._process = subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # A traceback may quote a cell.
            stderr=subprocess.DEVNULL,
            env=without_proxy(os.environ),
        )

    def findings(self) -> list[Finding]:
        """Waits for the child; one warning if it could not say anything."""
        try:
            said, _ = self._process.communicate(timeout=_PATIENCE_SECONDS)
            return [Finding.from_json(values) for values in json.loads(said)["findings"]]
        except subprocess.TimeoutExpired:
            why = f"it took longer than {_PATIENCE_SECONDS:.0f} s"
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
        """Ends the child if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
