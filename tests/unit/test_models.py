"""Learners by name: every one survives small silos, unseen labels, pickling and people's typos."""

from __future__ import annotations

import ctypes
import io
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
from pydantic import ValidationError

from silo_agent.trainer.models import (
    LEARNERS,
    IterativeLearner,
    Labelled,
    Learner,
    LearnerSpec,
    build,
)
from silo_agent.trainer.models.catalogue import reads
from wire.errors import ConfigurationError

pytestmark = pytest.mark.slow

TABULAR = [
    name
    for name in LEARNERS
    if not name.startswith("torch_") and reads(LearnerSpec(name=name)) == "features"
]

# Smaller than the defaults where a default costs seconds and the behaviour does not depend on it.
QUICK: dict[str, dict[str, object]] = {
    "random_forest": {"n_estimators": 30},
    "rulefit": {"n_estimators": 15},
    "ebm": {"outer_bags": 2, "max_rounds": 300},
}

LABEL_PATTERNS = {
    "two classes": (2, [0, 1]),
    "all three classes": (3, [0, 1, 2]),
    "a gap in the classes": (3, [0, 2]),
    "the last two of three": (3, [1, 2]),
    "one class only": (3, [1]),
    "ten classes": (10, list(range(10))),
    "few of ten classes": (10, [2, 5, 9]),
}


def quick(name: str, classes: int, seed: int = 3, columns: int = 30) -> Any:
    return build(LearnerSpec(name=name, parameters=QUICK.get(name, {})), classes, (columns,), seed)


def clusters(labels: np.ndarray[Any, Any], seed: int, columns: int = 30) -> np.ndarray[Any, Any]:
    """Rows around one centre per class, on columns of very different scale."""
    centres = np.random.default_rng(99).normal(size=(10, columns))
    noise = np.random.default_rng(seed).normal(scale=0.3, size=(len(labels), columns))
    scales = np.logspace(-2, 3, columns)
    return np.asarray((centres[labels] + noise) * scales)


@pytest.mark.parametrize("pattern", LABEL_PATTERNS)
@pytest.mark.parametrize("name", TABULAR)
def test_a_silo_of_17_rows_may_hold_any_of_the_classes(name: str, pattern: str) -> None:
    classes, seen = LABEL_PATTERNS[pattern]
    labels = np.resize(np.array(seen), 17)
    elsewhere = np.resize(np.arange(classes), 40)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = quick(name, classes)
        learner.fit(clusters(labels, seed=1), labels)
        at_home = learner.predict(clusters(labels, seed=1))
        public = learner.predict(clusters(elsewhere, seed=2))

    assert at_home.dtype == np.int64
    assert at_home.shape == (17,)
    assert public.shape == (40,)
    assert set(public) <= set(seen)
    assert np.mean(at_home == labels) >= 0.75


@pytest.mark.parametrize("name", TABULAR)
def test_a_class_with_a_single_row_breaks_nothing(name: str) -> None:
    labels = np.array([2] + [0] * 16)
    learner = quick(name, 3)
    learner.fit(clusters(labels, seed=1), labels)
    assert set(learner.predict(clusters(labels, seed=2))) <= {0, 2}


@pytest.mark.parametrize("name", TABULAR)
def test_learners_generalise_to_new_rows_of_four_classes(name: str) -> None:
    labels = np.resize(np.array([0, 1, 2, 3]), 120)
    learner = quick(name, 5)
    learner.fit(clusters(labels, seed=1).astype(np.float32), labels)
    assert np.mean(learner.predict(clusters(labels, seed=2).astype(np.float32)) == labels) > 0.8


@pytest.mark.parametrize("name", TABULAR)
def test_a_fitted_learner_survives_joblib(name: str) -> None:
    labels = np.resize(np.array([0, 2, 3]), 30)
    learner = quick(name, 4).fit(clusters(labels, seed=1), labels)
    file = io.BytesIO()
    joblib.dump(learner, file)
    file.seek(0)
    public = clusters(np.resize(np.arange(4), 200), seed=2)
    np.testing.assert_array_equal(joblib.load(file).predict(public), learner.predict(public))


@pytest.mark.parametrize("name", TABULAR)
def test_seed_and_data_alone_decide_and_each_fit_starts_anew(name: str) -> None:
    rng = np.random.default_rng(5)
    noise, labels = rng.normal(size=(60, 8)), rng.integers(0, 2, size=60)
    public = rng.normal(size=(300, 8))

    fresh = quick(name, 3, seed=2**40 + 11, columns=8).fit(noise, labels)
    used = quick(name, 3, seed=2**40 + 11, columns=8)
    used.fit(noise + 3.0, (labels + 1) % 3)
    used.fit(noise, labels)

    np.testing.assert_array_equal(used.predict(public), fresh.predict(public))


@pytest.mark.parametrize("name", ["decision_tree", "random_forest", "rulefit", "ebm", "mlp"])
def test_another_seed_gives_another_model(name: str) -> None:
    rng = np.random.default_rng(5)
    rows, labels = rng.normal(size=(40, 8)), rng.integers(0, 2, size=40)
    public = rng.normal(size=(500, 8))
    first, second = (quick(name, 2, seed, 8).fit(rows, labels).predict(public) for seed in (1, 2))
    assert (first != second).any()


@pytest.mark.parametrize("name", ["logistic_regression", "svm", "mlp"])
def test_scale_sensitive_learners_standardise_inside(name: str) -> None:
    rng = np.random.default_rng(1)
    labels = np.resize(np.array([0, 1]), 60)
    rows = rng.normal(size=(60, 2))
    rows[:, 0] += 4.0 * labels
    stretched = rows * np.array([1e-3, 1e4]) + np.array([0.0, 1e5])
    learner = quick(name, 2, columns=2)
    plain = learner.fit(rows, labels).predict(rows)
    np.testing.assert_array_equal(learner.fit(stretched, labels).predict(stretched), plain)
    assert np.mean(plain == labels) > 0.9


def test_images_are_flattened_for_learners_of_tables() -> None:
    labels = np.resize(np.array([0, 1]), 20)
    images = clusters(labels, seed=1).reshape(20, 5, 6)
    learner: Any = build(LearnerSpec(name="decision_tree"), 2, (5, 6), 0)
    np.testing.assert_array_equal(learner.fit(images, labels).predict(images), labels)


def test_labels_outside_the_label_space_and_empty_data_are_refused() -> None:
    learner = quick("decision_tree", 2, columns=1)
    with pytest.raises(ValueError, match=r"0\.\.1"):
        learner.fit(np.zeros((2, 1)), np.array([0, 2]))
    with pytest.raises(ValueError, match="at least one row"):
        learner.fit(np.zeros((0, 1)), np.array([], dtype=np.int64))
    with pytest.raises(RuntimeError, match="before fit"):
        learner.predict(np.zeros((2, 1)))


def test_labelled_rows_need_as_many_labels() -> None:
    with pytest.raises(ValueError, match="3 rows have 2 labels"):
        Labelled(np.zeros((3, 1)), np.zeros(2, dtype=np.int64))


def test_any_scikit_learn_classifier_is_a_learner_unwrapped() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    assert isinstance(KNeighborsClassifier(), Learner)
    assert not isinstance(KNeighborsClassifier(), IterativeLearner)


# -- one family's own behaviour -------------------------------------------------------------------


def test_rulefit_leaves_numpys_global_generator_alone() -> None:
    labels = np.resize(np.array([0, 1]), 20)
    np.random.seed(1)
    expected = np.random.random(3)
    np.random.seed(1)
    quick("rulefit", 2).fit(clusters(labels, seed=1), labels)
    np.testing.assert_array_equal(np.random.random(3), expected)


def test_rulefit_decides_at_even_odds_not_at_imodels_half() -> None:
    from silo_agent.trainer.models.rulefit import OneVsRestRules

    log_odds = np.array([-0.2, 0.2, 0.4, 0.6, 300.0])
    binary = SimpleNamespace(
        predict_proba=lambda X: np.stack(
            [1 / (1 + np.exp(2 * log_odds - 1)), 1 / (1 + np.exp(1 - 2 * log_odds))], axis=1
        )
    )
    rules = OneVsRestRules()
    rules._models = [binary]
    np.testing.assert_array_equal(rules.predict(np.zeros((5, 1))), [0, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("built_for_cuda", "devices", "expected"),
    [(False, 1, False), (True, 0, False), (True, 2, True)],
)
def test_xgboost_takes_the_gpu_only_where_library_and_driver_have_one(
    monkeypatch: pytest.MonkeyPatch, built_for_cuda: bool, devices: int, expected: bool
) -> None:
    from silo_agent.trainer.models import xgb

    def count(pointer: Any) -> int:
        pointer._obj.value = devices
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)
    monkeypatch.setattr("xgboost.build_info", lambda: {"USE_CUDA": built_for_cuda})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert xgb.cuda_present.__wrapped__() is expected


def test_xgboost_without_a_driver_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from silo_agent.trainer.models import xgb

    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("xgboost.build_info", lambda: {"USE_CUDA": True})
    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert xgb.cuda_present.__wrapped__() is False


# -- what a person may write ----------------------------------------------------------------------


def test_a_bare_name_is_a_whole_specification() -> None:
    assert LearnerSpec.model_validate("svm") == LearnerSpec(name="svm")
    with pytest.raises(ValidationError, match="paramters"):
        LearnerSpec.model_validate({"name": "svm", "paramters": {}})


def test_parameters_reach_the_learner() -> None:
    labels = np.resize(np.array([0, 1, 2, 3]), 40)
    rows = clusters(labels, seed=1)
    stump: Any = build(LearnerSpec(name="decision_tree", parameters={"max_depth": 1}), 4, (30,), 0)
    assert len(set(stump.fit(rows, labels).predict(rows))) == 2


def test_an_unknown_learner_is_answered_with_the_names_and_the_closest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(LearnerSpec(name="xgbost"), 2, (3,), 0)
    assert "'xgbost'" in caught.value.sentence
    assert "Did you mean xgboost?" in caught.value.hint
    assert all(name in caught.value.hint for name in LEARNERS)


@pytest.mark.parametrize("name", TABULAR)
def test_an_unknown_parameter_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} has no parameter max_dept\."):
        build(LearnerSpec(name=name, parameters={"max_dept": 3}), 2, (3,), 0)


def test_the_closest_parameter_is_suggested() -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(LearnerSpec(name="decision_tree", parameters={"max_dept": 3}), 2, (3,), 0)
    assert "Did you mean max_depth?" in caught.value.hint


def test_the_seed_is_not_a_parameter() -> None:
    with pytest.raises(ConfigurationError, match="random_state"):
        build(LearnerSpec(name="svm", parameters={"random_state": 3}), 2, (3,), 0)


@pytest.mark.parametrize(
    ("name", "module", "library", "extra"),
    [
        ("svm", "linear", "sklearn", "trainer"),
        ("xgboost", "xgb", "xgboost", "xgboost"),
        ("rulefit", "rulefit", "imodels", "rules"),
        ("ebm", "ebm", "interpret", "ebm"),
        ("torch_cnn", "torch_nets", "torch", "torch"),
    ],
)
def test_a_missing_library_is_answered_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, library: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"silo_agent.trainer.models.{module}", raising=False)
    for loaded in [key for key in sys.modules if key.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigurationError) as caught:
        build(LearnerSpec(name=name), 2, (3,), 0)
    assert library in caught.value.sentence
    assert f'pip install "consilium[{extra}]"' in caught.value.hint


def test_importing_the_room_loads_no_learning_library() -> None:
    script = (
        "import sys, silo_agent.trainer.models\n"
        "print({'sklearn', 'torch', 'xgboost', 'imodels', 'interpret'} & set(sys.modules))"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=True
    )
    assert run.stdout.strip() == "set()"


# -- a person's own class -------------------------------------------------------------------------

OWN = """
import numpy as np

class Majority:
    def __init__(self, classes, row_shape, seed, bonus=0):
        self.told = (classes, row_shape, seed, bonus)

    def fit(self, X, y):
        assert set(y) == set(range(len(set(y)))), "labels must be contiguous"
        self.shape = X.shape
        self.winner = np.bincount(y).argmax()

    def predict(self, X):
        return np.full(len(X), self.winner)

class Continuing:
    def __init__(self, classes):
        self.steps = 0

    def advance(self, private, pseudo, steps, seed):
        self.steps += steps

    def predict(self, X):
        return np.zeros(len(X), dtype=int)

class Probabilities(Majority):
    def predict(self, X):
        return np.full((len(X), 2), 0.5)

class Unpredictable:
    def fit(self, X, y):
        pass

class Demanding(Majority):
    def __init__(self, threshold):
        pass

thing = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ward_models.py").write_text(OWN)
    (tmp_path / "ward_broken.py").write_text("import no_such_library")
    (tmp_path / "ward_raising.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("ward_models", "ward_broken", "ward_raising"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("own")
def test_a_persons_own_class_is_built_and_shielded_from_unseen_labels() -> None:
    spec = LearnerSpec(name="ward_models:Majority", parameters={"bonus": 4})
    learner: Any = build(spec, 4, (2, 2), 9)
    learner.fit(np.zeros((3, 2, 2)), np.array([3, 1, 3]))
    np.testing.assert_array_equal(learner.predict(np.zeros((2, 2, 2))), [3, 3])
    assert learner._inner.told == (4, (2, 2), 9, 4)
    assert learner._inner.shape == (3, 2, 2)


@pytest.mark.usefixtures("own")
def test_a_persons_own_continuing_class_is_left_as_it_is() -> None:
    learner: Any = build(LearnerSpec(name="ward_models:Continuing"), 3, (1,), 0)
    assert isinstance(learner, IterativeLearner)
    data = Labelled(np.zeros((2, 1)), np.zeros(2, dtype=np.int64))
    learner.advance(data, None, steps=5, seed=0)
    learner.advance(data, data, steps=2, seed=1)
    assert vars(learner) == {"steps": 7}


def test_a_scikit_learn_class_can_be_named_directly() -> None:
    spec = LearnerSpec(name="sklearn.neighbors:KNeighborsClassifier", parameters={"n_neighbors": 1})
    labels = np.resize(np.array([1, 4]), 20)
    rows = clusters(labels, seed=1)
    learner: Any = build(spec, 5, (30,), 0)
    np.testing.assert_array_equal(learner.fit(rows, labels).predict(rows), labels)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("path", "parameters", "complaint"),
    [
        ("ward_modls:Majority", {}, "no module ward_modls"),
        ("ward_models.deep:Majority", {}, "importing|no module ward_models.deep"),
        ("ward_models:Majorty", {}, "no class Majorty"),
        ("ward_models:thing", {}, "no class thing"),
        ("ward_models:", {}, "no class"),
        ("ward_models:Unpredictable", {}, "no method predict"),
        ("ward_broken:Majority", {}, "needs no_such_library"),
        ("ward_raising:Majority", {}, "ZeroDivisionError"),
        ("ward_models:Majority", {"bonis": 1}, "no parameter bonis"),
        ("ward_models:Majority", {"classes": 1}, "no parameter classes"),
        ("ward_models:Demanding", {}, "needs a parameter threshold"),
    ],
)
def test_a_persons_own_class_is_refused_in_words(
    path: str, parameters: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        build(LearnerSpec(name=path, parameters=parameters), 2, (1,), 0)
    assert path in caught.value.sentence
    assert caught.value.hint


@pytest.mark.usefixtures("own")
def test_a_persons_own_class_must_predict_labels() -> None:
    learner: Any = build(LearnerSpec(name="ward_models:Probabilities"), 2, (1,), 0)
    learner.fit(np.zeros((2, 1)), np.array([0, 1]))
    with pytest.raises(ConfigurationError, match=r"Probabilities\.predict"):
        learner.predict(np.zeros((2, 1)))
