"""`python -m silo_agent.trainer COMMAND`: how the network side starts the private one."""

import sys

from silo_agent.trainer.cli.agent import private
from wire.errors import ConsiliumError
from wire.runtime.permissions import keep_private
from wire.runtime.terminal import print_error, print_traceback

keep_private()
sys.excepthook = print_traceback
try:
    private(prog_name="consilium agent")
except ConsiliumError as error:
    print_error(error)
    sys.exit(1)
