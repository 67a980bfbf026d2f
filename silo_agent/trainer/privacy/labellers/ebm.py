"""The private labeller's head for tables: DP-EBM, an additive model of noisy steps, by interpret (0.7.x).

What interpret releases of n rows, for each yes/no problem: per column a histogram plus Gaussian noise, from which
bins and their weights follow; then, round by round and column by column, the sums of the gradients p − y over the
leaves of a split drawn at random, plus Gaussian noise. Everything else is computed from these, from n and from
what is public. It counts an *added* row: 1 in one cell of a histogram, at most 1 in one leaf (times the rate). A
*replaced* one costs more, and that is what `events` say:

    a histogram       one cell loses 1, another gains 1: √2
    a yes/no problem  whose answer changes: p − 1 becomes p′ in the same leaf, at worst 2
                      whose answer stays: both of one sign; 1 in the same leaf, √2 in two

Two classes are one problem (2² = 4 for a step). C > 2 classes are C problems, one against the rest: a replaced
patient changes at most two answers, so a step of all of them costs at most 2·4 + (C − 2)·2 = 2C + 4, squared.
Gaussian steps that build on one another compose exactly, by the sum of squares; columns and rounds are already in
interpret's own scale of noise (√(columns · rounds)), which is checked after every fit.

What interpret would use without noise, and why it does not leak here: columns are declared continuous and their
bounds are those of U, to which private rows are clipped; which classes occur is hidden by two public rows, one of
each answer, that are part of every fit; there is no validation set, no early stopping and no fitted intercept;
n is public. One row per patient is drawn before anything else. The guarantee is that of real arithmetic: interpret
draws from the machine's random device (RDRAND, else the system's) on a grid of 2⁻⁵⁶ of the scale, but adds in
float64 to sums that are on no grid. Float sums are covered (`_slack`), last bits are not hidden; what leaves the
hospital are labels and four-bit certainties. Noise of interpret cannot come from our bits, so no seed repeats a fit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from interpret import develop
from interpret.privacy import DPExplainableBoostingClassifier
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from silo_agent.trainer.models.protocol import Features, Labelled, Labels
from silo_agent.trainer.privacy.bounded import Floats, finite_rows
from silo_agent.trainer.privacy.labellers.ebm_head import EbmHead, Problem, Shape, clipped
from silo_agent.trainer.privacy.labellers.one_row import NO_ROW, one_row_each
from silo_agent.trainer.privacy.labellers.usable_rows import usable_rows
from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
from wire.errors import ConfigurationError
from wire.privacy.accounting import calibrate
from wire.privacy.events import Event, Gaussian
from wire.privacy.randomness import Bits

ROUNDS: Final = 40
REACH: Final = 1.0
"""Rounds times learning rate: how far the scores can move. The noise of all rounds together grows with it."""
BINS: Final = 8
LEAVES: Final = 3
HISTOGRAMS: Final = 0.1
"""Share of the (squared) budget that goes to histograms; bins matter less than what is learned in them."""
_LEAST, _MOST = 1e-3, 6.0
"""Range of μ, for an added row, within which interpret's own conversion from (ε, δ) is accurate."""


@dataclass(frozen=True)
class EbmTrainer:
    """DP-EBM with the noise already chosen."""

    classes: int
    units: int
    rounds: int
    histogram: float
    """μ of the histograms of one problem, for an added row."""
    boosting: float
    """μ of all gradient sums of one problem, for an added row."""

    @classmethod
    def for_scope(cls, settings: PrivateLabellerSettings, scope: Scope) -> Self:
        """The least noise whose training costs at most `scope.epsilon` at `scope.delta`."""
        if scope.epsilon is None:
            raise ConfigurationError(
                "The private labeller with head ebm chooses its noise from a budget, and silo.yaml sets none.",
                "Set privacy.epsilon in silo.yaml.",
            )
        if scope.shape.classes < 2:
            raise ConfigurationError(
                "The private labeller with head ebm needs two classes or more; the task has one.",
                "Choose a task with at least two classes.",
            )
        classes, units = scope.shape.classes, scope.units
        histogram, boosting = _parts(classes)
        noise = calibrate(
            lambda noise: _events(classes, units, histogram / noise, boosting / noise),
            scope.epsilon,
            scope.delta,
            max(histogram, boosting) / _MOST,
            min(histogram, boosting) / _LEAST,
        )
        if noise is None:
            raise ConfigurationError(
                f"The private labeller with head ebm cannot add enough noise for ε = {scope.epsilon:g} at δ = {scope.delta:g}.",
                "Raise privacy.epsilon in silo.yaml, or choose head logistic.",
            )
        rounds = settings.steps or ROUNDS
        return cls(classes, units, rounds, histogram / noise, boosting / noise)

    @property
    def events(self) -> tuple[Event, ...]:
        """Histograms and gradient sums, in units of what an added row can change."""
        return _events(self.classes, self.units, self.histogram, self.boosting)

    @property
    def parameters(self) -> dict[str, object]:
        """For the ledger."""
        return {
            "head": "ebm",
            "rounds": self.rounds,
            "problems": _problems(self.classes),
            "histogram_scale": 1 / self.histogram,
            "boosting_scale": 1 / self.boosting,
            "noise": "continuous, by interpret from the machine's random device, added in float64",
            "rows": "one per patient, drawn before training",
        }

    def train(
        self,
        private: Labelled,
        patients: npt.NDArray[np.int64],
        public: Features,
        classes: int,
        bits: Bits,
    ) -> EbmHead:
        """Trains once, on one row per patient drawn by `bits`; interpret brings its own noise."""
        if classes != self.classes:
            raise ValueError(f"the noise was chosen for {self.classes} classes, not {classes}")
        private, patients = usable_rows(private, patients, classes)
        table = finite_rows(public)
        lower, upper = table.min(axis=0), table.max(axis=0)
        # What is constant on U says nothing there, and every column more costs noise.
        columns = np.flatnonzero(_varies(lower, upper))
        if not len(columns):
            raise ConfigurationError(
                "The private labeller with head ebm finds no column that varies in the public set.",
                "Ask the admin for another public set.",
            )
        middle = np.median(table, axis=0)
        chosen = one_row_each(patients, self.units, bits)[0]
        there = chosen != NO_ROW
        # A patient without a usable row is a public one in all classes' turn: the number of rows is public.
        rows, labels = np.tile(middle, (len(chosen) + 2, 1)), np.arange(len(chosen) + 2) % classes
        rows[:-2][there] = clipped(private.features[chosen[there]], lower, upper)
        labels[:-2][there] = private.labels[chosen[there]]
        wanted = [1] if classes == 2 else range(classes)
        problems = tuple(
            self._solved(rows, _answers(labels, wanted_class), columns, lower, upper)
            for wanted_class in wanted
        )
        return EbmHead(classes, lower, upper, problems)

    def _solved(
        self, rows: Floats, answers: Labels, columns: Labels, lower: Floats, upper: Floats
    ) -> Problem:
        epsilon, delta, share = _as_interpret_counts(self.histogram, self.boosting)
        rate = REACH / self.rounds
        model = DPExplainableBoostingClassifier(
            feature_types=["continuous"] * len(columns),
            privacy_bounds=np.column_stack([lower[columns], upper[columns]]),
            max_bins=BINS,
            max_leaves=LEAVES,
            max_rounds=self.rounds,
            learning_rate=rate,
            validation_size=0,
            outer_bags=1,
            n_jobs=1,
            # None is the machine's random device; a number would be a seed of 32 bits.
            random_state=None,
            epsilon=epsilon,
            delta=delta,
            bin_budget_frac=share,
            composition="gdp",
        )
        with _float64(), warnings.catch_warnings():
            # Its warnings name what would leak: whatever it finds to warn of, nothing is released.
            warnings.simplefilter("error", UserWarning)
            model.fit(rows[:, columns], answers)
        asked = (
            math.sqrt(len(columns)) / self.histogram,
            math.sqrt(len(columns) * self.rounds) * rate / self.boosting,
        )
        added = (model.noise_scale_binning_, model.noise_scale_boosting_)
        if any(less < due * (1 - _ROUNDING) for less, due in zip(added, asked, strict=True)):
            raise RuntimeError("interpret added less noise than it was asked for")
        return _extracted(model, columns)


def _varies(lower: Floats, upper: Floats) -> npt.NDArray[np.bool_]:
    """(columns,) True where floats between the bounds are enough for bins."""
    furthest = np.maximum(np.abs(lower), np.abs(upper))
    return np.asarray(upper - lower > 1e-9 * np.maximum(1.0, furthest))


_ROUNDING: Final = 1e-6
"""Relative error allowed to interpret's own conversion; `_slack` pays for it."""


def _events(classes: int, units: int, histogram: float, boosting: float) -> tuple[Event, ...]:
    slack = _slack(units)
    step = math.sqrt(_step_square(classes))
    return (
        Gaussian(sensitivity=math.sqrt(2) * slack, scale=1 / histogram, count=_problems(classes)),
        Gaussian(sensitivity=step * slack, scale=1 / boosting),
    )


def _problems(classes: int) -> int:
    return 1 if classes == 2 else classes


def _step_square(classes: int) -> int:
    """Squared change of one step's gradient sums, over all problems, when a patient is replaced."""
    return 4 if classes == 2 else 2 * classes + 4


def _parts(classes: int) -> tuple[float, float]:
    """μ of the histograms and of the gradient sums of one problem when all together have μ = 1."""
    return (
        math.sqrt(HISTOGRAMS / (2 * _problems(classes))),
        math.sqrt((1 - HISTOGRAMS) / _step_square(classes)),
    )


def _slack(units: int) -> float:
    """How much more two float64 sums of `units` terms in [−1, 1] can differ than the exact ones."""
    return 1 + 2 * _ROUNDING + 4 * (units + 2) ** 2 * 2.0**-53


def _answers(labels: Labels, wanted: int) -> Labels:
    """1 where a row is of the wanted class; the two public rows at the end are one of each."""
    answers: Labels = (labels == wanted).astype(np.int64)
    answers[-2:] = (0, 1)
    return answers


def _as_interpret_counts(histogram: float, boosting: float) -> tuple[float, float, float]:
    """(ε, δ, share of histograms) from which interpret derives exactly these two μ for itself.

    It gives each part δ/2 and solves δ(ε, μ) = δ/2 for μ. The δ is only a means here; half of what the smaller μ
    has at ε = 0 keeps both ε small, where that equation is well conditioned.
    """
    half = (2 * float(ndtr(min(histogram, boosting) / 2)) - 1) / 2
    first, second = (_gdp_epsilon(mu, half) for mu in (histogram, boosting))
    return first + second, 2 * half, first / (first + second)


def _gdp_epsilon(mu: float, delta: float) -> float:
    def excess(epsilon: float) -> float:
        gone = math.exp(epsilon + float(log_ndtr(-epsilon / mu - mu / 2)))
        return float(ndtr(-epsilon / mu + mu / 2)) - gone - delta

    return float(brentq(excess, 0.0, mu * mu / 2 + 10 * mu, xtol=1e-14, rtol=1e-14))


@contextmanager
def _float64() -> Iterator[None]:
    """interpret's plain float64 code instead of its float32 vector units, whose sums err by far more."""
    before = develop.get_option("acceleration")
    develop.set_option("acceleration", 0)
    try:
        yield
    finally:
        develop.set_option("acceleration", before)


def _extracted(model: Any, columns: Labels) -> Problem:
    """The model as plain numbers: without interpret's bins for missing and unseen values, which never occur."""
    shapes = (
        Shape(
            int(columns[feature]),
            np.asarray(model.bins_[feature][0], dtype=np.float64),
            np.nan_to_num(scores[1:-1]),
        )
        for (feature,), scores in zip(model.term_features_, model.term_scores_, strict=True)
    )
    return Problem(float(model.intercept_[0]), tuple(shapes))
