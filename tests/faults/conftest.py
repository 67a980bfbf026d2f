"""The federation that nobody disturbs: what every other one is compared with."""

from __future__ import annotations

import pytest
from harness import SILOS, Federation, federation


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A federation after its task has ended; its processes have ended too."""
    with federation(tmp_path_factory.mktemp("calm")) as made:
        made.publish()
        for name in SILOS:
            made.join(name)
            made.run_silo(name)
        made.start_task()
        made.until_finished()
    return made
