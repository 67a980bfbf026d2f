"""Every method as a deployed task: real processes over mutual TLS give what the experiment gives, bit for bit.

Coordinator, agents and trainers are processes of their own, as in a hospital, with one thing changed: noise is
drawn from a seed, so that both sides draw the same.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import yaml
from federation import HERE, Federation, Silo, federation
from service import CONSILIUM
from sklearn.datasets import load_digits

from coordinator.cli.public_set import add
from experiments.federation import FederationResult, run_federation
from experiments.federation import Silo as SiloInProcess
from experiments.seeded import SeededBits
from silo_agent.agent.audit.entries import Kind
from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.private_data import load_private
from silo_agent.trainer.data.unit_keys import unit_keys
from silo_agent.trainer.models.extractors import load as load_extractor
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.settings import TrainingSettings, read_settings
from wire.ballot import ABSTAIN, digest, pack, unpack
from wire.net.enrolment import join
from wire.privacy.events import Gaussian
from wire.public_content import inspect
from wire.task.definition import TaskDefinition

PUBLIC, PRIVATE = 203, 90
BITS = 1
LABELS = [str(number) for number in range(10)]
MODELS: dict[str, Any] = {
    "east": {"name": "decision_tree", "parameters": {"max_depth": 6}},
    "north": "logistic_regression",
    "west": {"name": "torch_mlp", "parameters": {"hidden": [16]}},
}
SETTINGS: dict[str, Any] = {"seed": 11, "privacy": {"certainty": {"epsilon": 2.0, "delta": 1e-5}}}


def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(5).permutation(len(labels))
    return images.reshape(-1, 8, 8).astype(np.uint8)[order], labels[order]


SPACES: dict[str, list[str]] = {
    "east": list("012345"),
    "north": list("3456789"),
    "west": list("0126789"),
}


def held_by(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A silo's own digits: those of the classes it knows."""
    images, labels = digits()
    start = PUBLIC + PRIVATE * sorted(MODELS).index(name)
    images, labels = images[start : start + PRIVATE], labels[start : start + PRIVATE]
    mine = np.isin(labels, [int(label) for label in SPACES[name]])
    return images[mine], labels[mine]


def furnish(silo: Silo) -> None:
    """Writes a silo's data and silo.yaml."""
    images, labels = held_by(silo.name)
    np.savez(silo.home.root / "data.npz", images=images, digit=labels)
    silo.home.settings_file.write_text(
        yaml.safe_dump(
            {
                "data": {"path": "data.npz", "features": "images", "label": "digit"},
                "policy": {"approve": "within_limits", "max_rounds": 100},
                **SETTINGS,
                "model": MODELS[silo.name],
            }
        )
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    seeded = [str(HERE / "seeded_process"), str(HERE), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CONSILIUM_TEST_BITS", str(BITS))
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, seeded)))
        with federation(tmp_path_factory.mktemp("methods")) as made:
            images, _ = digits()
            np.save(made.folder / "digits.npy", images[:PUBLIC])
            add("digits", made.folder / "digits.npy", home=made.home)
            for name in MODELS:
                silo = made.silos[name] = Silo(name, made.folder / name)
                token = made.register(name)
                asyncio.run(join(token, silo.home.identity, lambda: datetime.now(UTC)))
                furnish(silo)
            made.run(*made.silos.values())
            yield made


def deployed(live: Federation, name: str, **settings: Any) -> TaskDefinition:
    """Runs a task over the wire to its end; its definition as the coordinator has it."""
    common = {"public_set": "digits", "labels": LABELS, "rounds": {"quorum": 3}}
    common["rounds"] |= settings.pop("rounds", {"max_rounds": 1})
    live.start(name, **common, **settings)
    return TaskDefinition.from_proto(live.until_finished(name).task.definition)


def in_process(live: Federation, definition: TaskDefinition) -> FederationResult:
    """The same task run by the experiment's federation, from the same files."""
    home = live.silos["east"].home
    public_file = home.public_sets / definition.public_set
    encoder = Encoder.from_public(inspect(public_file)[1], public_file)
    hospitals = {}
    for name in MODELS:
        images, labels = held_by(name)
        rows = Labelled(encoder.encode(images, flat=False), labels.astype(np.int64))
        settings = TrainingSettings.model_validate({**SETTINGS, "model": MODELS[name]})
        # A row is known by what stands in it, so the same row has the same place in every shard and fold.
        silo = live.silos[name].home.settings_file
        stored = load_private(read_settings(silo).data, silo.parent)
        hospitals[name] = SiloInProcess(rows, settings, unit_keys(stored))
    extractor = (
        load_extractor(home.extractors / definition.extractor) if definition.extractor else None
    )
    return run_federation(
        definition,
        hospitals,
        encoder.public(flat=False),
        extractor=extractor,
        bits=lambda _: SeededBits(BITS),
        home_models=False,
    )


def assert_same(live: Federation, definition: TaskDefinition, result: FederationResult) -> None:
    """Every ballot and every consensus is the same, bit for bit."""
    cast = {
        (number, name): digest(ballot)
        for number, ballots in enumerate(result.ballots, start=1)
        for name, ballot in ballots.items()
    }
    assert live.ballots(definition.name) == cast
    published = [outcome.payload for outcome in result.outcomes]
    assert live.consensuses(definition.name) == published
    said = result.labels() != ABSTAIN
    assert said.any(), "an empty consensus would compare nothing"
    _, truth = digits()
    right = np.mean(result.labels()[said] == truth[:PUBLIC][said])
    assert right > 0.3, "three silos with seventy digits each are well above chance"


def test_fedct_is_the_experiments_fedct_cross_fitted_or_not(live: Federation) -> None:
    plain = deployed(live, "fedct", local_steps=20, rounds={"max_rounds": 3})
    assert_same(live, plain, in_process(live, plain))
    crossed = deployed(live, "crossed", local_steps=20, rounds={"max_rounds": 3}, cross_fit=2)
    assert_same(live, crossed, in_process(live, crossed))
    assert live.ballots("fedct") != live.ballots("crossed")


def test_fedkt_is_the_experiments_fedkt(live: Federation) -> None:
    definition = deployed(live, "fedkt", method="fedkt", fedkt={"partitions": 2, "teachers": 3})
    result = in_process(live, definition)
    assert_same(live, definition, result)
    votes = [unpack(ballot, definition.shape) for ballot in result.ballots[0].values()]
    assert any((labels == ABSTAIN).any() for labels in votes), "students sometimes differ"


def test_fedkt_with_party_noise_is_the_experiments_even_to_the_noise(live: Federation) -> None:
    definition = deployed(
        live, "fedkt-l1", method="fedkt", fedkt={"level": "L1"}, privacy={"party_gamma": 0.5}
    )
    result = in_process(live, definition)
    assert live.consensuses("fedkt-l1") == [result.outcomes[0].payload]
    assert not live.show("fedkt-l1").history[0].agreement, "it would undo the noise"


def test_cofed_is_the_experiments_cofed_and_each_silo_gets_its_own_classes(
    live: Federation,
) -> None:
    # Two silos know a class: both must vote for it.
    both = {"threshold": 0.6}
    definition = deployed(live, "cofed", method="cofed", label_spaces=SPACES, consensus=both)
    result = in_process(live, definition)
    assert_same(live, definition, result)
    for name, silo in live.silos.items():
        silo.agent.until("task_finished", task="cofed")
        seen = pack(result.labels(name), definition.shape.as_index())
        received = [
            move.digest
            for move in silo.audit_entries()
            if move.task == "cofed" and move.kind is Kind.CONSENSUS
        ]
        assert received == [digest(seen)]
        assert set(np.unique(result.labels(name))) <= {ABSTAIN, *definition.label_space(name)}


def test_fedaux_is_the_experiments_fedaux_and_certainty_is_paid_once(live: Federation) -> None:
    pretrained = subprocess.run(
        [CONSILIUM, "public-set", "pretrain", "digits", "--kind", "pca", "--home", str(live.home)],
        capture_output=True,
        text=True,
    )
    assert pretrained.returncode == 0, pretrained.stdout + pretrained.stderr
    definition = deployed(
        live,
        "fedaux",
        method="fedaux",
        extractor="latest",
        local_steps=20,
        rounds={"max_rounds": 2},
    )
    assert len(definition.extractor) == 64
    assert_same(live, definition, in_process(live, definition))
    for silo in live.silos.values():
        ledger = Ledger(silo.home.ledger, silo.home.ledger_witness, lambda: datetime.now(UTC))
        paid = [
            event
            for release in ledger.releases(task_digest=definition.digest)
            for event in release.events
            if isinstance(event, Gaussian)
        ]
        assert len(paid) == 1
