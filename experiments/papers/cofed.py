"""CoFED as a task, and what each silo gains by it over training alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.data import Split
from experiments.federation import define_task, make_silos, run_federation, silo_names
from experiments.papers.cotraining import silo_seed
from experiments.papers.experiment import Line, Timed
from experiments.scores import Predictor, accuracy
from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.methods.label_space_learners import restricted_to
from silo_agent.trainer.models.catalogue import LearnerSpec, build
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import ABSTAIN

MEAN_GAIN, GAINING = 0.04, 0.90
"""What counts as success: the mean relative gain, and the share of the silos that gain."""


@dataclass(frozen=True)
class Gains(Timed):
    """Test accuracies after CoFED and of the same learners alone, on test rows of a silo's own classes."""

    gain: float
    """Mean over silos of CoFED's accuracy divided by that alone, minus 1."""
    gaining: float
    """Share of the silos whose accuracy rose."""
    least: float
    """The gain of the silo that gained least."""
    alone: float
    cofed: float
    labelled: float
    """Share of the public rows a silo received a label for, on average."""
    by_learner: str
    """Mean gain of the silos with each kind of learner: `name:gain`, with semicolons between."""

    def of(self, learner: str) -> float:
        """The mean gain of the silos with a kind of learner."""
        return dict(_read(part) for part in self.by_learner.split(";"))[learner]


def _read(part: str) -> tuple[str, float]:
    name, value = part.split(":")
    return name, float(value)


@dataclass(frozen=True)
class Rule:
    """What decides which labels a silo learns from in the end."""

    alpha: float
    share: float | None
    """Of the labels received; None lets cross-validation at home decide."""


def gains(
    rows: Split,
    learners: Sequence[LearnerSpec],
    rule: Rule,
    seed: int,
    spaces: Sequence[Sequence[int]] | None = None,
    steps: int = 50,
) -> Gains:
    """One CoFED task; `spaces` are the classes each silo knows, all of them if None."""
    names = silo_names(len(rows.private))
    known = [tuple(range(rows.classes))] * len(names) if spaces is None else spaces
    settings = {} if spaces is None else {"label_spaces": _named(names, known)}
    definition = define_task(
        rows.public,
        rows.classes,
        names,
        method="cofed",
        consensus={"threshold": rule.alpha},
        local_steps=steps,
        **settings,
    )

    def silo_settings(index: int) -> TrainingSettings:
        return TrainingSettings(
            model=learners[index], seed=silo_seed(seed, index), consensus_share=rule.share
        )

    silos = make_silos(names, rows.private, silo_settings)
    result = run_federation(definition, silos, rows.public)
    before = [
        _accuracy(
            _alone(rows, index, learner, silo_seed(seed, index), space, steps),
            rows,
            space,
        )
        for index, (learner, space) in enumerate(zip(learners, known, strict=True))
    ]
    after = [
        _accuracy(result.home_models[name], rows, space)
        for name, space in zip(names, known, strict=True)
    ]
    received = [np.mean(result.labels(name) != ABSTAIN) for name in names]
    return summed(learners, before, after, float(np.mean(received)))


def summed(
    learners: Sequence[LearnerSpec],
    before: Sequence[float],
    after: Sequence[float],
    labelled: float,
) -> Gains:
    """The gains of silos whose accuracies alone and after CoFED these are."""
    relative = np.asarray(after) / np.asarray(before) - 1
    kinds = [learner.name for learner in learners]
    means = {
        kind: float(
            np.mean([gain for gain, own in zip(relative, kinds, strict=True) if own == kind])
        )
        for kind in dict.fromkeys(kinds)
    }
    return Gains(
        gain=float(relative.mean()),
        gaining=float(np.mean(relative > 0)),
        least=float(relative.min()),
        alone=float(np.mean(before)),
        cofed=float(np.mean(after)),
        labelled=labelled,
        by_learner=";".join(f"{kind}:{mean!r}" for kind, mean in means.items()),
    )


def _alone(
    rows: Split, index: int, learner: LearnerSpec, seed: int, known: Sequence[int], steps: int
) -> Predictor:
    """What a silo trains without the others, for the classes it knows; a network takes as many steps in all."""
    shape = tuple(rows.public.shape[1:])
    made = restricted_to(
        tuple(known), lambda classes, own: build(learner, classes, shape, own), rows.classes
    )
    return CoTraining(rows.private[index], rows.public, made, 2 * steps, seed).fit(1, None, None)


def _accuracy(model: Predictor, rows: Split, known: Sequence[int]) -> float:
    return accuracy(model, rows.test[np.isin(rows.test.labels, known)])


def _named(silos: Sequence[str], spaces: Sequence[Sequence[int]]) -> dict[str, list[str]]:
    return {
        silo: [str(label) for label in sorted(space)]
        for silo, space in zip(silos, spaces, strict=True)
    }


@dataclass(frozen=True)
class Target:
    """What the line that is judged is compared with; the others only stand beside it."""

    gain: float
    """The paper's mean relative gain."""
    gaining: float | None
    """The paper's share of silos that gain, if it has one."""
    why: str
    titles: Mapping[str, str]
    """Learners by name, as a person calls them: each gets a line of its own."""


def gain_lines(
    read: Callable[[Callable[[Gains], float]], tuple[float, ...]], where: str, target: Target | None
) -> list[Line]:
    """The mean relative gain and the share that gains; `read` gives one number of every seed."""
    beside = {
        "alone": read(lambda one: one.alone),
        "CoFED": read(lambda one: one.cofed),
        "labelled": read(lambda one: one.labelled),
    }
    mean, share = (where, "mean relative gain"), (where, "silos that gain")
    gain, gaining = read(lambda one: one.gain), read(lambda one: one.gaining)
    if target is None:
        return [Line(mean, gain, beside=beside), Line(share, gaining, beside=beside)]
    by_learner = {
        f"mean relative gain of {title}": read(partial(Gains.of, learner=name))
        for name, title in target.titles.items()
    }
    return [
        Line(mean, gain, target.gain, MEAN_GAIN, beside, target.why),
        Line(share, gaining, target.gaining, GAINING, beside, target.why),
        *(
            Line((where, kind), values, beside=dict.fromkeys(beside, ()))
            for kind, values in by_learner.items()
        ),
    ]
