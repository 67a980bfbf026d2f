"""A federation in one process, built of the product's own parts: trainer sessions, ledger, consensus.

Rows (`Silo`) and a task (`define_task`) go in, `run_federation` holds the rounds, a `FederationResult` comes out.
What is left out changes no label: wire, certificates, processes. The same task over the wire gives the same
ballots and the same consensus, bit for bit (tests/integration/test_methods.py).
"""

from experiments.federation.result import FederationResult
from experiments.federation.run import run_federation
from experiments.federation.silo import Silo, make_silos, silo_names
from experiments.federation.task import define_task, public_set_digest

__all__ = [
    "FederationResult",
    "Silo",
    "define_task",
    "make_silos",
    "public_set_digest",
    "run_federation",
    "silo_names",
]
