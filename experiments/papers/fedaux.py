"""FEDAUX: votes that count by how well a silo knows such rows, beside votes that count alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.certainty import MAJORITY
from experiments.data import Sizes, Split, load_once, split_dataset
from experiments.federation import define_task, make_silos, run_federation, silo_names
from experiments.papers.cotraining import EXTRACTOR_DIGEST, silo_seed
from experiments.papers.experiment import Experiment, Line, Timed, by_seed
from experiments.papers.plots import dots_of
from experiments.scores import accuracy, share_right
from silo_agent.trainer.models.catalogue import LearnerSpec, build
from silo_agent.trainer.models.extractors import StoredExtractor
from silo_agent.trainer.models.protocol import Labelled, Labels
from silo_agent.trainer.models.scratch_fit import fit_from_scratch
from silo_agent.trainer.pretraining.pretraining import train
from silo_agent.trainer.privacy.settings import CertaintySettings, PrivacySettings
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import ABSTAIN
from wire.extractor_file import ExtractorKind

SILOS = 10
HEAD = LearnerSpec(name="logistic_regression")
PRIVATE, PUBLIC, TEST = 4000, 10_000, 5000
ALPHAS = {0.01: "α = 0.01", 100.0: "α = 100"}
EPSILONS = {0.1: "ε = 0.1", 1.0: "ε = 1", 1e6: "hardly any noise"}
SETS = {"fashion-mnist": "FashionMNIST", "mnist": "MNIST"}
PAPER = {0.01: (0.481, 0.785), 100.0: (0.889, 0.890)}
"""CIFAR-10, 20 silos, all but a fifth of them in every round: equal weights (FEDDF+P) and FEDAUX."""
GAIN, PARITY = 0.10, -0.01
_FIRST_SPLIT = 500
"""Some splits below had been seen when the scale of scores was chosen (experiments/certainty.py)."""


@dataclass(frozen=True)
class Cell:
    """One split, with certainties at one ε."""

    dataset: str
    alpha: float
    """Dirichlet concentration of every class over the silos."""
    certainty: float
    """ε of the certainties."""
    private: int
    """Rows per silo, on average."""
    public: int
    test: int
    seed: int


@dataclass(frozen=True)
class Result(Timed):
    """Accuracy on the test rows of the public student, and of the consensus on the public rows voted on."""

    uniform: float
    weighted: float
    uniform_consensus: float
    weighted_consensus: float


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Quick: MNIST-like rows in eighths, and ε = 1 only."""
    share = 8 if quick else 1
    return [
        Cell(name, alpha, epsilon, PRIVATE // share, PUBLIC // share, TEST // share, seed)
        for seed in range(1 if quick else seeds)
        for name in list(SETS)[: 1 if quick else None]
        for alpha in ALPHAS
        for epsilon in ([1.0] if quick else EPSILONS)
    ]


def measure(cell: Cell, folder: Path | None) -> Result:
    """One round; the same ballots are counted twice."""
    sizes = Sizes(SILOS, cell.private, cell.public, cell.test, cell.alpha)
    rows = split_dataset(load_once(cell.dataset, folder), sizes, _FIRST_SPLIT + cell.seed)
    names = silo_names(SILOS)
    definition = define_task(
        rows.public,
        rows.classes,
        names,
        method="fedaux",
        extractor=EXTRACTOR_DIGEST,
        rounds={"max_rounds": 1},
    )
    extractor = train(rows.public, ExtractorKind.PCA, public_set=definition.public_set)
    silos = make_silos(names, rows.private, partial(_settings, cell))
    result = run_federation(definition, silos, rows.public, extractor=extractor, home_models=False)
    weighted, uniform = result.labels(), result.recounted(MAJORITY)
    return Result(
        uniform=_student(rows, uniform, extractor, cell.seed),
        weighted=_student(rows, weighted, extractor, cell.seed),
        uniform_consensus=share_right(uniform, rows.public_labels),
        weighted_consensus=share_right(weighted, rows.public_labels),
    )


def _settings(cell: Cell, index: int) -> TrainingSettings:
    certainty = CertaintySettings(epsilon=cell.certainty)
    return TrainingSettings(
        model=HEAD,
        features="extractor",
        seed=silo_seed(cell.seed, index),
        privacy=PrivacySettings(certainty=certainty),
    )


def _student(rows: Split, labels: Labels, extractor: StoredExtractor, seed: int) -> float:
    """Share of the test rows that one who learns (U, consensus) has right."""
    labelled = labels != ABSTAIN
    seen = extractor.transform(rows.public[labelled])
    learner = build(HEAD, rows.classes, seen.shape[1:], seed)
    taught = fit_from_scratch(learner, Labelled(seen, labels[labelled]), seed)
    return accuracy(taught, Labelled(extractor.transform(rows.test.features), rows.test.labels))


def lines(results: Mapping[Cell, Result]) -> Sequence[Line]:
    """The gain in test accuracy; what it is a gain over stands beside it."""

    def of(cell: Cell, where: tuple[str, float, float]) -> bool:
        return (cell.dataset, cell.alpha, cell.certainty) == where

    found = []
    for name, alpha, epsilon in ((n, a, e) for n in SETS for a in ALPHAS for e in EPSILONS):
        where, (equal, weighted) = (name, alpha, epsilon), PAPER[alpha]
        values = {
            "equal weights": lambda one: one.uniform,
            "certainty weights": lambda one: one.weighted,
            "equal, consensus": lambda one: one.uniform_consensus,
            "certainty, consensus": lambda one: one.weighted_consensus,
        }
        chosen = partial(of, where=where)
        least = GAIN if alpha < 1 else PARITY
        found.append(
            Line(
                (SETS[name], ALPHAS[alpha], EPSILONS[epsilon]),
                by_seed(results, chosen, lambda one: one.weighted - one.uniform),
                round(weighted - equal, 4),
                None if epsilon > 1 else least,
                {header: by_seed(results, chosen, value) for header, value in values.items()},
                WHY,
            )
        )
    return found


WHY = "The noise of ε = 0.1 falls with the rows a silo and the public set have; these are not yet enough."
EXPERIMENT = Experiment(
    name="fedaux",
    title="FEDAUX: certainty weights and equal weights",
    paper="Sattler et al., *FEDAUX: Leveraging Unlabeled Auxiliary Data in Federated Learning*, 2021, Table 1 (C = 0.8): FEDDF+P and FEDAUX, on CIFAR-10.",
    success="At α = 0.01 certainty weights are at least 0.10 above equal weights; at α = 100 at most 0.01 below.",
    about="""
Ten silos with 4 000 rows on average, every class dealt out over them by Dirichlet(α): at α = 0.01 a silo has one class and traces of others. 10 000 public rows without labels, a fifth of
them D⁻, and 5 000 test images. The extractor is the product's (`consilium public-set pretrain`), principal components of the public rows alone; learners are logistic regressions of its
features. One round. The same ballots are counted twice: with certainties (`certainty_weighted`) and alike (`majority`), so nothing but the weights differs. **Test accuracy is that of
the public student**, a logistic regression on (U, consensus); consensus accuracies stand beside.

Certainties cost ε per silo, at δ = 1e-5, once, as [certainty](../certainty.md) says: λ = 0.1, sensitivity 2/(λ(|D| + |D⁻|)), features clipped to the public norm, scores in 4 bits. The labels themselves leave
without noise here, as in the paper, so a silo's ledger has ε = ∞ for the ballot as a whole; ε is that of the certainties. The paper trains a ResNet-8 for 100 rounds
with an extractor learned from STL-10 and averages weights as well; its gain is shown for size, not as a target.
""",
    columns=("data set", "silos differ", "certainties"),
    cell=Cell,
    result=Result,
    cells=cells,
    measure=measure,
    lines=lines,
    figure=dots_of("gain in test accuracy"),
    datasets=tuple(SETS),
    value="certainty weights' gain in test accuracy over equal weights",
)
