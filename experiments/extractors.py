"""Do extractors pay? `python -m experiments.extractors --data DIR`; `--quick` takes a tenth of the steps.

Few labels on FashionMNIST, with an extractor learned from 2000 public images; and a federation on digits whose
silos hold few classes each. The tables of docs/fedaux.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.data import Deal, Sizes, deal, load
from experiments.federation import Hospital, hold, task
from experiments.tables import markdown, mean_and_error
from silo_agent.models.catalogue import LearnerSpec, build
from silo_agent.models.extractors import StoredExtractor
from silo_agent.models.extractors.contrastive import STEPS
from silo_agent.models.extractors.pretraining import train
from silo_agent.models.protocol import Features, Labelled, Learner, Problem
from silo_agent.models.torch_nets import torch_cnn
from silo_agent.trainer.settings import TrainingSettings
from wire.extractor_file import ExtractorKind

LABELLED = (20, 100, 1000)
_SET = "0" * 64
_FIT_STEPS = 300


def probes(folder: Path, seeds: int, steps: int) -> Iterator[tuple[str, list[float]]]:
    """Per way to see an image: accuracy on 4000 test images with 20, 100 and 1000 labelled ones."""
    dealt = deal(load("fashion-mnist", folder), Sizes(1, 1000 * seeds, 2000, 4000), seed=0)
    extractors = _extractors(dealt, (28, 28), steps)
    for name, extractor in extractors.items():
        yield f"logistic regression on {name}", _accuracies(dealt, seeds, extractor)
    for start in ("random", "extractor"):
        yield f"`torch_cnn`, `start: {start}`", _networks(dealt, seeds, start, extractors)


def federations(seeds: int, steps: int) -> Iterator[tuple[str, str, float, float]]:
    """Per learner and view: accuracy of the consensus and, on average, of the models at home."""
    for learner in ("logistic_regression", "mlp"):
        scores: dict[str, list[tuple[float, float]]] = {}
        for seed in range(seeds):
            dealt = deal(load("digits"), Sizes(5, 100, 800, 397, alpha=0.1), seed)
            for name, extractor in _extractors(dealt, (8, 8), steps).items():
                scores.setdefault(name, []).append(_federation(dealt, learner, seed, extractor))
        for name, pairs in scores.items():
            consensus, home = np.mean(pairs, axis=0)
            yield learner, name, float(consensus), float(home)


def _extractors(
    dealt: Deal, shape: tuple[int, int], steps: int
) -> dict[str, StoredExtractor | None]:
    images = dealt.public.reshape(-1, *shape)
    return {
        "pixels": None,
        "pca": train(images, ExtractorKind.PCA, public_set=_SET),
        "contrastive, untrained": train(
            images, ExtractorKind.CONTRASTIVE, public_set=_SET, steps=0
        ),
        "contrastive": train(images, ExtractorKind.CONTRASTIVE, public_set=_SET, steps=steps),
    }


def _seen(rows: Features, extractor: StoredExtractor | None) -> Features:
    if extractor is None:
        return rows
    return extractor.transform(rows.reshape(-1, *extractor.file.header.row_shape))


def _accuracies(dealt: Deal, seeds: int, extractor: StoredExtractor | None) -> list[float]:
    spec = LearnerSpec(name="logistic_regression")
    test = _seen(dealt.test.features, extractor)
    accuracies = []
    for count in LABELLED:
        scores = []
        for seed in range(seeds):
            rows = dealt.private[0][_drawn(seed, count)]
            seen = _seen(rows.features, extractor)
            learner = build(spec, dealt.classes, seen.shape[1:], seed)
            assert isinstance(learner, Learner)
            learner.fit(seen, rows.labels)
            scores.append(float(np.mean(learner.predict(test) == dealt.test.labels)))
        accuracies.append(mean_and_error(scores)[0])
    return accuracies


def _networks(
    dealt: Deal, seeds: int, start: str, extractors: dict[str, StoredExtractor | None]
) -> list[float]:
    extractor = extractors["contrastive"]
    test = dealt.test.features.reshape(-1, 28, 28)
    accuracies = []
    for count in LABELLED:
        scores = []
        for seed in range(seeds):
            rows = dealt.private[0][_drawn(seed, count)]
            problem = Problem(dealt.classes, (28, 28), seed, extractor and extractor.file)
            learner = torch_cnn({"start": start, "fit_steps": _FIT_STEPS}, problem)
            learner.fit(rows.features.reshape(-1, 28, 28), rows.labels)
            scores.append(float(np.mean(learner.predict(test) == dealt.test.labels)))
        accuracies.append(mean_and_error(scores)[0])
    return accuracies


def _drawn(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(1000 * seed, 1000 * seed + count)


def _federation(
    dealt: Deal, learner: str, seed: int, extractor: StoredExtractor | None
) -> tuple[float, float]:
    public = _seen(dealt.public, extractor)
    hospitals = {
        f"hospital-{number}": Hospital(
            Labelled(_seen(rows.features, extractor), rows.labels),
            TrainingSettings(model=LearnerSpec(name=learner), seed=seed),
        )
        for number, rows in enumerate(dealt.private)
    }
    definition = task(public, dealt.classes, list(hospitals), rounds={"max_rounds": 3})
    course = hold(definition, hospitals, public)
    test = _seen(dealt.test.features, extractor)
    home = [np.mean(model.predict(test) == dealt.test.labels) for model in course.home.values()]
    return float(np.mean(course.labels() == dealt.hidden)), float(np.mean(home))


def main(
    data: Annotated[Path, typer.Option(help="The folder with fashion-mnist/.")],
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    quick: bool = False,
) -> None:
    """Print both tables."""
    steps = STEPS // 10 if quick else STEPS
    header = ["FashionMNIST, labelled rows", *(str(count) for count in LABELLED)]
    rows = [
        [name, *(f"{value:.3f}" for value in line)] for name, line in probes(data, seeds, steps)
    ]
    typer.echo(markdown(header, rows))
    header = ["digits, 5 silos, α = 0.1", "features", "consensus", "at home"]
    lines = federations(seeds, steps)
    rows = [[learner, name, f"{one:.3f}", f"{two:.3f}"] for learner, name, one, two in lines]
    typer.echo(markdown(header, rows, words=2))


if __name__ == "__main__":
    typer.run(main)
