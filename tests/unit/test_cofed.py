"""A silo that knows some of a task's classes: trains, votes and answers within them, and only within them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from session_scenes import SILO, opened, packed, votes
from sklearn.datasets import load_digits

from experiments.federation import Silo, define_task, run_federation
from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.methods.final_fit import fit_at_home
from silo_agent.trainer.methods.label_space_learners import restricted_to
from silo_agent.trainer.models import IterativeLearner, Labelled, Learner, LearnerSpec, build
from silo_agent.trainer.models.seen_labels import SeenLabels
from silo_agent.trainer.session import Session
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import ABSTAIN, unpack

pytestmark = pytest.mark.slow

CLASSES = ("a", "b", "c", "d")
KNOWN = (1, 3)
QUICK: dict[str, dict[str, object]] = {
    "random_forest": {"n_estimators": 10},
    "xgboost": {"n_estimators": 10},
    "rulefit": {"n_estimators": 20},
    "ebm": {"outer_bags": 2, "max_rounds": 50},
    "mlp": {"max_iter": 200},
    "torch_mlp": {"hidden": [16], "learning_rate": 0.01, "fit_steps": 60},
    "torch_cnn": {"channels": [4], "hidden": 16, "learning_rate": 0.01, "fit_steps": 60},
}
LEARNERS = ("decision_tree", "random_forest", "logistic_regression", "svm", "xgboost", "rulefit")
LEARNERS += ("ebm", "mlp", "torch_mlp", "torch_cnn")
CONTINUING = ("torch_mlp", "torch_cnn")


def builder(name: str, known: tuple[int, ...] = KNOWN) -> Callable[[int], Any]:
    spec = LearnerSpec(name=name, parameters=QUICK.get(name, {}))
    shape = (3, 3) if name == "torch_cnn" else (9,)
    return restricted_to(
        known, lambda classes, seed: build(spec, classes, shape, seed), len(CLASSES)
    )


def rows(name: str, labels: Any, count: int, seed: int) -> Labelled:
    """Rows around one centre per class of the task."""
    wanted = np.resize(np.array(labels), count)
    centres = np.random.default_rng(9).normal(size=(len(CLASSES), 9))
    made = centres[wanted] + np.random.default_rng(seed).normal(scale=0.2, size=(count, 9))
    shaped = made.reshape(-1, 3, 3) if name == "torch_cnn" else made
    return Labelled(shaped.astype(np.float32), wanted)


def taught(name: str, learner: Any, private: Labelled, pseudo: Labelled | None = None) -> Any:
    if name in CONTINUING:
        learner.advance(private, pseudo, 60, 0)
        return learner
    together = private
    if pseudo is not None:
        together = Labelled(
            np.concatenate([private.features, pseudo.features]),
            np.concatenate([private.labels, pseudo.labels]),
        )
    return learner.fit(together.features, together.labels)


# -- learners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_is_built_for_the_known_classes_and_answers_with_the_tasks(name: str) -> None:
    learner = taught(name, builder(name)(0), rows(name, KNOWN, 40, 1))
    inner = learner._learner
    built_for = inner._classes if isinstance(inner, SeenLabels) else inner._problem.classes
    assert built_for == len(KNOWN)
    new = rows(name, KNOWN, 60, 2)
    predicted = learner.predict(new.features)
    assert predicted.dtype == np.int64
    assert np.mean(predicted == new.labels) > 0.9
    strange = rows(name, range(4), 80, 3)
    assert set(learner.predict(strange.features)) <= set(KNOWN)


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_of_unknown_classes_in_a_consensus_teach_nothing(name: str) -> None:
    private, pseudo = rows(name, KNOWN, 20, 1), rows(name, range(4), 80, 2)
    known = np.isin(pseudo.labels, KNOWN)
    public = rows(name, range(4), 100, 3).features
    mixed = taught(name, builder(name)(0), private, pseudo).predict(public)
    clean = taught(name, builder(name)(0), private, pseudo[known]).predict(public)
    np.testing.assert_array_equal(mixed, clean)
    # Nor does a consensus of nothing else break anything.
    none = taught(name, builder(name)(0), private, pseudo[~known]).predict(public)
    np.testing.assert_array_equal(none, taught(name, builder(name)(0), private).predict(public))


@pytest.mark.parametrize("name", LEARNERS)
def test_one_known_class_is_a_constant_answer(name: str) -> None:
    private, pseudo = rows(name, [2], 12, 1), rows(name, [2], 30, 2)
    learner = taught(name, builder(name, (2,))(0), private, pseudo)
    assert set(learner.predict(rows(name, range(4), 40, 3).features)) == {2}


@pytest.mark.parametrize("name", CONTINUING)
def test_a_continuing_specialist_is_kept_and_goes_on_as_if_it_had_not_been(name: str) -> None:
    private, pseudo = rows(name, KNOWN, 30, 1), rows(name, KNOWN, 60, 2)
    steady = builder(name)(0)
    assert isinstance(steady, IterativeLearner)
    steady.advance(private, None, 7, 0)
    restarted = pickle.loads(pickle.dumps(steady))
    for one in (steady, restarted):
        one.advance(private, pseudo, 7, 1)
    ours, theirs = (one._learner._network.state_dict() for one in (steady, restarted))
    assert all(bool((ours[part] == theirs[part]).all()) for part in ours)


def test_what_a_learner_can_do_its_specialist_can() -> None:
    assert isinstance(builder("torch_mlp")(0), Learner)
    assert not isinstance(builder("svm")(0), IterativeLearner)

    class Continuing:
        reads = "texts"

        def advance(self, *given: Any) -> None: ...

        def predict(self, X: Any) -> Any: ...

    only = restricted_to(KNOWN, lambda classes, seed: Continuing(), 4)(0)
    assert isinstance(only, IterativeLearner)
    assert not isinstance(only, Learner)
    assert only.reads == "texts"  # type: ignore[attr-defined]


def test_one_who_knows_everything_is_no_specialist() -> None:
    assert isinstance(builder("svm", (0, 1, 2, 3))(0), SeenLabels)


@pytest.mark.parametrize("name", ["decision_tree", "logistic_regression"])
def test_the_model_at_home_weighs_a_consensus_of_known_classes(name: str) -> None:
    private = rows(name, KNOWN, 120, 1)
    public = rows(name, range(4), 80, 2)
    training = CoTraining(private, public.features, builder(name), local_steps=1, seed=0)
    consensus = np.where(np.isin(public.labels, KNOWN), public.labels, ABSTAIN)
    home = fit_at_home(training, np.arange(120), 2, consensus)
    new = rows(name, KNOWN, 60, 3)
    assert np.mean(home.predict(new.features) == new.labels) > 0.9


# -- sessions -------------------------------------------------------------------------------------

COLUMNS = [f"x{index}" for index in range(9)]
COFED: dict[str, Any] = {"method": "cofed", "label_spaces": {SILO: ["b", "d"]}}
PUBLIC = rows("svm", range(4), 80, 5)


def table(data: Labelled) -> pd.DataFrame:
    return pd.DataFrame(data.features.astype(float), columns=COLUMNS)


def private_table(labels: Any, count: int = 60) -> pd.DataFrame:
    data = rows("svm", labels, count, 4)
    return table(data).assign(label=[CLASSES[index] for index in data.labels])


def session(
    folder: Path, private: pd.DataFrame, model: str = "logistic_regression", **given: Any
) -> Session:
    settings = {"model": {"name": model, "parameters": QUICK.get(model, {})}, **given}
    made, misfits = opened(folder, table(PUBLIC), private, CLASSES, settings, **COFED)
    assert made is not None, misfits
    return made


def test_rows_of_labels_outside_the_silos_own_label_space_teach_nothing_and_count(
    tmp_path: Path,
) -> None:
    private = private_table(KNOWN)
    private.loc[:2, "label"] = ["a", "c", "a"]
    made, misfits = opened(tmp_path, table(PUBLIC), private, CLASSES, {"model": "svm"}, **COFED)
    assert made is not None
    assert misfits == []
    assert len(made.learner.training.private) == len(private) - 3
    assert made.releaser.scope.units == len(private)
    # To another silo, which the task gives no label space of its own, these are labels like others.
    free = {**COFED, "label_spaces": {"others": ["a"]}}
    made, _ = opened(tmp_path, table(PUBLIC), private, CLASSES, {"model": "svm"}, **free)
    assert made is not None
    assert len(made.learner.training.private) == len(private)


def test_labels_are_read_by_the_whole_label_space(tmp_path: Path) -> None:
    # Alone, the silo's "01" would be taken for its class "1"; in the task it is another class.
    private = private_table([1], 6).assign(label=["1", "1", "1", "01", "1", "1"])
    numbers = {"method": "cofed", "label_spaces": {SILO: ["1", "2"]}}
    made, _ = opened(
        tmp_path, table(PUBLIC), private, ("1", "01", "2"), {"model": "svm"}, **numbers
    )
    assert made is not None
    assert made.learner.training.private.labels.tolist() == [0] * 5


@pytest.mark.parametrize("model", ["decision_tree", "logistic_regression", "torch_mlp"])
def test_a_silo_votes_within_its_classes_and_its_model_answers_with_their_names(
    tmp_path: Path, model: str
) -> None:
    made = session(tmp_path, private_table(KNOWN), model)
    cast = votes(made, 1)
    assert set(cast) == set(KNOWN)
    own = np.isin(PUBLIC.labels, KNOWN)
    assert np.mean(cast[own] == PUBLIC.labels[own]) > 0.9
    made.finish(1, packed(made, np.where(own, PUBLIC.labels, ABSTAIN)))
    home = joblib.load(made.folder.model_path())
    said = home.predict(table(rows("svm", [1, 3, 3], 3, 8)))
    assert said == ["b", "d", "d"]


def test_a_coordinator_that_sends_foreign_classes_teaches_the_silo_nothing(tmp_path: Path) -> None:
    own = np.isin(PUBLIC.labels, KNOWN)
    said = []
    for folder, consensus in (
        ("honest", np.where(own, PUBLIC.labels, ABSTAIN)),
        ("not", PUBLIC.labels),
    ):
        made = session(tmp_path / folder, private_table(KNOWN))
        votes(made, 1)
        made.finish(1, packed(made, consensus))
        said.append(joblib.load(made.folder.model_path()).predict(table(PUBLIC)))
    assert said[0] == said[1]
    assert set(said[0]) <= {"b", "d"}


NOISY: dict[str, dict[str, Any]] = {
    "private_labeller": {"mechanism": {"name": "private_labeller"}, "epsilon": 0.5},
    "teacher_votes": {
        "mechanism": {"name": "teacher_votes", "teachers": 10, "rows": 80},
        "epsilon": 5,
    },
    "randomized_response": {"mechanism": {"name": "randomized_response", "row_epsilon": 0.1}},
}


@pytest.mark.parametrize("mechanism", NOISY)
def test_noise_never_votes_for_a_class_the_silo_does_not_know(
    tmp_path: Path, mechanism: str
) -> None:
    made = session(tmp_path, private_table(KNOWN), privacy=NOISY[mechanism])
    cast = votes(made, 1)
    assert set(cast) <= {*KNOWN, ABSTAIN}
    assert (cast != ABSTAIN).any()


def test_a_private_labeller_chooses_among_the_known_classes_instead_of_abstaining(
    tmp_path: Path,
) -> None:
    # At this budget the head is mostly noise, and half of what it says are classes unknown here.
    made = session(tmp_path, private_table(KNOWN), privacy=NOISY["private_labeller"])
    assert not (votes(made, 1) == ABSTAIN).any()


@pytest.mark.parametrize("mechanism", ["none", *NOISY])
def test_a_silo_that_knows_one_class_takes_part(tmp_path: Path, mechanism: str) -> None:
    privacy = NOISY.get(mechanism, {})
    made, misfits = opened(
        tmp_path,
        table(PUBLIC),
        private_table([2]),
        CLASSES,
        {"model": "svm", "privacy": privacy},
        **{**COFED, "label_spaces": {SILO: ["c"]}},
    )
    assert made is not None, misfits
    cast = votes(made, 1)
    assert set(cast) <= {2, ABSTAIN}
    assert (cast == 2).any()
    made.finish(1, packed(made, np.full(80, ABSTAIN)))
    home = joblib.load(made.folder.model_path())
    assert set(home.predict(table(PUBLIC))) == {"c"}


# -- a federation ---------------------------------------------------------------------------------


def test_three_silos_with_overlapping_label_spaces_teach_each_other() -> None:
    digits = load_digits()
    images, labels = digits.data.astype(np.float64), digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    public, test, left = order[:700], order[700:1100], order[1100:]
    spaces = {"anna": tuple(range(7)), "berta": tuple(range(3, 10)), "clara": (0, 1, 2, 7, 8, 9)}
    models = {"anna": "logistic_regression", "berta": "svm", "clara": "random_forest"}
    silos = {}
    for name, space in spaces.items():
        own = left[np.isin(labels[left], space)][:120]
        left = np.setdiff1d(left, own, assume_unique=True)
        model = LearnerSpec(name=models[name], parameters=QUICK.get(models[name], {}))
        silos[name] = Silo(Labelled(images[own], labels[own]), TrainingSettings(model=model))
    definition = define_task(
        images[public],
        10,
        sorted(spaces),
        method="cofed",
        label_spaces={name: [str(index) for index in space] for name, space in spaces.items()},
        # Every class is known to two silos: at 0.3 each of them would be believed alone, also on rows of
        # classes it does not know.
        consensus={"threshold": 0.5},
    )
    result = run_federation(definition, silos, images[public])

    gains = {}
    for name, space in spaces.items():
        assert set(unpack(result.ballots[0][name], definition.shape)) <= set(space)
        received = result.labels(name)
        labelled = received != ABSTAIN
        assert set(received[labelled]) <= set(space)
        assert np.mean(received[labelled] == labels[public][labelled]) > 0.7
        private = silos[name].private
        alone = CoTraining(private, images[:0], _alone(models[name], space), 1, 0)
        asked = test[np.isin(labels[test], space)]
        rates = [
            np.mean(model.predict(images[asked]) == labels[asked])
            for model in (result.home_models[name], alone.fit(1, None, None))
        ]
        gains[name] = rates[0] - rates[1]
    assert min(gains.values()) > 0, gains
    assert np.mean(list(gains.values())) > 0.02, gains


def _alone(name: str, space: tuple[int, ...]) -> Callable[[int], Any]:
    spec = LearnerSpec(name=name, parameters=QUICK.get(name, {}))
    return restricted_to(space, lambda classes, seed: build(spec, classes, (64,), seed), 10)
