"""The rounds of a federation in one process: sessions vote, ballots are counted, sessions see the consensus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from coordinator.consensus.elect import Outcome, elect
from experiments.federation.result import FederationResult
from experiments.federation.silo import Silo, SiloCannotTakePart, open_session
from experiments.seeded import SeededBits
from silo_agent.trainer.models.extractors.protocol import Extractor
from silo_agent.trainer.models.protocol import Features
from silo_agent.trainer.session import Session
from wire.ballot import pack
from wire.privacy.declaration import Declaration
from wire.privacy.randomness import Bits
from wire.task.definition import TaskDefinition

OnRound = Callable[[int, Outcome], None]


def run_federation(
    definition: TaskDefinition,
    silos: Mapping[str, Silo],
    public: Features,
    *,
    extractor: Extractor | None = None,
    bits: Callable[[str], Bits] | None = None,
    home_models: bool = True,
    absent_allowed: bool = False,
    on_round: OnRound | None = None,
) -> FederationResult:
    """Runs a task to its end. Silos vote in the order of their names, as the coordinator counts them.

    `bits` gives a silo's noise by its name; by default `Silo.noise_bits`. A silo whose settings do not serve the task
    stays away if `absent_allowed`, and else ends the run with SiloCannotTakePart. `home_models=False` leaves out the
    training after the last round. `on_round` is called with the number and the outcome of every round.
    """
    with TemporaryDirectory(prefix="consilium-federation-") as scratch:
        sessions: dict[str, Session] = {}
        absent: dict[str, str] = {}
        for name in sorted(silos):
            silo = silos[name]
            drawn = silo.noise_bits(name) if bits is None else bits(name)
            folder = Path(scratch) / name
            try:
                sessions[name] = open_session(
                    definition, name, silo, public, extractor, drawn, folder
                )
            except SiloCannotTakePart as error:
                if not absent_allowed:
                    raise
                absent[name] = error.reason
        return _run_rounds(definition, sessions, absent, home_models, on_round)


def _run_rounds(
    definition: TaskDefinition,
    sessions: Mapping[str, Session],
    absent: Mapping[str, str],
    home_models: bool,
    on_round: OnRound | None,
) -> FederationResult:
    ballots: list[dict[str, bytes]] = []
    outcomes: list[Outcome] = []
    latest: dict[str, bytes | None] = dict.fromkeys(sessions)
    rounds = definition.rounds.max_rounds if sessions else 0
    for round_number in range(1, rounds + 1):
        declared: dict[str, Declaration] = {}
        cast: dict[str, bytes] = {}
        for name, session in sessions.items():
            paid = session.vote(round_number, latest[name])
            cast[name], declared[name] = paid.data, paid.declaration
        bits = SeededBits(round_number)
        outcome = elect(definition, round_number, declared, list(cast.items()), bits)
        ballots.append(cast)
        outcomes.append(outcome)
        latest = {name: _seen(definition, name, outcome) for name in sessions}
        if on_round is not None:
            on_round(round_number, outcome)
    trained = sessions if home_models else {}
    return FederationResult(
        definition=definition,
        outcomes=tuple(outcomes),
        ballots=tuple(ballots),
        home_models={
            name: session.home_learner(rounds + 1, latest[name])
            for name, session in trained.items()
        },
        spent={name: session.releaser.spent() for name, session in sessions.items()},
        absent=absent,
    )


def _seen(definition: TaskDefinition, silo: str, outcome: Outcome) -> bytes:
    return pack(outcome.labels(definition.label_space(silo)), definition.shape.as_index())
