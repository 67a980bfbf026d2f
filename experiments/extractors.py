"""Do extractors pay? `consilium experiment extractors --data DIR`; `--quick` takes a tenth of the steps.

Few labels on FashionMNIST, with an extractor learned from 2000 public images; and a federation on digits whose
silos hold few classes each. The tables of docs/fedaux.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import typer

from experiments.data import Sizes, Split, load, split_dataset
from experiments.federation import define_task, make_silos, run_federation
from experiments.scores import accuracy
from experiments.tables import markdown
from experiments.terminal import errors
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.extractors import StoredExtractor
from silo_agent.trainer.models.extractors.contrastive import STEPS
from silo_agent.trainer.models.linear import logistic_regression
from silo_agent.trainer.models.protocol import Features, Labelled, Learner, Problem
from silo_agent.trainer.models.torch_nets import torch_cnn
from silo_agent.trainer.pretraining.pretraining import train
from silo_agent.trainer.settings import TrainingSettings
from wire.extractor_file import ExtractorKind

LABELLED = (20, 100, 1000)
_SET = "0" * 64
_FIT_STEPS = 300


def probes(folder: Path, seeds: int, steps: int) -> Iterator[tuple[str, list[float]]]:
    """Per way to see an image: accuracy on 4000 test images with 20, 100 and 1000 labelled ones."""
    rows = split_dataset(load("fashion-mnist", folder), Sizes(1, 1000 * seeds, 2000, 4000), seed=0)
    extractors = _extractors(rows, (28, 28), steps)
    for name, extractor in extractors.items():
        see = partial(_seen, extractor=extractor)
        yield f"logistic regression on {name}", _scores(rows, seeds, see, _regression)
    for start in ("random", "extractor"):
        make = partial(_network, start, extractors["contrastive"])
        yield f"`torch_cnn`, `start: {start}`", _scores(rows, seeds, _images, make)


def federations(seeds: int, steps: int) -> Iterator[tuple[str, list[float]]]:
    """Per view: accuracy of the consensus after three rounds and, on average, of the models at home."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        rows = split_dataset(load("digits"), Sizes(5, 100, 800, 397, alpha=0.1), seed)
        for name, extractor in _extractors(rows, (8, 8), steps).items():
            scores.setdefault(name, []).append(_federation(rows, seed, extractor))
    for name, pairs in scores.items():
        yield name, [float(share) for share in np.mean(pairs, axis=0)]


def _extractors(
    rows: Split, shape: tuple[int, int], steps: int
) -> dict[str, StoredExtractor | None]:
    pretrained = partial(train, rows.public.reshape(-1, *shape), public_set=_SET)
    return {
        "pixels": None,
        "pca": pretrained(ExtractorKind.PCA),
        "contrastive, untrained": pretrained(ExtractorKind.CONTRASTIVE, steps=0),
        "contrastive": pretrained(ExtractorKind.CONTRASTIVE, steps=steps),
    }


def _seen(rows: Features, extractor: StoredExtractor | None) -> Features:
    if extractor is None:
        return rows
    return extractor.transform(rows.reshape(-1, *extractor.file.header.row_shape))


def _images(rows: Features) -> Features:
    return rows.reshape(-1, 28, 28)


def _regression(problem: Problem) -> Learner:
    return logistic_regression({}, problem)


def _network(start: str, extractor: StoredExtractor | None, problem: Problem) -> Learner:
    file = None if extractor is None else extractor.file
    return torch_cnn({"start": start, "fit_steps": _FIT_STEPS}, replace(problem, extractor=file))


def _scores(
    rows: Split,
    seeds: int,
    see: Callable[[Features], Features],
    make: Callable[[Problem], Learner],
) -> list[float]:
    test = Labelled(see(rows.test.features), rows.test.labels)

    def score(seed: int, count: int) -> float:
        taught = rows.private[0][np.arange(1000 * seed, 1000 * seed + count)]
        learner = make(Problem(rows.classes, test.features.shape[1:], seed))
        learner.fit(see(taught.features), taught.labels)
        return accuracy(learner, test)

    return [float(np.mean([score(seed, count) for seed in range(seeds)])) for count in LABELLED]


def _federation(rows: Split, seed: int, extractor: StoredExtractor | None) -> tuple[float, float]:
    public = _seen(rows.public, extractor)
    private = [Labelled(_seen(part.features, extractor), part.labels) for part in rows.private]
    names = [f"hospital-{index}" for index in range(len(private))]
    learner = LearnerSpec(name="logistic_regression")
    settings = TrainingSettings(model=learner, seed=seed, consensus_share=1)
    definition = define_task(public, rows.classes, names, rounds={"max_rounds": 3})
    silos = make_silos(names, private, lambda _: settings)
    result = run_federation(definition, silos, public)
    test = Labelled(_seen(rows.test.features, extractor), rows.test.labels)
    home = [accuracy(model, test) for model in result.home_models.values()]
    return float(np.mean(result.labels() == rows.public_labels)), float(np.mean(home))


def report(data: Path, seeds: int, quick: bool) -> None:
    """Prints both tables as Markdown; every line also as it comes."""
    steps = STEPS // 10 if quick else STEPS
    for header, lines in (
        (["FashionMNIST, labelled rows", *map(str, LABELLED)], probes(data, seeds, steps)),
        (["digits, logistic regression on", "consensus", "at home"], federations(seeds, steps)),
    ):
        table: list[list[str]] = []
        for name, accuracies in lines:
            table.append([name, *(f"{share:.3f}" for share in accuracies)])
            errors.print(" ".join(table[-1]))
        typer.echo(markdown(header, table))
