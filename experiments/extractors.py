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

from experiments.data import Deal, Sizes, deal, load
from experiments.federation import Hospital, hold, task
from experiments.tables import markdown
from silo_agent.models.catalogue import LearnerSpec
from silo_agent.models.extractors import StoredExtractor
from silo_agent.models.extractors.contrastive import STEPS
from silo_agent.models.extractors.pretraining import train
from silo_agent.models.linear import logistic_regression
from silo_agent.models.protocol import Features, Labelled, Learner, Problem
from silo_agent.models.torch_nets import torch_cnn
from silo_agent.trainer.settings import TrainingSettings
from wire.extractor_file import ExtractorKind
from wire.terminal import errors

LABELLED = (20, 100, 1000)
_SET = "0" * 64
_FIT_STEPS = 300


def probes(folder: Path, seeds: int, steps: int) -> Iterator[tuple[str, list[float]]]:
    """Per way to see an image: accuracy on 4000 test images with 20, 100 and 1000 labelled ones."""
    dealt = deal(load("fashion-mnist", folder), Sizes(1, 1000 * seeds, 2000, 4000), seed=0)
    extractors = _extractors(dealt, (28, 28), steps)
    for name, extractor in extractors.items():
        see = partial(_seen, extractor=extractor)
        yield f"logistic regression on {name}", _scores(dealt, seeds, see, _regression)
    for start in ("random", "extractor"):
        make = partial(_network, start, extractors["contrastive"])
        yield f"`torch_cnn`, `start: {start}`", _scores(dealt, seeds, _images, make)


def federations(seeds: int, steps: int) -> Iterator[tuple[str, list[float]]]:
    """Per view: accuracy of the consensus after three rounds and, on average, of the models at home."""
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        dealt = deal(load("digits"), Sizes(5, 100, 800, 397, alpha=0.1), seed)
        for name, extractor in _extractors(dealt, (8, 8), steps).items():
            scores.setdefault(name, []).append(_federation(dealt, seed, extractor))
    for name, pairs in scores.items():
        yield name, [float(accuracy) for accuracy in np.mean(pairs, axis=0)]


def _extractors(
    dealt: Deal, shape: tuple[int, int], steps: int
) -> dict[str, StoredExtractor | None]:
    pretrained = partial(train, dealt.public.reshape(-1, *shape), public_set=_SET)
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
    dealt: Deal,
    seeds: int,
    see: Callable[[Features], Features],
    make: Callable[[Problem], Learner],
) -> list[float]:
    private, test = dealt.private[0], see(dealt.test.features)

    def score(seed: int, count: int) -> float:
        rows = private[np.arange(1000 * seed, 1000 * seed + count)]
        learner = make(Problem(dealt.classes, test.shape[1:], seed))
        learner.fit(see(rows.features), rows.labels)
        return float(np.mean(learner.predict(test) == dealt.test.labels))

    return [float(np.mean([score(seed, count) for seed in range(seeds)])) for count in LABELLED]


def _federation(dealt: Deal, seed: int, extractor: StoredExtractor | None) -> tuple[float, float]:
    public = _seen(dealt.public, extractor)
    hospitals = {
        f"hospital-{number}": Hospital(
            Labelled(_seen(rows.features, extractor), rows.labels),
            TrainingSettings(
                model=LearnerSpec(name="logistic_regression"), seed=seed, consensus_share=1
            ),
        )
        for number, rows in enumerate(dealt.private)
    }
    definition = task(public, dealt.classes, list(hospitals), rounds={"max_rounds": 3})
    course = hold(definition, hospitals, public)
    test = _seen(dealt.test.features, extractor)
    home = [np.mean(model.predict(test) == dealt.test.labels) for model in course.home.values()]
    return float(np.mean(course.labels() == dealt.hidden)), float(np.mean(home))


def report(data: Path, seeds: int, quick: bool) -> None:
    """Prints both tables as Markdown; every line also as it comes."""
    steps = STEPS // 10 if quick else STEPS
    for header, lines in (
        (["FashionMNIST, labelled rows", *map(str, LABELLED)], probes(data, seeds, steps)),
        (["digits, logistic regression on", "consensus", "at home"], federations(seeds, steps)),
    ):
        rows: list[list[str]] = []
        for name, accuracies in lines:
            rows.append([name, *(f"{accuracy:.3f}" for accuracy in accuracies)])
            errors.print(" ".join(rows[-1]))
        typer.echo(markdown(header, rows))
