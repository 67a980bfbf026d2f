"""Torch learners continue: exact steps, half D and half P, and a pickle is a bookmark."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from silo_agent.trainer.models import IterativeLearner, Labelled, Learner, LearnerSpec, build  # noqa: E402
from silo_agent.trainer.models.torch_nets import perceptron  # noqa: E402
from wire.errors import ConfigurationError  # noqa: E402

pytestmark = pytest.mark.slow

SMALL: dict[str, dict[str, object]] = {
    "torch_mlp": {"hidden": [32], "fit_steps": 60, "learning_rate": 0.01},
    "torch_cnn": {"channels": [8], "hidden": 16, "fit_steps": 60, "learning_rate": 0.01},
}
SHAPES = {"torch_mlp": (30,), "torch_cnn": (6, 5)}


def small(name: str, classes: int, seed: int = 3, **parameters: object) -> Any:
    spec = LearnerSpec(name=name, parameters={**SMALL[name], **parameters})
    return build(spec, classes, SHAPES[name], seed)


def clusters(labels: np.ndarray[Any, Any], seed: int, shape: tuple[int, ...]) -> Labelled:
    centres = np.random.default_rng(99).normal(size=(10, *shape))
    noise = np.random.default_rng(seed).normal(scale=0.3, size=(len(labels), *shape))
    return Labelled(centres[labels] + noise, labels.astype(np.int64))


@pytest.mark.parametrize("seen", [[0, 1], [0, 2], [1], [0, 1, 2], list(range(10))])
@pytest.mark.parametrize("name", SHAPES)
def test_a_silo_of_17_rows_may_hold_any_of_the_classes(name: str, seen: list[int]) -> None:
    data = clusters(np.resize(np.array(seen), 17), 1, SHAPES[name])
    learner = small(name, 10)
    learner.advance(data, None, steps=60, seed=0)
    predicted = learner.predict(data.features)
    assert predicted.dtype == np.int64
    np.testing.assert_array_equal(predicted, data.labels)


@pytest.mark.parametrize("name", SHAPES)
def test_torch_learners_speak_both_protocols(name: str) -> None:
    learner = small(name, 3)
    assert isinstance(learner, IterativeLearner)
    assert isinstance(learner, Learner)


def test_minibatches_are_half_private_and_half_pseudo_labelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    composition: list[list[int]] = []
    real = torch.nn.functional.cross_entropy

    def recorded(logits: Any, labels: Any) -> Any:
        composition.append(torch.bincount(labels, minlength=2).tolist())
        return real(logits, labels)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", recorded)
    private = clusters(np.zeros(17, dtype=np.int64), 1, (30,))
    pseudo = clusters(np.ones(200, dtype=np.int64), 2, (30,))
    nothing = Labelled(np.empty((0, 30)), np.empty(0, dtype=np.int64))
    learner = small("torch_mlp", 2)

    learner.advance(private, None, steps=3, seed=0)
    learner.advance(private, pseudo, steps=5, seed=1)
    learner.advance(private, nothing, steps=2, seed=2)

    assert composition == [[64, 0]] * 3 + [[64, 64]] * 5 + [[64, 0]] * 2


def test_a_class_known_only_from_the_consensus_is_learned() -> None:
    private = clusters(np.resize(np.array([0, 1]), 17), 1, (30,))
    pseudo = clusters(np.resize(np.array([0, 1, 2]), 90), 2, (30,))
    unseen = clusters(np.full(30, 2), 3, (30,))
    learner = small("torch_mlp", 3)
    learner.advance(private, None, steps=30, seed=0)
    assert not (learner.predict(unseen.features) == 2).any()
    learner.advance(private, pseudo, steps=60, seed=1)
    assert (learner.predict(unseen.features) == 2).all()


@pytest.mark.parametrize("name", SHAPES)
def test_a_restarted_trainer_continues_exactly_where_it_stopped(name: str) -> None:
    data = clusters(np.resize(np.arange(4), 40), 1, SHAPES[name])
    pseudo = clusters(np.resize(np.arange(4), 80), 2, SHAPES[name])
    steady = small(name, 4)
    steady.advance(data, None, steps=7, seed=0)
    restarted = pickle.loads(pickle.dumps(steady))
    for learner in (steady, restarted):
        learner.advance(data, pseudo, steps=7, seed=1)

    # The optimiser's moments count as state: without them the weights would differ.
    for ours, theirs in zip(
        steady._network.parameters(), restarted._network.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", SHAPES)
def test_a_trained_learner_survives_joblib(name: str) -> None:
    data = clusters(np.resize(np.arange(4), 40), 1, SHAPES[name])
    learner = small(name, 4).fit(data.features, data.labels)
    file = io.BytesIO()
    joblib.dump(learner, file)
    file.seek(0)
    public = clusters(np.resize(np.arange(4), 300), 2, SHAPES[name]).features
    np.testing.assert_array_equal(joblib.load(file).predict(public), learner.predict(public))


def test_seeds_decide_weights_and_draws() -> None:
    data = clusters(np.resize(np.arange(3), 40), 1, (30,))

    def weights(seed: int, draw: int) -> Any:
        learner = small("torch_mlp", 3, seed=seed)
        learner.advance(data, None, steps=3, seed=draw)
        return torch.nn.utils.parameters_to_vector(learner._network.parameters())

    reference = weights(1, 1)
    assert torch.equal(weights(1, 1), reference)
    assert not torch.equal(weights(2, 1), reference)
    assert not torch.equal(weights(1, 2), reference)


def test_fit_starts_anew_and_advance_does_not() -> None:
    data = clusters(np.resize(np.arange(3), 40), 1, (30,))
    used = small("torch_mlp", 3)
    used.advance(clusters(np.resize(np.arange(3), 40), 5, (30,)), None, steps=10, seed=0)
    used.fit(data.features, data.labels)
    fresh = small("torch_mlp", 3).fit(data.features, data.labels)
    for ours, theirs in zip(used._network.parameters(), fresh._network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_torchs_global_randomness_and_threads_are_left_alone() -> None:
    before = torch.random.get_rng_state()
    data = clusters(np.resize(np.arange(3), 40), 1, (30,))
    small("torch_mlp", 3).fit(data.features, data.labels)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == 2


def test_features_are_standardised_inside_unless_told_otherwise() -> None:
    data = clusters(np.resize(np.arange(3), 60), 1, (30,))
    # The classes show only in columns a millionth as wide as the first; the second is constant.
    stretched = data.features * 1e-3
    stretched[:, 0] = np.random.default_rng(0).normal(scale=1e3, size=60)
    stretched[:, 1] = 7.0
    standardised = small("torch_mlp", 3).fit(stretched, data.labels).predict(stretched)
    raw = small("torch_mlp", 3, standardise=False).fit(stretched, data.labels).predict(stretched)
    np.testing.assert_array_equal(standardised, data.labels)
    assert np.mean(raw == data.labels) < 0.7


def test_the_default_perceptron_is_the_papers() -> None:
    network = perceptron((28, 28), (512, 512), 10)
    assert sum(parameter.numel() for parameter in network.parameters()) == 669_706


@pytest.mark.parametrize("shape", [(8, 8), (7, 5), (28, 28, 1), (9, 4, 3), (1, 1)])
def test_convolutions_take_grey_and_coloured_images_of_any_size(shape: tuple[int, ...]) -> None:
    data = clusters(np.resize(np.arange(2), 20), 1, shape)
    spec = LearnerSpec(name="torch_cnn", parameters=SMALL["torch_cnn"])
    learner: Any = build(spec, 2, shape, 0)
    assert (
        np.mean(learner.fit(data.features, data.labels).predict(data.features) == data.labels) > 0.9
    )


def test_convolutions_refuse_tables() -> None:
    with pytest.raises(ConfigurationError, match="these rows are 30") as caught:
        build(LearnerSpec(name="torch_cnn"), 2, (30,), 0)
    assert "torch_mlp" in caught.value.hint


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"learning_rat": 1}, "no parameter learning_rat"),
        ({"learning_rate": -1}, "learning_rate of learner torch_mlp"),
        ({"hidden": [64, 0]}, r"hidden\.1 of learner torch_mlp"),
        ({"seed": 1}, "takes no parameter seed"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        build(LearnerSpec(name="torch_mlp", parameters=parameters), 2, (3,), 0)


def test_a_wanted_gpu_that_is_absent_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="no GPU"):
        small("torch_mlp", 2, device="cuda")


def test_labels_outside_the_label_space_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        small("torch_mlp", 2).advance(clusters(np.array([0, 2]), 1, (30,)), None, 1, 0)
    empty = Labelled(np.empty((0, 30)), np.empty(0, dtype=np.int64))
    with pytest.raises(ValueError, match="at least one private row"):
        small("torch_mlp", 2).advance(empty, None, 1, 0)
