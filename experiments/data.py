"""Data sets of the experiments, dealt out to silos: a public set, private rows, rows for the test.

Two come with scikit-learn; the others are read from the folder `--data` names, one folder per data set, as
their publishers call the files (`FILES`). No row of any of them is part of this repository. The encoding of a
row depends on no other row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments import data_images, data_tables
from experiments.data_files import brought
from silo_agent.models.protocol import Features, Labelled, Labels
from wire.errors import ConfigurationError

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows (n, d) as numbers, their class indices (n,) and how many classes there are."""

    name: str
    rows: Labelled = field(repr=False)
    classes: int
    reserved: int = 0
    """So many of the last rows are the publisher's test rows: used for nothing else."""
    patients: Numbers | None = field(default=None, repr=False)
    """(n,) whose row it is, where one patient has several: they all go to one place."""


@dataclass(frozen=True)
class Sizes:
    """How many rows go where. Where a silo's share is drawn (`alpha`), `private` is the mean."""

    silos: int
    private: int
    """Rows per silo."""
    public: int
    test: int
    alpha: float | tuple[float, ...] | None = None
    """Dirichlet concentration of every class over the silos; None deals rows out evenly.

    With several, the private rows are cut into as many equal parts, and each is dealt out with its own.
    """


@dataclass(frozen=True, eq=False)
class Deal:
    """Everyone's rows; no row is in two places."""

    private: tuple[Labelled, ...] = field(repr=False)
    public: Features = field(repr=False)
    hidden: Labels = field(repr=False)
    """Labels of the public rows, -1 for rows of no class. Nobody in a federation has them: they only score."""
    test: Labelled = field(repr=False)
    classes: int
    patients: tuple[Numbers, ...] | None = field(default=None, repr=False)
    """Per silo, whose each private row is; None if every row is somebody else's."""

    def standardised(self) -> Deal:
        """Every feature with mean 0 and deviation 1 on U; what is constant there keeps its scale."""
        mean, deviation = self.public.mean(axis=0), self.public.std(axis=0)
        scale = np.where(deviation > 1e-8, deviation, 1.0)

        def scaled(rows: Labelled) -> Labelled:
            return Labelled((rows.features - mean) / scale, rows.labels)

        return replace(
            self,
            private=tuple(scaled(part) for part in self.private),
            public=(self.public - mean) / scale,
            test=scaled(self.test),
        )

    def with_public(self, count: int) -> Deal:
        """The first `count` public rows only; everyone else's stay as they are."""
        return replace(self, public=self.public[:count], hidden=self.hidden[:count])


DEFAULT_SIZES = {
    "digits": Sizes(silos=5, private=200, public=400, test=397),
    "breast-cancer": Sizes(silos=5, private=50, public=205, test=114),
    "adult": Sizes(silos=5, private=400, public=500, test=10_000),
    "adult-lean": Sizes(silos=5, private=400, public=500, test=10_000),
    "fashion-mnist": Sizes(silos=5, private=1000, public=1000, test=5000),
}
"""Names of the data sets, each with sizes it has rows for.

About as many public rows as a silo has: a learner that is fitted on D ∪ P counts all rows alike, and a P many times
the size of D drowns it. On Adult a first run with 2000 had shown it; 500, 2000 and 8000 were then compared on the
publisher's training rows only, with other seeds.
"""
FILES = {
    "adult": ("adult", ("adult.csv.gz",)),
    "adult-lean": ("adult", ("adult.csv.gz",)),
    "mushroom": ("mushroom", ("mushrooms.csv.gz",)),
    "wine": ("wine-quality", ("winequality.csv.gz",)),
    "covertype": ("covertype", ("covtype.npz",)),
    "cod-rna": ("cod-rna", data_tables.COD_RNA_FILES),
    "heart-disease": ("heart-disease", ("heart_disease_4hospitals.csv.gz",)),
    "fashion-mnist": ("fashion-mnist", data_images.IDX_FILES),
    "mnist": ("mnist", data_images.IDX_FILES),
    "chest-xray": ("chest-xray-pneumonia", ("chest_xray_56x56_mosaic.png", "meta.csv.gz")),
}
"""Data sets that are read from a folder of the person's: which folder in it, and its files."""
BROUGHT = frozenset(FILES)

_FEWEST = 10
"""Rows below which a silo's Dirichlet share is drawn again: a hospital with a handful takes no part."""


def require(name: str, folder: Path | None) -> None:
    """ConfigurationError unless what the data set is read from is there."""
    place, files = FILES.get(name, ("", ()))
    for file in files:
        brought(folder, place, file)


def load(name: str, folder: Path | None = None) -> Dataset:
    """A data set by name; `folder` is needed by those that scikit-learn does not bring along."""
    readers: dict[str, Callable[[], Dataset]] = {
        "digits": lambda: Dataset(name, data_images.digits(), 10),
        "breast-cancer": lambda: Dataset(name, data_tables.breast_cancer(), 2),
        "adult": lambda: _adult(name, folder),
        "adult-lean": lambda: _adult(name, folder, "education"),
        "mushroom": lambda: Dataset(name, data_tables.mushroom(folder), 2),
        "wine": lambda: Dataset(name, data_tables.wine(folder), 2),
        "covertype": lambda: Dataset(name, data_tables.covertype(folder), 7),
        "cod-rna": lambda: Dataset(name, data_tables.cod_rna(folder), 2),
        "fashion-mnist": lambda: _mnist_like(name, folder),
        "mnist": lambda: _mnist_like(name, folder),
        "chest-xray": lambda: _chest_xray(name, folder),
    }
    if name not in readers:
        raise ConfigurationError(
            f"There is no data set {name!r}.", f"Choose one of {', '.join(readers)}."
        )
    return readers[name]()


def deal(dataset: Dataset, sizes: Sizes, seed: int) -> Deal:
    """Rows drawn without replacement: test (of the reserved rows, if any are), then U, then the silos'.

    Where patients have several rows, parts end with a patient and are a few rows larger or smaller.
    """
    draw = np.random.default_rng(seed)
    free = len(dataset.rows) - dataset.reserved
    order = _shuffled(free, dataset.patients, draw)
    test = order[: sizes.test]
    if dataset.reserved:
        test = free + draw.permutation(dataset.reserved)[: sizes.test]
    else:
        order = order[sizes.test :]
    needed = sizes.public + sizes.silos * sizes.private
    if needed > len(order) or sizes.test > len(test):
        raise ConfigurationError(
            f"{dataset.name} has {len(dataset.rows)} rows, {dataset.reserved} of them for tests only; {sizes.silos} × "
            f"{sizes.private} private, {sizes.public} public and {sizes.test} test rows are too many.",
            "Lower --rows-per-silo, --silos, --public-rows or --test-rows.",
        )
    public, private = _cut(order[:needed], [sizes.public], dataset.patients)
    match sizes.alpha:
        case None:
            ends = [len(part) for part in np.array_split(private, sizes.silos)[:-1]]
            shares = _cut(private, [int(end) for end in np.cumsum(ends)], dataset.patients)
        case alpha:
            alphas = alpha if isinstance(alpha, tuple) else (alpha,)
            shares = _by_label(private, dataset.rows.labels, sizes.silos, alphas, draw)
    held = dataset.rows[public]
    whose = dataset.patients
    return Deal(
        private=tuple(dataset.rows[share] for share in shares),
        public=held.features,
        hidden=held.labels,
        test=dataset.rows[test],
        classes=dataset.classes,
        patients=None if whose is None else tuple(whose[share] for share in shares),
    )


def pooled(parts: tuple[Labelled, ...]) -> Labelled:
    """All silos' rows in one place, which no hospital may have."""
    return Labelled(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


def _shuffled(count: int, patients: Numbers | None, draw: np.random.Generator) -> Numbers:
    """Numbers below `count` in random order, a patient's side by side."""
    if patients is None:
        return draw.permutation(count)
    _, units = np.unique(patients[:count], return_inverse=True)
    places = draw.permutation(int(units.max()) + 1)
    return np.argsort(places[units], kind="stable")


def _cut(rows: Numbers, ends: list[int], patients: Numbers | None) -> list[Numbers]:
    """`rows` split at `ends`, each moved to where the next patient begins."""
    if patients is not None:
        whose = patients[rows]
        first = np.flatnonzero(np.concatenate([[True], whose[1:] != whose[:-1]]))
        following = np.append(first, len(rows))
        ends = [int(following[np.searchsorted(following, end)]) for end in ends]
    return np.split(rows, ends)


def _by_label(
    rows: Numbers,
    labels: Labels,
    silos: int,
    alphas: tuple[float, ...],
    draw: np.random.Generator,
) -> list[Numbers]:
    """Every class of every part is split among the silos in proportions of its own, Dirichlet(alpha)."""
    for _ in range(1000):
        shares: list[list[Numbers]] = [[] for _ in range(silos)]
        for part, alpha in zip(np.array_split(rows, len(alphas)), alphas, strict=True):
            for label in np.unique(labels[part]):
                of_label = part[labels[part] == label]
                proportions = draw.dirichlet(np.full(silos, alpha))
                cuts = np.floor(np.cumsum(proportions)[:-1] * len(of_label)).astype(np.int64)
                for share, piece in zip(shares, np.split(of_label, cuts), strict=True):
                    share.append(piece)
        whole = [np.concatenate(share) for share in shares]
        if min(len(share) for share in whole) >= _FEWEST:
            return whole
    shown = ", ".join(f"{alpha:g}" for alpha in alphas)
    raise ConfigurationError(
        f"Dirichlet({shown}) keeps leaving one of {silos} silos with fewer than {_FEWEST} rows.",
        "Raise --alpha or --rows-per-silo.",
    )


def _adult(name: str, folder: Path | None, *left_out: str) -> Dataset:
    rows, reserved = data_tables.adult(folder, *left_out)
    return Dataset(name, rows, 2, reserved)


def _mnist_like(name: str, folder: Path | None) -> Dataset:
    rows, reserved = data_images.mnist_like(folder, name)
    return Dataset(name, rows, 10, reserved)


def _chest_xray(name: str, folder: Path | None) -> Dataset:
    rows, reserved, patients = data_images.chest_xray(folder)
    return Dataset(name, rows, 2, reserved, patients)
