"""Starts a command that the kernel ends when the demo does, even if the demo is killed with -9.

Run as a script: `die_with_parent.py PARENT COMMAND …`. It imports the standard library only, so it costs 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Becomes the command, unless PARENT (a process id) is gone already."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    # SIGTERM, so that an agent takes its trainer along.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:
        os.execv(command[0], command)  # noqa: S606  the demo's own commands


if __name__ == "__main__":
    main()
