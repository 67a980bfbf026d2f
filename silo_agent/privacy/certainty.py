"""FEDAUX's certainties."""

from __future__ import annotations

from silo_agent.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.privacy.settings import PrivacySettings
from wire.methods import FedauxPolicy


def with_certainty(
    mechanism: Mechanism,
    settings: PrivacySettings,
    scope: Scope,
    policy: FedauxPolicy,
    public_set: str,
) -> Mechanism:
    """`mechanism` whose votes carry certainties, paid for once."""
    raise NotImplementedError
