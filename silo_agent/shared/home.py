"""Paths in a silo's home folder. The two sides share nothing in it but `exchange`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from wire.runtime.permissions import PRIVATE, Modes, Place
from wire.runtime.sharing import is_shared


def default_home() -> Path:
    """$CONSILIUM_SILO_HOME, else ~/.consilium/silo."""
    return Path(os.environ.get("CONSILIUM_SILO_HOME") or Path.home() / ".consilium" / "silo")


# silo.yaml is the administrator's, who may be another member of the group.
_ROOT = Modes(folder=0o750)
# Where agent and trainer are two accounts, their common group.
_SHARED = Modes(folder=0o3770, file=0o660)


@dataclass(frozen=True)
class SiloHome:
    """The layout of one silo's folder."""

    root: Path

    @property
    def settings_file(self) -> Path:
        """silo.yaml: private data and learner. Read by the private side only."""
        return self.root / "silo.yaml"

    @property
    def identity(self) -> Path:
        """Key and certificate. Network side only."""
        return self.root / "identity"

    @property
    def agent(self) -> Path:
        """The agent's state: audit record and receipts. Network side only."""
        return self.root / "agent"

    @property
    def exchange(self) -> Path:
        """The only folder both sides see: the trainer's socket and downloaded public files."""
        return self.root / "exchange"

    @property
    def socket(self) -> Path:
        """The trainer's Unix socket."""
        return self.exchange / "trainer.sock"

    @property
    def public_sets(self) -> Path:
        """Downloaded public sets, by digest."""
        return self.exchange / "public-sets"

    @property
    def extractors(self) -> Path:
        """Downloaded extractors, by digest."""
        return self.exchange / "extractors"

    @property
    def trainer(self) -> Path:
        """Ballots and models. Private side only."""
        return self.root / "trainer"

    @property
    def trainer_lock(self) -> Path:
        """Locked by the running trainer. Private side only."""
        return self.trainer / "lock"

    @property
    def tasks(self) -> Path:
        """A folder for every task proposed to this silo, by digest. Private side only."""
        return self.trainer / "tasks"

    @property
    def public_copies(self) -> Path:
        """The trainer's own copies of the public files its tasks use. Private side only."""
        return self.trainer / "public"

    @property
    def approvals(self) -> Path:
        """Who approved which task, and when. Private side only."""
        return self.trainer / "approvals.jsonl"

    @property
    def ledger(self) -> Path:
        """Every release and what it cost. Private side only."""
        return self.trainer / "ledger.db"

    @property
    def patients(self) -> Path:
        """Salted hashes of the patients that releases were charged for, by data set. Private side only."""
        return self.trainer / "patients.db"

    @property
    def ledger_witness(self) -> Path:
        """The ledger's last known entry; on another volume than the ledger, if there is one."""
        return self.root / "witness" / "ledger.json"

    @property
    def network_side(self) -> tuple[Place, ...]:
        """What the agent keeps, and who may read it."""
        ours = (Place(self.identity), Place(self.agent))
        return (*ours, self._both_sides, Place(self.root, _ROOT, alone=True))

    @property
    def private_side(self) -> tuple[Place, ...]:
        """What the trainer keeps, and who may read it."""
        witness = Place(self.ledger_witness.parent)
        ours = (Place(self.trainer), witness)
        return (*ours, self._both_sides, Place(self.root, _ROOT, alone=True))

    @property
    def _both_sides(self) -> Place:
        """What both sides use: one account's, or their group's if it was laid out so (`wire.runtime.sharing`)."""
        shared = self.exchange.is_dir() and is_shared(self.exchange)
        return Place(self.exchange, _SHARED if shared else PRIVATE)
