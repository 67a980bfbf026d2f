"""Which mechanisms there are: the one silo.yaml names, built for a task."""

from __future__ import annotations

from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.trainer.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivateLabellerSettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
    XorSettings,
)


def build(settings: MechanismSettings, scope: Scope) -> Mechanism:
    """The mechanism for one task; ConfigurationError if the budget and the settings leave the noise open."""
    # Imported here: a silo needs one of them, and some bring heavy libraries.
    match settings:
        case NoneSettings():
            from silo_agent.trainer.privacy.mechanisms.none import NoMechanism

            return NoMechanism(scope)
        case XorSettings():
            from silo_agent.trainer.privacy.mechanisms.xor import XorMechanism

            return XorMechanism(settings, scope)
        case RandomizedResponseSettings():
            from silo_agent.trainer.privacy.mechanisms.randomized_response import (
                RandomizedResponseMechanism,
            )

            return RandomizedResponseMechanism(settings, scope)
        case TeacherVotesSettings():
            from silo_agent.trainer.privacy.mechanisms.teacher_votes import TeacherVotes

            return TeacherVotes(settings, scope)
        case PrivateLabellerSettings():
            from silo_agent.trainer.privacy.mechanisms.private_labeller import PrivateLabeller

            return PrivateLabeller(settings, scope)
