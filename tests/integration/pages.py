"""The commands of a page of the documentation, as a reader would paste them into a shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from service import CONSILIUM, PATIENCE, Service

DOCS = Path(__file__).parents[2] / "docs"

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Commands for one kind of reader."""

    who: str
    """settings, admin or hospital."""
    serves: bool
    """True if it runs until it is stopped."""
    text: str


def blocks(page: Path) -> list[Block]:
    """Every shell block of a page, in order; a block that says nobody's name is a mistake of the page."""
    found = []
    for fence in _FENCE.finditer(page.read_text()):
        language, *words = fence["info"].split() or [""]
        if language != "sh":
            continue
        who, *rest = words
        assert who in ("settings", "admin", "hospital"), fence.group()
        assert rest in ([], ["service"]), fence.group()
        found.append(Block(who, bool(rest), fence["text"]))
    return found


class Reader:
    """Someone with a shell: pastes the settings first, then one block after the other."""

    def __init__(self, settings: str, patience: float = PATIENCE, **environment: str) -> None:
        self._patience = patience
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        path = os.pathsep.join([str(CONSILIUM.parent), kept["PATH"]])
        self.environment = {**kept, "PATH": path, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        self.environment |= environment
        shown = self.paste(f"{settings}\nenv -0")
        self.environment = dict(line.split("=", 1) for line in shown.split("\0") if "=" in line)

    def paste(self, text: str) -> str:
        """Runs a block to its end; what it printed. Any command that fails fails the test."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=self._patience,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def service(self, block: Block, log: Path) -> Service:
        """The process that a block starts and that stays."""
        program, *arguments = shlex.split(block.text)
        assert program == "consilium"
        assert "\n" not in block.text.strip()
        return Service(arguments, log, self.environment)


def read(page: str) -> tuple[str, list[Block]]:
    """A page's settings, and its other blocks."""
    found = blocks(DOCS / page)
    settings = [block.text for block in found if block.who == "settings"]
    return "\n".join(settings), [block for block in found if block.who != "settings"]
