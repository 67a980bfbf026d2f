"""The ledger's witness: where the ledger is known to have ended, kept apart from it.

It is written after the ledger and so never ahead of it; a crash leaves it one entry behind. Without the
chain's end kept elsewhere an old copy of the ledger would look whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wire.errors import LEDGER_ROLLED_BACK, LEDGER_UNUSABLE, Refusal
from wire.runtime.chain import Head
from wire.runtime.files import full_disk_as_refusal, write_atomically

Number = Annotated[int, Field(ge=0)]


class WitnessedHead(BaseModel):
    """What the witness saw last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence: Number
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    ballots: Number
    """How many ballots were on the books."""

    @property
    def head(self) -> Head:
        """Where the chain ended."""
        return Head(self.sequence, self.hash)


class Witness:
    """A small JSON file; whole or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> WitnessedHead | None:
        """What was seen last, None if nothing ever was; LEDGER_ROLLED_BACK if the file says nothing."""
        try:
            return WitnessedHead.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refusal(LEDGER_UNUSABLE, path=self.path, why=error.strerror) from None
        except ValidationError:
            why = f"its witness {self.path} is not readable, so nobody knows where it ended"
            raise Refusal(LEDGER_ROLLED_BACK, why=why) from None

    def write(self, seen: WitnessedHead) -> None:
        """Replaces what was seen; fsync'd. DISK_FULL or LEDGER_UNUSABLE, and the old one stays."""
        try:
            with full_disk_as_refusal(self.path):
                new_folder = not self.path.parent.exists()
                write_atomically(self.path, seen.model_dump_json().encode() + b"\n", 0o600)
                if new_folder:
                    inherit_owner(self.path.parent)
                inherit_owner(self.path)
        except OSError as error:
            raise Refusal(LEDGER_UNUSABLE, path=self.path, why=error.strerror) from None


def inherit_owner(path: Path) -> None:
    """Gives a file that root created the owner of its folder, so that the trainer can open it."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
