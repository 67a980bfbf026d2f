"""`python -m silo_agent.trainer`: what the agent starts beside itself."""

import sys

from silo_agent.trainer.cli import private
from wire.errors import ConsiliumError
from wire.terminal import print_error

try:
    private(["trainer", *sys.argv[1:]])
except ConsiliumError as error:
    print_error(error)
    sys.exit(1)
