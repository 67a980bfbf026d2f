"""A silo's own learner over the rounds of one task. Every learner is trained here, iterative or refitted.

An iterative learner goes on from its state of the round before, which lies in the task's folder; any other is
fitted anew. A trainer killed at any point trains a round at most once more and ends with the same learner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from silo_agent.trainer.methods.co_training import Consensus, CoTraining, union
from silo_agent.trainer.methods.final_fit import fit_at_home
from silo_agent.trainer.methods.warm_start import WarmStart
from silo_agent.trainer.models.protocol import AnyLearner, IterativeLearner
from silo_agent.trainer.models.scratch_fit import fit_from_scratch
from silo_agent.trainer.task_folder import Folder
from wire.runtime.crash_points import crash_point

Fit: TypeAlias = Callable[[CoTraining, int, Consensus | None, Any], Any]
"""(training, round number, consensus, state of the round before or None) → state; see `CoTraining.fit`."""


class DiskFailed(Exception):
    """A learner's state could not be read or written; says nothing about any row."""


@contextmanager
def _at_home() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFailed(f"a learner's state could not be kept ({error.strerror})") from error


@dataclass(frozen=True, eq=False)
class LocalLearner:
    """The learner that silo.yaml names, with the rows it learns from and the place where its state is kept."""

    training: CoTraining
    patients: NDArray[np.int64] = field(repr=False)
    """(n,) whose row it is."""
    folder: Folder | None = field(repr=False)
    """None keeps nothing: for what-if trainings."""
    consensus_share: float | None = None
    """How much of the consensus the final model learns from; None lets validation decide."""
    warm_start: WarmStart | None = None
    """Replaces the consensus in rounds before the first one; None for a cold start."""

    @cached_property
    def iterative(self) -> bool:
        """True if the learner continues from its last state."""
        return isinstance(self.training.build(self.training.seed), IterativeLearner)

    def train(
        self,
        round_number: int,
        consensus: Consensus | None,
        fit: Fit,
        initial_state: Callable[[WarmStart], Any],
    ) -> Any:
        """What `fit` makes of the round, given the state before it; an iterative learner's state is kept.

        `initial_state` gives the first state of an iterative learner that starts from a student.
        """
        with _at_home():
            held = self._kept(round_number)
        if held is not None:
            return held
        known = self._or_warm_start(consensus)
        learned = fit(
            self.training, round_number, known, self._previous(round_number, initial_state)
        )
        crash_point("learner-trained")
        if self.iterative and self.folder is not None:
            # A trainer killed after the state was kept, but before the ballot was, must not train twice.
            with _at_home():
                self.folder.keep_learner(round_number, learned)
            crash_point("learner-kept")
        return learned

    def fit_final(self, round_number: int, consensus: Consensus | None) -> AnyLearner:
        """A learner fitted anew on D and as much of P as validation at home allows."""
        training, consensus = self.training, self._or_warm_start(consensus)
        if not self.iterative:
            return fit_at_home(
                training, self.patients, round_number, consensus, self.consensus_share
            )
        together = union(training.private, training.pseudo_labelled(consensus))
        return fit_from_scratch(training.build(training.seed), together, training.seed)

    def without(self, unit: int) -> LocalLearner:
        """The same, had one patient not been there and the learner not begun before."""
        kept = self.patients != unit
        return replace(
            self,
            training=replace(self.training, private=self.training.private[kept]),
            patients=self.patients[kept],
            folder=None,
        )

    def _or_warm_start(self, consensus: Consensus | None) -> Consensus | None:
        return (
            self.warm_start.labels
            if consensus is None and self.warm_start is not None
            else consensus
        )

    def _kept(self, round_number: int) -> Any:
        return None if self.folder is None else self.folder.learner(round_number)

    def _previous(self, round_number: int, initial_state: Callable[[WarmStart], Any]) -> Any:
        if not self.iterative or self.folder is None:
            return None
        with _at_home():
            held = self.folder.latest_learner(round_number)
        if held is None and self.warm_start is not None:
            return initial_state(self.warm_start)
        return held
