"""The one JSON text of a task definition, from which its digest is taken.

A hospital approves a digest, so an upgrade must not change the digest of a definition that uses nothing new.
Therefore only the fields in ALWAYS_WRITTEN are written whatever they say; every other field, at any depth, is
left out while it has its default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

ALWAYS_WRITTEN: Mapping[str, frozenset[str]] = {
    "TaskDefinition": frozenset(
        {
            "name",
            "public_set",
            "rows",
            "labels",
            "method",
            "consensus",
            "rounds",
            "local_steps",
            "encoding",
            "silos",
        }
    ),
    "ConsensusPolicy": frozenset({"rule", "min_share"}),
    "RoundPolicy": frozenset(
        {
            "max_rounds",
            "deadline",
            "grace",
            "quorum",
            "max_extensions",
            "stop_churn",
            "stop_patience",
        }
    ),
    "PrivacyDemand": frozenset(
        {"mechanisms", "max_epsilon", "max_delta", "accept_estimates", "party_gamma"}
    ),
    "FedktPolicy": frozenset({"level", "partitions", "teachers"}),
    "FedauxPolicy": frozenset({"negatives", "regularisation"}),
}
"""Fields by model, as the first version of each model wrote them. Frozen: a field or a default that is changed here,
or in these models, changes the digest of tasks that are running."""


def canonical(model: BaseModel) -> str:
    """`model` as JSON: sorted keys, no spaces, no field at its default but those in ALWAYS_WRITTEN."""
    values = _written(model, model.model_dump(mode="json"))
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _written(value: Any, dumped: Any) -> Any:
    """What of `dumped`, which is how JSON has `value`, is written."""
    if isinstance(value, BaseModel):
        return {
            name: _written(getattr(value, name), dumped[name])
            for name in type(value).model_fields
            if _is_written(value, name)
        }
    if isinstance(value, list | tuple):
        return [_written(one, text) for one, text in zip(value, dumped, strict=True)]
    if isinstance(value, Mapping):
        return {key: _written(one, dumped[key]) for key, one in value.items()}
    return dumped


def _is_written(model: BaseModel, name: str) -> bool:
    kind = type(model)
    default = kind.model_fields[name].get_default(call_default_factory=True)
    return name in ALWAYS_WRITTEN.get(kind.__name__, ()) or bool(getattr(model, name) != default)
