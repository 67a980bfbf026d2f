"""The learners by name: what `silo.yaml` may say, and what it builds."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from silo_agent.trainer.models.custom import custom, custom_reads
from silo_agent.trainer.models.parameters import closest
from silo_agent.trainer.models.protocol import IterativeLearner, Learner, Problem, Reads
from wire.errors import ConfigurationError
from wire.extractor_file import ExtractorFile


class LearnerSpec(BaseModel):
    """A learner as a person writes it: a bare name, or a name with parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """One of `LEARNERS`, or `package.module:Class`."""
    parameters: dict[str, object] = Field(default_factory=dict)
    """The library's own words for them (`max_depth`, `n_estimators`, …)."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, written: Any) -> Any:
        return {"name": written} if isinstance(written, str) else written

    def found_from(self, base: Path) -> LearnerSpec:
        """The same with a relative `path` among the parameters starting at `base`."""
        path = self.parameters.get("path")
        if ":" in self.name or not isinstance(path, str):
            return self
        found = {**self.parameters, "path": str((base / path).absolute())}
        return self.model_copy(update={"parameters": found})


@dataclass(frozen=True)
class _Entry:
    module: str
    builder: str
    extra: str
    reads: Reads = "features"


# Family modules import their library when they are imported, so they are imported when asked for.
_ENTRIES = {
    "decision_tree": _Entry("trees", "decision_tree", "trainer"),
    "random_forest": _Entry("trees", "random_forest", "trainer"),
    "logistic_regression": _Entry("linear", "logistic_regression", "trainer"),
    "svm": _Entry("linear", "svm", "trainer"),
    "xgboost": _Entry("xgb", "xgboost_", "xgboost"),
    "rulefit": _Entry("rulefit", "rulefit", "rules"),
    "ebm": _Entry("ebm", "ebm", "ebm"),
    "mlp": _Entry("neural", "mlp", "trainer"),
    "torch_mlp": _Entry("torch_nets", "torch_mlp", "torch"),
    "torch_cnn": _Entry("torch_nets", "torch_cnn", "torch"),
    "transformers": _Entry("transformer_learner", "transformers_", "torch", reads="texts"),
}

LEARNERS: tuple[str, ...] = tuple(_ENTRIES)
"""The names of the learners that come with Consilium."""

# Some libraries keep the seed in 32 signed bits.
_SEEDS = 2**31


def build(
    spec: LearnerSpec,
    classes: int,
    row_shape: tuple[int, ...],
    seed: int,
    extractor: ExtractorFile | None = None,
) -> Learner | IterativeLearner:
    """An untrained learner for class indices 0..classes-1 and rows of `row_shape` (without n; () for texts).

    The same arguments and data always give the same predictions. The result is picklable. `extractor` is the task's,
    for networks that start from it.
    """
    problem = Problem(classes, row_shape, seed % _SEEDS, extractor)
    if ":" in spec.name:
        return custom(spec.name, spec.parameters, problem)
    entry = _entry(spec)
    try:
        family = import_module(f"silo_agent.trainer.models.{entry.module}")
        learner: Learner | IterativeLearner = getattr(family, entry.builder)(
            spec.parameters, problem
        )
    except ImportError as error:
        raise ConfigurationError(
            f"Learner {spec.name} needs {error.name or 'a library'}, which cannot be imported.",
            f'Install it: pip install "consilium[{entry.extra}]"',
        ) from error
    return learner


def reads(spec: LearnerSpec) -> Reads:
    """Whether the learner reads numbers or texts; a person's own class says so by `reads = "texts"`."""
    return custom_reads(spec.name) if ":" in spec.name else _entry(spec).reads


def _entry(spec: LearnerSpec) -> _Entry:
    entry = _ENTRIES.get(spec.name)
    if entry is None:
        raise ConfigurationError(
            f"There is no learner {spec.name!r}.",
            closest(spec.name, LEARNERS)
            + f"Choose one of {', '.join(LEARNERS)}; or name your own as package.module:Class.",
        )
    return entry
