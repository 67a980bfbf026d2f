"""The admin's and operator's commands: coordinator, admin, silo, public-set, task, audit."""

from coordinator.cli.admin import app as admin
from coordinator.cli.audit import app as audit
from coordinator.cli.coordinator import app as coordinator
from coordinator.cli.public_set import app as public_set
from coordinator.cli.silo import app as silo
from coordinator.cli.task import app as task

__all__ = ["admin", "audit", "coordinator", "public_set", "silo", "task"]
