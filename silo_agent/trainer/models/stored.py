"""Learners, heads and models as bytes, and back: also those written before their modules moved.

What lies in a task's folder outlives an upgrade. A head that was paid for, a network in mid-task, a student or an
exported model names its classes by the modules of its time, so a module that moves is entered in `MOVED`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import joblib

MOVED: Final = {
    "silo_agent.models": "silo_agent.trainer.models",
    "silo_agent.privacy": "silo_agent.trainer.privacy",
    "silo_agent.trainer.cross_fitting": "silo_agent.trainer.methods.cross_fitting",
    "silo_agent.trainer.features": "silo_agent.trainer.data.features",
    "silo_agent.trainer.home_model": "silo_agent.trainer.data.home_model",
    "silo_agent.trainer.specialists": "silo_agent.trainer.methods.label_space_learners",
}
"""Packages and modules of version 0.1 by where they are now."""
RENAMED: Final = {
    "silo_agent.trainer.methods.cross_fitting": {"Apart": "FoldLearners"},
    "silo_agent.trainer.methods.label_space_learners": {
        "Specialist": "LabelSpaceLearner",
        "IterativeSpecialist": "IterativeLabelSpaceLearner",
        "NetworkSpecialist": "NetworkLabelSpaceLearner",
    },
    "silo_agent.trainer.models.torch_learner": {"Start": "InitialWeights"},
}
"""By module, classes of version 0.1 by what they are called now."""


def dump(value: Any) -> bytes:
    """`value` as a compressed joblib file."""
    buffer = io.BytesIO()
    joblib.dump(value, buffer, compress=3)
    return buffer.getvalue()


def load(source: Path | bytes) -> Any:
    """What `dump` wrote, in this version or an earlier one. Runs the code that the file names."""
    with _old_names():
        return joblib.load(io.BytesIO(source) if isinstance(source, bytes) else source)


@contextmanager
def _old_names() -> Iterator[None]:
    """Within the block, modules can be imported by the names they had before."""
    finder, before = _MovedModules(), set(sys.modules)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.given - before:
            sys.modules.pop(name, None)


class _MovedModules(MetaPathFinder, Loader):
    """Finds a module under its old name where there is none of that name any more."""

    def __init__(self) -> None:
        self.given: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, _: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        moved = _moved(name)
        return None if moved is None else ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stand-in with everything the module of today has, under its old names too."""
        moved = _moved(spec.name)
        assert moved is not None  # noqa: S101  `find_spec` has said so
        today, stand_in = import_module(moved), ModuleType(spec.name)
        stand_in.__dict__.update({k: v for k, v in vars(today).items() if not k.startswith("__")})
        for old, new in RENAMED.get(moved, {}).items():
            setattr(stand_in, old, getattr(today, new))
        self.given.add(spec.name)
        return stand_in

    def exec_module(self, module: ModuleType) -> None:
        """Everything is there already."""


def _moved(name: str) -> str | None:
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return None
