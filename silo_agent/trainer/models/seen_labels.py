"""Labels a silo never saw cannot break its learner: re-coded going in, mapped back going out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from silo_agent.trainer.models.protocol import Features, Labels, Learner, Reads
from wire.errors import ConfigurationError


class SeenLabels:
    """A learner over 0..C-1 around one that only ever meets the contiguous labels 0..k-1, k ≥ 2.

    With a single class in the data there is nothing to learn and the prediction is constant.
    `make` must be picklable; it is called for every `fit`, so nothing survives from an earlier one.
    """

    def __init__(
        self,
        make: Callable[[], Learner],
        classes: int,
        *,
        flatten: bool = True,
        reads: Reads = "features",
    ) -> None:
        self.reads = reads
        self._make = make
        self._classes = classes
        self._flatten = flatten
        self._seen: Labels = np.empty(0, dtype=np.int64)
        self._inner: Learner | None = None

    def fit(self, X: Features, y: Labels, /) -> SeenLabels:
        """Fits a fresh inner learner; any non-empty subset of the classes may occur in `y`."""
        seen, codes = np.unique(np.asarray(y, dtype=np.int64), return_inverse=True)
        if len(seen) == 0:
            raise ValueError("a learner needs at least one row")
        if seen[0] < 0 or seen[-1] >= self._classes:
            raise ValueError(f"labels must lie in 0..{self._classes - 1}")
        inner = None
        if len(seen) > 1:
            inner = self._make()
            inner.fit(self._rows(X), codes.astype(np.int64))
        self._seen, self._inner = seen, inner
        return self

    def predict(self, X: Features, /) -> Labels:
        """Only classes that occurred in the last `fit` are ever predicted."""
        if len(self._seen) == 0:
            raise RuntimeError("predict was called before fit")
        if self._inner is None:
            return np.full(len(X), self._seen[0], dtype=np.int64)
        codes = np.asarray(self._inner.predict(self._rows(X)))
        if codes.shape != (len(X),) or not np.isin(codes, np.arange(len(self._seen))).all():
            raise ConfigurationError(
                f"{type(self._inner).__name__}.predict did not return one of the labels it was "
                "fitted on for each row.",
                "It must return an array of shape (n,) with labels, not probabilities.",
            )
        return self._seen[codes.astype(np.int64)]

    def _rows(self, X: Features) -> Features:
        return X.reshape(len(X), -1) if self._flatten else X
