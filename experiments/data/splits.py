"""A data set split into a public set, private rows of every silo, and test rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from experiments.data.dataset import Dataset, Indices
from experiments.data.scaling import Scaling
from silo_agent.trainer.models.protocol import Features, Labelled, Labels
from wire.errors import ConfigurationError

_FEWEST = 10
"""Rows below which a silo's Dirichlet share is drawn again: a hospital with a handful would take no part."""


@dataclass(frozen=True)
class Sizes:
    """How many rows go where. Where a silo's share is drawn (`alpha`), `private` is the mean."""

    silos: int
    private: int
    """Rows per silo."""
    public: int
    test: int
    alpha: float | tuple[float, ...] | None = None
    """Dirichlet concentration of every class over the silos; None splits rows evenly.

    With several, the private rows are cut into as many equal parts, and each is split with its own.
    """


@dataclass(frozen=True, eq=False)
class Split:
    """Everyone's rows; no row is in two places."""

    private: tuple[Labelled, ...] = field(repr=False)
    public: Features = field(repr=False)
    public_labels: Labels = field(repr=False)
    """Of the public rows, -1 for rows of no class. Nobody in a federation has them: they only score."""
    test: Labelled = field(repr=False)
    classes: int
    patients: tuple[Indices, ...] | None = field(default=None, repr=False)
    """Per silo, whose each private row is; None if no two rows are of one patient."""

    def standardised(self) -> Split:
        """Every feature scaled by U, see `Scaling`."""
        scaling = Scaling.from_public(self.public)
        return replace(
            self,
            private=tuple(Labelled(scaling(part.features), part.labels) for part in self.private),
            public=scaling(self.public),
            test=Labelled(scaling(self.test.features), self.test.labels),
        )

    def with_public(self, count: int) -> Split:
        """The first `count` public rows only; everyone else's stay as they are."""
        return replace(self, public=self.public[:count], public_labels=self.public_labels[:count])


def split_dataset(dataset: Dataset, sizes: Sizes, seed: int) -> Split:
    """Rows drawn without replacement: test (of the reserved rows, if any are), then U, then the silos'.

    Where patients have several rows, parts end with a patient and are a few rows larger or smaller.
    """
    draw = np.random.default_rng(seed)
    test, order = _drawn(dataset, sizes, draw)
    public, private = _cut(order, [sizes.public], dataset.patients)
    shares = _shares(dataset, private, sizes, draw)
    public_rows, owners = dataset.rows[public], dataset.patients
    return Split(
        private=tuple(dataset.rows[share] for share in shares),
        public=public_rows.features,
        public_labels=public_rows.labels,
        test=dataset.rows[test],
        classes=dataset.classes,
        patients=None if owners is None else tuple(owners[share] for share in shares),
    )


def _drawn(dataset: Dataset, sizes: Sizes, draw: np.random.Generator) -> tuple[Indices, Indices]:
    """The test rows, and as many others as U and the silos need; ConfigurationError if there are too few."""
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
    return test, order[:needed]


def _shares(
    dataset: Dataset, private: Indices, sizes: Sizes, draw: np.random.Generator
) -> list[Indices]:
    """The private rows of each silo."""
    if sizes.alpha is None:
        ends = [len(part) for part in np.array_split(private, sizes.silos)[:-1]]
        return _cut(private, [int(end) for end in np.cumsum(ends)], dataset.patients)
    alphas = sizes.alpha if isinstance(sizes.alpha, tuple) else (sizes.alpha,)
    return _by_label(private, dataset.rows.labels, sizes.silos, alphas, draw)


def pooled(parts: tuple[Labelled, ...]) -> Labelled:
    """All silos' rows in one place, which no hospital may have."""
    return Labelled(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )


def _shuffled(count: int, patients: Indices | None, draw: np.random.Generator) -> Indices:
    """Numbers below `count` in random order, a patient's side by side."""
    if patients is None:
        return draw.permutation(count)
    _, units = np.unique(patients[:count], return_inverse=True)
    places = draw.permutation(int(units.max()) + 1)
    return np.argsort(places[units], kind="stable")


def _cut(rows: Indices, ends: list[int], patients: Indices | None) -> list[Indices]:
    """`rows` split at `ends`, each moved to where the next patient begins."""
    if patients is not None:
        whose = patients[rows]
        first = np.flatnonzero(np.concatenate([[True], whose[1:] != whose[:-1]]))
        following = np.append(first, len(rows))
        ends = [int(following[np.searchsorted(following, end)]) for end in ends]
    return np.split(rows, ends)


def _by_label(
    rows: Indices,
    labels: Labels,
    silos: int,
    alphas: tuple[float, ...],
    draw: np.random.Generator,
) -> list[Indices]:
    """Every class of every part is split among the silos in proportions of its own, Dirichlet(alpha)."""
    for _ in range(1000):
        shares: list[list[Indices]] = [[] for _ in range(silos)]
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
