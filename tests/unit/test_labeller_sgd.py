"""DP-SGD: no patient moves a sum by more than is accounted for, and nothing but the bits makes the noise."""

from __future__ import annotations

import pickle

import numpy as np
import numpy.typing as npt
import pytest
from seeded_bits import SeededBits
from sklearn.datasets import load_breast_cancer

from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.privacy.labellers.one_row import NO_ROW, one_row_each
from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.settings import PrivateLabellerSettings
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit
from wire.privacy.events import Gaussian, SampledGaussian
from wire.privacy.randomness import SecureBits

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
from silo_agent.trainer.privacy.labellers import sgd  # noqa: E402
from silo_agent.trainer.privacy.labellers.sgd import (  # noqa: E402
    GRAINS,
    PLACES,
    ClippedGradients,
    SgdTrainer,
)

pytestmark = pytest.mark.slow

DELTA = 1e-5
Integers = npt.NDArray[np.int64]


def trainer(budget: float | None, units: int = 300, steps: int | None = None) -> SgdTrainer:
    shape = BallotShape(50, 2, Encoding.INDEX)
    scope = Scope(shape, 3, budget, DELTA, Unit.PATIENT, units)
    return SgdTrainer.for_scope(PrivateLabellerSettings(head="sgd", steps=steps), scope)


def table(rows: int, classes: int = 2, seed: int = 0) -> Labelled:
    """Three columns; the class can be read from the first."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 3))
    labels = np.clip(np.floor((features[:, 0] + 2) / 4 * classes), 0, classes - 1)
    return Labelled(features, labels.astype(np.int64))


class Sums:
    """Noiseless sums of a network at one point, as a step makes them."""

    def __init__(self, row_shape: tuple[int, ...] = (3,)) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self._gradients = ClippedGradients(sgd._network(row_shape, 2))

    def __call__(
        self, data: Labelled, chosen: Integers, present: npt.NDArray[np.bool_]
    ) -> Integers:
        rows = torch.from_numpy(data.features.astype(np.float32))
        labels, seats = torch.from_numpy(data.labels), np.arange(len(chosen)) % PLACES
        return self._gradients.total(rows, labels, chosen, present, seats)


def square(grains: Integers) -> int:
    """Exact, in Python's integers."""
    return sum(int(grain) ** 2 for grain in grains)


@pytest.mark.parametrize(("budget", "units"), [(0.5, 300), (8.0, 300), (1.0, 30_000)])
def test_training_costs_the_budget_and_hardly_less(budget: float, units: int) -> None:
    made = trainer(budget, units)
    assert 0.95 * budget < epsilon(made.events, DELTA) <= budget
    (event,) = made.events
    assert isinstance(event, SampledGaussian if units > sgd.EXPECTED else Gaussian)


def test_without_a_budget_it_refuses_in_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="sets none"):
        trainer(None)


def test_every_step_with_all_patients_costs_what_sampling_at_rate_one_does() -> None:
    whole = sgd._events(1.0, 40, 30.0)
    sampled = (SampledGaussian(rate=1.0, clip=1.0, scale=30.0, steps=40),)
    assert epsilon(whole, DELTA) == pytest.approx(epsilon(sampled, DELTA), rel=1e-3)


def test_opposite_contributions_are_the_worst_a_replaced_patient_can_do() -> None:
    """By integration in the plane: the excess of one step over α times its neighbour, for many u and v."""
    rate, spread = 0.3, 0.8
    axis = np.linspace(-6, 6, 241)
    plane = np.stack(np.meshgrid(axis, axis), axis=-1)

    def step(contribution: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        def normal(centre: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            density: npt.NDArray[np.float64] = np.exp(
                -((plane - centre) ** 2).sum(axis=-1) / (2 * spread**2)
            )
            density /= density.sum()
            return density

        return (1 - rate) * normal(np.zeros(2)) + rate * normal(contribution)

    e = np.array([1.0, 0.0])
    worst_one, worst_other = step(-e), step(e)
    angles = np.linspace(0, np.pi, 7)
    others = [r * np.array([np.cos(a), np.sin(a)]) for r in (0.0, 0.6, 1.0) for a in angles]
    for u in (0.0 * e, 0.5 * e, e):
        for v in others:
            one, other = step(u), step(v)
            for alpha in (0.3, 0.8, 1.0, 1.2, 2.0, 5.0):
                excess = np.maximum(one - alpha * other, 0).sum()
                most = np.maximum(worst_one - alpha * worst_other, 0).sum()
                assert excess <= most + 1e-9


def test_replacing_all_rows_of_a_patient_moves_a_sum_by_twice_the_norm_at_most() -> None:
    data, sums = table(200), Sums()
    patients = np.arange(200) % 70
    everyone = np.ones(70, dtype=np.bool_)
    chosen = one_row_each(patients, len(np.unique(patients)), SeededBits(1))[0]
    before = sums(data, chosen, everyone)
    largest = 0
    for extreme, label in ((1e4, 0), (-1e4, 1), (1e30, 1), (np.nan, 0), (np.inf, 1)):
        features, labels = data.features.copy(), data.labels.copy()
        features[patients == 11] = extreme
        labels[patients == 11] = label
        moved = square(sums(Labelled(features, labels), chosen, everyone) - before)
        assert moved <= (2 * GRAINS) ** 2
        largest = max(largest, moved)
    assert largest > GRAINS**2 / 4


def test_a_patients_contribution_is_the_same_to_the_last_grain_whoever_else_is_there() -> None:
    data, sums = table(150), Sums()
    chosen = np.arange(150)
    one = np.eye(150, dtype=np.bool_)
    alone = np.stack([sums(data, chosen, one[unit]) for unit in range(150)])
    assert max(square(grains) for grains in alone) <= GRAINS**2
    for seed in range(3):
        present = np.random.default_rng(seed).random(150) < 0.4
        assert np.array_equal(sums(data, chosen, present), alone[present].sum(axis=0))


def test_a_patient_always_has_the_same_place_in_a_batch_of_one_size() -> None:
    present = np.random.default_rng(0).random(500) < 0.3
    seats = np.random.default_rng(1).integers(0, PLACES, 500)
    batches = sgd._batches(present, seats)
    assert batches.shape[1] == PLACES
    places = np.nonzero(batches >= 0)[1]
    units = batches[batches >= 0]
    assert np.array_equal(places, seats[units])
    assert np.array_equal(np.sort(units), np.flatnonzero(present))
    assert len(sgd._batches(np.zeros(500, dtype=np.bool_), seats)) == 0


def test_training_seats_a_patient_by_number_wherever_the_file_has_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, patients = table(90), np.random.default_rng(0).integers(0, 2**62, 90)
    seen: list[dict[int, int]] = []

    def noted(
        _: object, rows: object, labels: object, chosen: Integers, *rest: Integers
    ) -> Integers:
        there = chosen[chosen != NO_ROW]
        seen[-1].update(zip(current[there].tolist(), rest[1].tolist(), strict=True))
        raise InterruptedError

    monkeypatch.setattr(ClippedGradients, "total", noted)
    order = np.random.default_rng(1).permutation(90)
    for kept in (np.arange(90), order, order[1:], order[45:]):
        seen.append({})
        current = patients[kept]
        with pytest.raises(InterruptedError):
            trainer(4.0, 90, 1).train(data[kept], current, data.features, 2, SeededBits(1))
    everyone = seen[0]
    assert len(everyone) == 90
    assert all(seats.items() <= everyone.items() for seats in seen)
    assert [len(seats) for seats in seen] == [90, 90, 89, 45]


def test_gradients_are_clipped_to_norm_one_and_cut_towards_zero() -> None:
    rows = torch.tensor([[3.0, -4.0], [0.3, -0.4], [np.nan, 1.0], [np.inf, 1.0], [1.5 / GRAINS, 0]])
    grains = sgd._on_grid(rows).numpy()
    assert np.abs(grains[0] - np.array([0.6, -0.8]) * GRAINS).max() < 1
    assert np.abs(grains[1] - np.array([0.3, -0.4]) * GRAINS).max() < 1
    assert (grains[2:4] == 0).all()
    assert grains[4, 0] == 1
    generator = np.random.default_rng(0)
    many = torch.from_numpy(
        generator.normal(size=(200, 50)) * 10 ** generator.uniform(-3, 8, (200, 1))
    )
    assert max(square(row) for row in sgd._on_grid(many.float()).numpy()) <= GRAINS**2


def test_a_draw_takes_a_row_of_each_patient_and_looks_at_no_other() -> None:
    patients = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 3])
    drawn = one_row_each(patients, len(np.unique(patients)), SeededBits(4), times=200)
    assert drawn.shape == (200, 4)
    assert (patients[drawn] == np.arange(4)).all()
    assert set(drawn[:, 0]) == {0, 1, 2}
    assert set(drawn[:, 3]) == {6, 7, 8, 9}
    # Patient 2 is exchanged for one with five rows, at the end of the file.
    other = np.array([0, 0, 0, 1, 3, 3, 3, 3, 2, 2, 2, 2, 2])
    again = one_row_each(other, len(np.unique(other)), SeededBits(4), times=200)
    assert np.array_equal(again[:, :2], drawn[:, :2])
    assert np.array_equal(again[:, 3] + 2, drawn[:, 3])


def test_the_same_bits_train_the_same_head_and_torch_has_no_say() -> None:
    data = table(80)
    heads = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        heads.append(
            trainer(4.0, 80, 5).train(data, np.arange(80), data.features, 2, SeededBits(2))
        )
        assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(heads[0].weights, heads[1].weights)
    secure = [
        trainer(4.0, 80, 5).train(data, np.arange(80), data.features, 2, SecureBits())
        for _ in range(2)
    ]
    assert not np.array_equal(secure[0].weights, secure[1].weights)


def test_a_step_adds_noise_of_the_scale_that_is_accounted_for_even_if_no_patient_is_in_it() -> None:
    generator = np.random.default_rng(0)
    data = Labelled(generator.normal(size=(40, 100)), np.zeros(40, dtype=np.int64))
    rare = SgdTrainer(units=40, rate=1e-12, steps=1, scale=7.0)
    head = rare.train(data, np.arange(40), data.features, 2, SeededBits(0))
    # Divided by next to nobody, the noise is all there is in the weights.
    step = rare.learning_rate * (1 - sgd.MOMENTUM) / (rare.rate * rare.units)
    assert len(head.weights) > 1000
    assert np.std(head.weights.astype(np.float64) / step) == pytest.approx(7.0, rel=0.1)


def test_absent_classes_have_a_probability_and_heads_travel() -> None:
    data = table(60, classes=3)
    data = Labelled(data.features, np.minimum(data.labels, 1))
    head = trainer(8.0, 60, 5).train(data, np.arange(60), data.features, 3, SeededBits(0))
    likely = head.probabilities(data.features)
    assert likely.shape == (60, 3)
    assert np.allclose(likely.sum(axis=1), 1)
    assert (likely > 0).all()
    again = pickle.loads(pickle.dumps(head))
    assert np.array_equal(again.probabilities(data.features), likely)


@pytest.mark.parametrize("row_shape", [(16, 16), (16, 18, 3), (4, 4)])
def test_images_are_learned_from_as_they_are(row_shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    images = generator.random((40, *row_shape)).astype(np.float32)
    labels = (np.arange(40) % 2).astype(np.int64)
    head = trainer(8.0, 40, 2).train(
        Labelled(images, labels), np.arange(40), images, 2, SeededBits(0)
    )
    assert head.probabilities(images).shape == (40, 2)


def test_the_input_scale_knows_the_public_set_alone() -> None:
    public = table(100, seed=5).features
    public[:, 2] = 7.0
    scale = sgd.PublicScale.of(public)
    assert np.allclose(scale(public)[:, :2].std(axis=0), 1, atol=0.1)
    far = scale(np.array([[1e9, np.nan, 8.0]]))
    assert far[0, 0] == sgd.FARTHEST
    assert far[0, 2] == 0
    assert np.isfinite(far).all()


def test_breast_cancer_is_learned_at_epsilon_4() -> None:
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    private, public, test = np.split(order, [300, 440])
    head = trainer(4.0).train(
        Labelled(features[private], labels[private]),
        np.arange(300),
        features[public],
        2,
        SeededBits(0),
    )
    accuracy = (head.probabilities(features[test]).argmax(axis=1) == labels[test]).mean()
    assert accuracy > 0.88
