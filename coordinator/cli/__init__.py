"""The admin's and operator's commands: coordinator, silo, public-set, task."""

from coordinator.cli.coordinator import app as coordinator
from coordinator.cli.public_set import app as public_set
from coordinator.cli.silo import app as silo
from coordinator.cli.task import app as task

__all__ = ["coordinator", "public_set", "silo", "task"]
