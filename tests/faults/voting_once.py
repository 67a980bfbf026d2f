"""One vote of one silo in a process of its own: a trainer without a socket, to be killed at crash points."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.session import SiloContext, open_session
from silo_agent.trainer.settings import read_settings
from wire.errors import Refusal
from wire.privacy.randomness import SecureBits
from wire.public_content import inspect
from wire.task.definition import TaskDefinition


class AsTheyAre:
    """An extractor that changes nothing."""

    dimensions = 2

    def transform(self, rows: Features) -> Features:
        """(n, 2) as they came."""
        return rows


def main(folder: Path, number: int) -> None:
    """Prints the ballot of a round."""
    home = SiloHome(folder)
    definition = TaskDefinition.model_validate_json((folder / "task.json").read_text())
    ledger = Ledger(home.ledger, home.ledger_witness, lambda: datetime.now(UTC))
    silo_context = SiloContext(
        read_settings(home.settings_file), home.root, home.tasks, ledger, SecureBits()
    )
    (public,) = (folder / "public").iterdir()
    _, schema = inspect(public)
    extractor: Any = AsTheyAre() if definition.extractor else None
    session, misfits = open_session(definition, schema, public, silo_context, extractor=extractor)
    if session is None:
        raise SystemExit(" ".join(misfit.sentence for misfit in misfits))
    try:
        print(session.vote(number, None).data.hex())
    except Refusal as refusal:
        raise SystemExit(f"{refusal.code}: {refusal.sentence}") from None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
