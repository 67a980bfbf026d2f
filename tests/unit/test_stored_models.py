"""What was kept before the modules moved is still read: paid heads, networks in mid-task, exported models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silo_agent.trainer.methods.cross_fitting import FoldLearners
from silo_agent.trainer.methods.label_space_learners import (
    IterativeLabelSpaceLearner,
    LabelSpaceLearner,
    NetworkLabelSpaceLearner,
)
from silo_agent.trainer.models import stored
from silo_agent.trainer.models.catalogue import LearnerSpec, build

pytestmark = pytest.mark.slow


def a_tree() -> Any:
    tree = build(LearnerSpec(name="decision_tree"), 2, (1,), 0)
    return tree.fit(np.arange(8.0)[:, None], np.repeat([0, 1], 4))  # type: ignore[union-attr]


@contextmanager
def named_as_before(kind: type, module: str, name: str = "") -> Iterator[None]:
    """Pickles of `kind` name it as an earlier version did."""
    before = kind.__module__, kind.__qualname__
    kind.__module__, kind.__qualname__ = module, name or kind.__qualname__
    try:
        with stored._old_names():
            yield
    finally:
        kind.__module__, kind.__qualname__ = before


def test_what_is_dumped_is_loaded(tmp_path: Path) -> None:
    content = stored.dump(FoldLearners(a_tree()))
    (tmp_path / "learner").write_bytes(content)

    for held in (stored.load(content), stored.load(tmp_path / "learner")):
        assert isinstance(held, FoldLearners)
        assert held.whole is not None
        assert held.whole.predict(np.array([[0.0], [7.0]])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("value", "kind", "module", "name"),
    [
        (a_tree(), type(a_tree()), "silo_agent.models.trees", ""),
        *(
            (kind(a_tree(), (0, 1)), kind, "silo_agent.trainer.specialists", name)
            for kind, name in (
                (LabelSpaceLearner, "Specialist"),
                (IterativeLabelSpaceLearner, "IterativeSpecialist"),
                (NetworkLabelSpaceLearner, "NetworkSpecialist"),
            )
        ),
        (FoldLearners(a_tree()), FoldLearners, "silo_agent.trainer.cross_fitting", "Apart"),
    ],
)
def test_classes_are_found_where_they_are_now(
    value: Any, kind: type, module: str, name: str
) -> None:
    with named_as_before(kind, module, name):
        old = stored.dump(value)

    assert type(stored.load(old)) is kind
    assert module not in sys.modules


def test_a_network_kept_with_the_weights_it_started_from_is_found() -> None:
    pytest.importorskip("torch")
    from silo_agent.trainer.models.torch_learner import InitialWeights

    weights = InitialWeights((np.ones(2),), np.zeros(1), np.ones(1))
    with named_as_before(InitialWeights, "silo_agent.models.torch_learner", "Start"):
        old = stored.dump(weights)

    held = stored.load(old)
    assert type(held) is InitialWeights
    assert held.weights[0].tolist() == [1, 1]


def test_every_renamed_class_is_there() -> None:
    for module, names in stored.RENAMED.items():
        for name in names.values():
            assert isinstance(getattr(import_module(module), name), type)


def test_every_move_leads_to_a_module() -> None:
    for old in stored.MOVED:
        with stored._old_names():
            assert import_module(old).__name__ == old
        assert old not in sys.modules
