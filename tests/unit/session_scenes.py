"""A trainer's session on files in a folder, as `Prepare` opens one: no socket, no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from seeded_bits import SeededBits

from coordinator.public_sets.convert import convert
from silo_agent.trainer.data.schema_check import Misfit
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.session import Session, SiloContext, open_session
from silo_agent.trainer.settings import read_settings
from wire.ballot import pack, unpack
from wire.task.definition import TaskDefinition

SILO = "st-anna"


def opened(
    folder: Path,
    public: pd.DataFrame,
    private: pd.DataFrame,
    labels: Sequence[str],
    silo_yaml: Mapping[str, Any],
    **task: Any,
) -> tuple[Session | None, list[Misfit]]:
    """The session of silo SILO whose private column `label` holds the labels; opened again, the same one."""
    folder.mkdir(exist_ok=True)
    public.to_parquet(folder / "public.parquet")
    converted = convert(folder / "public.parquet", folder / "sets")
    private.to_csv(folder / "private.csv", index=False)
    written = {"data": {"path": "private.csv", "label": "label"}, **silo_yaml}
    (folder / "silo.yaml").write_text(yaml.safe_dump(written))
    definition = TaskDefinition.model_validate(
        {
            "name": "scene",
            "public_set": "0" * 64,
            "rows": len(public),
            "labels": list(labels),
            "silos": [SILO, "others"],
            **task,
        }
    )
    ledger = Ledger(folder / "ledger.db", folder / "witness.json", lambda: datetime.now(UTC))
    silo_context = SiloContext(
        read_settings(folder / "silo.yaml"), folder, folder / "tasks", ledger, SeededBits(0)
    )
    return open_session(definition, converted.schema, converted.path, silo_context, SILO)


def votes(session: Session, number: int, consensus: bytes | None = None) -> Any:
    """(rows,) the labels of a ballot, -1 abstaining."""
    return unpack(session.vote(number, consensus).data, session.shape)


def packed(session: Session, labels: Any) -> bytes:
    """A consensus as the coordinator sends it."""
    return pack(labels, session.shape.as_index())
