"""`consilium agent backup` and `restore`: what a hospital must not lose, in and out as one file each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from silo_agent.trainer.backup import Part, back_up_part, restore_part
from wire.runtime.archive import backup_from, backup_to
from wire.runtime.passphrase import Encrypt, PassphraseFile, known_passphrase, new_passphrase
from wire.runtime.terminal import errors, say

Which = Annotated[
    Part,
    typer.Option(
        "--part",
        help="trainer: ledger, approvals, ballots, models. witness: where the ledger ended.",
    ),
]


def backup(
    out: Annotated[Path, typer.Option(help="File to write; - for standard output.")],
    home: Home,
    part: Which = Part.TRAINER,
    encrypt: Encrypt = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Copy the private side's memory, or the ledger's witness, to one file; the trainer may go on working."""
    passphrase = new_passphrase(passphrase_file) if encrypt else None
    with backup_to(out, passphrase) as file:
        back_up_part(SiloHome(home), part, file)
    say(
        "The {} is copied. It holds private knowledge: treat it like the patients' data.",
        part,
        to=errors,
    )


def restore(
    file: Annotated[Path, typer.Argument(help="What `backup` wrote; - for standard input.")],
    home: Home,
    part: Which = Part.TRAINER,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Put a copy back where nothing is; then run `consilium agent ledger verify`."""
    with backup_from(file, known_passphrase(passphrase_file)) as source:
        restore_part(SiloHome(home), part, source)
    say(
        "The {} is back. Is it the newest copy? `consilium agent ledger verify` says.",
        part,
        to=errors,
    )
