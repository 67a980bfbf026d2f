"""What lies on the disk when a process has just died at a crash point, and has not been started again."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from harness import ROUNDS, SILOS, Federation, Look

from silo_agent.agent.audit.entries import Kind
from silo_agent.agent.audit.file import read_record
from silo_agent.agent.audit.recorder import read_entries
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from wire.identity.files import IdentityFiles


def acts(**counts: int) -> Look:
    """The coordinator's audit record has so many of these acts."""

    def look(made: Federation) -> None:
        assert {act: made.acts(act) for act in counts} == counts

    return look


def published(made: Federation) -> int:
    return len(made.rows("SELECT * FROM public_sets"))


def content(made: Federation) -> list[str]:
    """Public sets in the coordinator's folder, and what is half there."""
    names = sorted(path.name for path in (made.home / "public-sets").iterdir())
    return [re.sub(r"^\.upload-\w+", "upload", re.sub(r"^\w{64}$", "set", name)) for name in names]


def set_received(made: Federation) -> None:
    assert (content(made), published(made)) == (["upload.part"], 0)


def set_placed(made: Federation) -> None:
    # What the death before left half there has been swept.
    assert (content(made), published(made)) == (["set"], 0)


def set_published(made: Federation) -> None:
    assert (content(made), published(made), made.acts("public_set_published")) == (["set"], 1, 1)


def silo_status(made: Federation, name: str) -> tuple[str, bool]:
    ((status, redeemed),) = made.rows(
        "SELECT status, redeemed_by FROM silos JOIN join_tokens USING (name) WHERE name = ?", name
    )
    return str(status), redeemed is not None


def not_joined(made: Federation) -> None:
    assert silo_status(made, "north") == ("invited", False)
    assert made.acts("member_joined") == 1
    assert not (made.silo("north").identity / "certificate.pem").exists()
    assert (made.silo("north").identity / "pending-key.pem").exists()


def joined_without_knowing(made: Federation) -> None:
    assert silo_status(made, "north") == ("active", True)
    assert made.acts("member_joined") == 2
    assert not (made.silo("north").identity / "certificate.pem").exists()
    assert (made.silo("north").identity / "pending-key.pem").exists()


def joined(made: Federation) -> None:
    assert silo_status(made, "north") == ("active", True)
    assert IdentityFiles.load(made.silo("north").identity).name == "north"


def status(made: Federation) -> str | None:
    rows = made.rows("SELECT status FROM tasks")
    return str(rows[0][0]) if rows else None


def task(expected: str | None, rounds: int) -> Look:
    def look(made: Federation) -> None:
        assert status(made) == expected
        assert len(made.rows("SELECT * FROM rounds")) == rounds

    return look


def ballots(least: int, most: int) -> Look:
    """So many are stored, and as many acts are recorded."""

    def look(made: Federation) -> None:
        assert least <= len(made.ballots()) <= most
        assert made.acts("ballot_accepted") == len(made.ballots())

    return look


def closing(begun: bool, consensus: int) -> Look:
    """All ballots of the first round are in; whether more would be taken, and how many consensus there are."""

    def look(made: Federation) -> None:
        ballots(len(SILOS), len(SILOS))(made)
        ((closing, closed),) = made.rows("SELECT closing, closed_at FROM rounds WHERE number = 1")
        assert (closing is not None, closed is not None) == (begun, consensus > 0)
        assert (len(made.consensuses()), made.acts("consensus_published")) == (consensus, consensus)
        assert len(made.rows("SELECT * FROM rounds")) == 1 + consensus

    return look


def certificates(good: int, in_the_folder: str) -> Look:
    """North has so many good certificates; the one in its folder is the old or the new one."""

    def look(made: Federation) -> None:
        held = made.rows(
            "SELECT fingerprint FROM certificates WHERE name = 'north' AND NOT withdrawn ORDER BY issued"
        )
        assert len(held) == good
        files = IdentityFiles.load(made.silo("north").identity)
        mine = held[0 if in_the_folder == "old" else -1][0]
        assert files.certificate.fingerprint == mine

    return look


def recorded(kind: Kind, count: int) -> Look:
    """North's audit record is whole and has so many entries of a kind."""

    def look(made: Federation) -> None:
        assert read_record(made.silo("north").agent).broken is None
        kinds = [movement.kind for movement in read_entries(made.silo("north").agent)]
        assert kinds.count(kind) == count

    return look


def stored_of_north(count: int, *others: Look) -> Look:
    def look(made: Federation) -> None:
        assert len([silo for _, silo in made.ballots() if silo == "north"]) == count
        for other in others:
            other(made)

    return look


def set_fetched(made: Federation) -> None:
    assert len(list(made.silo("north").public_sets.iterdir())) == 1
    recorded(Kind.PUBLIC_SET, 0)(made)


def kept(ballots: int, learners: int, models: int = 0) -> Look:
    """West's trainer keeps so many ballots, states of its learner and final models."""

    def look(made: Federation) -> None:
        patterns = ("ballot-*", "learner-*", "model*")
        found = tuple(len(made.kept("west", pattern)) for pattern in patterns)
        assert found == (ballots, learners, models)

    return look


def paid(entries: int) -> Look:
    """West's ledger has so many entries."""

    def look(made: Federation) -> None:
        home = made.silo("west")
        assert (
            len(Ledger(home.ledger, home.ledger_witness, lambda: datetime.now(UTC)).releases())
            == entries
        )

    return look


def both(*looks: Look) -> Look:
    def look(made: Federation) -> None:
        for one in looks:
            one(made)

    return look


LOOKS: dict[str, Look] = {
    "member-joining": not_joined,
    "member-joined": joined_without_knowing,
    "certificate-renewing": acts(certificate_renewed=0),
    "certificate-renewed": acts(certificate_renewed=1),
    "public-set-received": set_received,
    "public-set-placed": set_placed,
    "public-set-publishing": set_placed,
    "public-set-published": set_published,
    "task-creating": task(None, rounds=0),
    "task-created": task("draft", rounds=0),
    "task-starting": task("draft", rounds=0),
    "task-started": task("running", rounds=1),
    "ballot-accepting": ballots(0, 0),
    # Another one may have been stored while this one's receipt was being made out.
    "ballot-accepted": ballots(1, len(SILOS)),
    "closing-decided": closing(begun=False, consensus=0),
    "closing-begun": closing(begun=True, consensus=0),
    "consensus-formed": closing(begun=True, consensus=0),
    "consensus-publishing": closing(begun=True, consensus=0),
    "consensus-published": closing(begun=True, consensus=1),
    "join-asking": not_joined,
    "join-answered": joined_without_knowing,
    "join-stored": joined,
    "renewal-asking": certificates(good=1, in_the_folder="old"),
    "renewal-answered": certificates(good=2, in_the_folder="old"),
    "renewal-stored": certificates(good=2, in_the_folder="new"),
    "public-set-fetched": set_fetched,
    "ballot-handed-in": stored_of_north(0, recorded(Kind.BALLOT, 0), recorded(Kind.PUBLIC_SET, 1)),
    "ballot-recorded": stored_of_north(0, recorded(Kind.BALLOT, 1)),
    "ballot-answered": stored_of_north(1, recorded(Kind.BALLOT, 2), recorded(Kind.RECEIPT, 0)),
    "receipt-recorded": stored_of_north(2, recorded(Kind.BALLOT, 3), recorded(Kind.RECEIPT, 2)),
    "consensus-fetched": recorded(Kind.CONSENSUS, 1),
    "vote-asked": kept(ballots=0, learners=0),
    "learner-trained": kept(ballots=0, learners=0),
    "learner-kept": kept(ballots=0, learners=1),
    "ballot-made": kept(ballots=0, learners=1),
    "ballot-kept": kept(ballots=1, learners=1),
    "ballot-paying": both(kept(ballots=1, learners=1), paid(0)),
    "ballot-paid": both(kept(ballots=1, learners=1), paid(1)),
    "ballot-handed-over": both(kept(ballots=1, learners=1), paid(1)),
    "model-trained": kept(ballots=ROUNDS, learners=2),
    "model-kept": kept(ballots=ROUNDS, learners=2, models=1),
}
