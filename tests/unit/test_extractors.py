"""Extractors: learned from public rows alone, the same every time, and a place where networks may start."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.decomposition import PCA, TruncatedSVD

torch = pytest.importorskip("torch")

from silo_agent.trainer.models.extractors import StoredExtractor, load  # noqa: E402
from silo_agent.trainer.models.extractors import contrastive as contrastive_training  # noqa: E402
from silo_agent.trainer.models.extractors import denoising as denoising_training  # noqa: E402
from silo_agent.trainer.models.extractors.contrastive import widths_for  # noqa: E402
from silo_agent.trainer.models.protocol import Labelled, Problem  # noqa: E402
from silo_agent.trainer.models.torch_nets import torch_cnn, torch_mlp  # noqa: E402
from silo_agent.trainer.pretraining import pretraining  # noqa: E402
from silo_agent.trainer.pretraining.pretraining import Progress, pretrain, train  # noqa: E402
from wire.errors import EXTRACTOR_INVALID, ConfigurationError, Refusal  # noqa: E402
from wire.extractor_file import ExtractorFile, ExtractorKind, write_extractor  # noqa: E402
from wire.public_content import write_array, write_table  # noqa: E402
from wire.runtime.files import digest_of  # noqa: E402

pytestmark = pytest.mark.slow

PCA_, DENOISING = ExtractorKind.PCA, ExtractorKind.DENOISING
TFIDF_SVD, CONTRASTIVE = ExtractorKind.TFIDF_SVD, ExtractorKind.CONTRASTIVE
SET = "cd" * 32


def table(rows: int = 300, seed: int = 0) -> Any:
    """Twelve columns made of three hidden ones, as different in scale as columns are."""
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(rows, 3))
    mixing = np.random.default_rng(77).normal(size=(3, 12))
    return (hidden @ mixing + 0.1 * draw.normal(size=(rows, 12))) * np.logspace(-3, 4, 12) + 5.0


def images(rows: int = 64, seed: int = 0) -> Any:
    """Sixteen fields of some brightness, 12 × 12."""
    fields = np.random.default_rng(seed).random((rows, 4, 4))
    return np.kron(fields, np.ones((3, 3))).astype(np.float32)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Convolutions of few channels on one core: the tests run beside others."""
    monkeypatch.setattr(contrastive_training, "widths_for", lambda row_shape: (4, 8))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(kind: ExtractorKind, **settings: Any) -> StoredExtractor:
    rows = {
        PCA_: lambda: table(),
        DENOISING: lambda: table(),
        TFIDF_SVD: lambda: np.random.default_rng(0).random((200, 30)).astype(np.float32) ** 4,
        CONTRASTIVE: lambda: images(),
    }[kind]()
    if kind in (DENOISING, CONTRASTIVE):
        settings = {"steps": 15, "dimensions": 16, **settings}
    return train(rows, kind, public_set=SET, **settings)


class Losses(Progress):
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, float]] = []

    def step(self, done: int, steps: int, loss: float) -> None:
        self.seen.append((done, steps, loss))


def rows_for(extractor: StoredExtractor, rows: int = 50, seed: int = 9) -> Any:
    shape = (rows, *extractor.file.header.row_shape)
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("kind", ExtractorKind)
def test_every_kind_keeps_the_promises(kind: ExtractorKind, tmp_path: Path) -> None:
    write_extractor(trained(kind).file, tmp_path / "first")
    torch.rand(3)  # What else is drawn in the process changes nothing.
    write_extractor(trained(kind).file, tmp_path / "second")
    assert digest_of(tmp_path / "first") == digest_of(tmp_path / "second")

    extractor = load(tmp_path / "first")
    assert extractor.file.header.public_set == SET
    rows = rows_for(extractor, 7)
    vectors = extractor.transform(rows)
    assert vectors.dtype == np.float32
    assert vectors.shape == (7, extractor.dimensions)
    assert extractor.transform(rows[:0]).shape == (0, extractor.dimensions)
    alone = np.concatenate([extractor.transform(rows[i : i + 1]) for i in reversed(range(7))])
    np.testing.assert_array_equal(alone[::-1], vectors)
    kept = pickle.loads(pickle.dumps(extractor))
    np.testing.assert_array_equal(kept.transform(rows), vectors)


@pytest.mark.parametrize("kind", ExtractorKind)
def test_the_public_norm_is_that_of_the_farthest_public_row(kind: ExtractorKind) -> None:
    public = images() if kind is CONTRASTIVE else np.abs(table())
    settings = {"steps": 3} if kind in (DENOISING, CONTRASTIVE) else {}
    extractor = train(public, kind, public_set=SET, **settings)
    norms = np.linalg.norm(extractor.transform(public).astype(np.float64), axis=1)
    assert extractor.public_norm == norms.max()
    assert norms.max() > norms.mean() > 0


@pytest.mark.parametrize("kind", ExtractorKind)
def test_no_row_and_no_weight_makes_a_vector_without_a_norm(kind: ExtractorKind) -> None:
    extractor = trained(kind)
    rows = rows_for(extractor, 3)
    rows[0] *= 1e30
    rows[1] = -1e38
    hostile = {
        name: np.full_like(array, 3e38) if name.startswith(("weight", "comp")) else array
        for name, array in extractor.file.arrays.items()
    }
    armed = StoredExtractor(ExtractorFile(extractor.file.header, hostile))
    for made in (extractor.transform(rows), armed.transform(rows)):
        assert np.isfinite(np.linalg.norm(made, axis=1)).all()


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(Refusal, match=r"\(12,\)") as refusal:
        trained(PCA_).transform(np.zeros((4, 11)))
    assert refusal.value.is_a(EXTRACTOR_INVALID)


@pytest.mark.parametrize("rows", [300, 9], ids=["tall", "wide"])
def test_pca_finds_the_principal_components_of_standardised_rows(rows: int) -> None:
    public = table(rows)
    extractor = train(public, PCA_, public_set=SET, dimensions=3)
    scaled = (public - public.mean(axis=0)) / public.std(axis=0)
    reference = PCA(3, svd_solver="full").fit(scaled)
    private = table(40, seed=5)
    expected = reference.transform((private - public.mean(axis=0)) / public.std(axis=0))
    # scikit-learn may give a component the opposite sign; ours has its largest entry positive.
    expected *= np.sign(reference.components_[range(3), np.abs(reference.components_).argmax(1)])
    np.testing.assert_allclose(extractor.transform(private), expected, rtol=1e-4, atol=1e-4)


def test_an_odd_cell_counts_for_ten_deviations_at_most() -> None:
    public = table()
    far, farther = public[:2].copy(), public[:2].copy()
    far[:, 4] = public[:, 4].mean() + 10 * public[:, 4].std()
    farther[:, 4] = 1e9
    extractor = train(public, PCA_, public_set=SET)
    np.testing.assert_allclose(extractor.transform(far), extractor.transform(farther), rtol=1e-5)
    assert not np.allclose(extractor.transform(far), extractor.transform(public[:2]), rtol=1e-2)


def test_large_and_constant_columns_do_not_drown_the_others() -> None:
    plain = table()
    shifted = np.column_stack([plain + np.eye(12)[0] * 1e6, np.full(len(plain), 1e9 + 0.1)])
    ours = train(shifted, PCA_, public_set=SET, dimensions=3).transform(shifted)
    expected = train(plain, PCA_, public_set=SET, dimensions=3).transform(plain)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_there_are_no_more_dimensions_than_the_rows_have() -> None:
    draw = np.random.default_rng(0)
    flat = draw.normal(size=(100, 2)) @ draw.normal(size=(2, 9))
    assert train(flat, PCA_, public_set=SET).dimensions == 2
    with pytest.raises(ConfigurationError, match="2 directions only") as caught:
        train(flat, PCA_, public_set=SET, dimensions=3)
    assert "at most 2" in caught.value.hint
    with pytest.raises(ConfigurationError, match="all alike"):
        train(np.ones((10, 4)), PCA_, public_set=SET)


def test_a_set_too_large_for_a_matrix_is_sampled_by_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pretraining, "_MOST_NUMBERS", 12 * 100)
    public = table()
    whole, again, other = (
        train(public, PCA_, public_set=SET, seed=seed).file.arrays["mean"] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(whole, again)
    assert not np.allclose(whole, other)
    drawn = [tuple(row) for row in pretraining._sample(public, 0)]
    assert len(set(drawn)) == 100
    assert set(drawn) < {tuple(row) for row in public}


def test_tfidf_svd_is_latent_semantic_analysis() -> None:
    words = np.random.default_rng(0).random((200, 30)) ** 4
    ours = train(words, TFIDF_SVD, public_set=SET, dimensions=5).transform(words)
    theirs = TruncatedSVD(5, algorithm="arpack", random_state=0).fit_transform(words)
    signs = np.sign((ours * theirs).sum(axis=0))
    np.testing.assert_allclose(ours, theirs * signs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("kind", "share"), [(DENOISING, 0.8), (CONTRASTIVE, 0.9)])
def test_networks_learn_step_by_step_and_by_their_seed(kind: ExtractorKind, share: float) -> None:
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    losses = Losses()
    extractor = trained(kind, steps=60, progress=losses)
    assert [step[:2] for step in losses.seen] == [(done, 60) for done in range(1, 61)]
    first, last = (
        np.mean([step[2] for step in part]) for part in (losses.seen[:5], losses.seen[-5:])
    )
    assert last < share * first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    rows = rows_for(extractor)
    other = trained(kind, steps=60, seed=1).transform(rows)
    assert not np.allclose(extractor.transform(rows), other)


def test_a_fifth_of_the_cells_are_another_rows() -> None:
    rows, others = torch.zeros(400, 50), torch.arange(50.0).repeat(400, 1) + 1
    noisy = denoising_training.swapped(rows, others, torch.Generator().manual_seed(0))
    taken = noisy != 0
    assert torch.equal(noisy, torch.where(taken, others, rows))
    assert 0.18 < float(taken.float().mean()) < 0.22
    assert float(taken.float().mean(dim=0).min()) > 0.1


def test_denoising_sees_only_swapped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(rows: Any, others: Any, draw: Any) -> Any:
        assert not torch.equal(rows, others)
        return torch.zeros_like(rows)

    monkeypatch.setattr(denoising_training, "swapped", nothing)
    losses = Losses()
    trained(DENOISING, steps=100, progress=losses)
    # Of rows that are all blank nothing can be told but the mean, and what is left is the variance.
    assert np.mean([loss for _, _, loss in losses.seen[-20:]]) > 0.9


def test_every_step_compares_two_views_of_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    altered, compared = contrastive_training.altered, contrastive_training.disagreement
    shown: list[Any] = []
    views: list[Any] = []
    monkeypatch.setattr(
        contrastive_training,
        "altered",
        lambda images, draw: shown.append(images) or altered(images, draw),
    )
    monkeypatch.setattr(
        contrastive_training,
        "disagreement",
        lambda projected: views.append(projected.detach()) or compared(projected),
    )
    trained(CONTRASTIVE, steps=3)
    assert len(shown) == 6
    for first, second in zip(shown[::2], shown[1::2], strict=True):
        assert torch.equal(first, second)
        assert len(torch.unique(first, dim=0)) == 64
    for made in views:
        assert not torch.allclose(made[:64], made[64:])


def test_contrastive_features_know_an_image_by_another_view() -> None:
    draw = torch.Generator().manual_seed(3)
    centre, spread = images().mean(), images().std()
    held_out = torch.as_tensor((images(200, seed=8) - centre) / spread)
    views = [
        contrastive_training.altered(held_out, draw).numpy() * spread + centre for _ in range(2)
    ]

    def recognised(made: StoredExtractor) -> float:
        first, second = (made.transform(view) for view in views)
        units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (first, second)]
        return float(((units[0] @ units[1].T).argmax(axis=1) == np.arange(200)).mean())

    learned = recognised(trained(CONTRASTIVE, steps=300))
    assert learned > recognised(trained(CONTRASTIVE, steps=0)) + 0.08


@pytest.mark.parametrize("shape", [(9, 4), (28, 28, 1), (6, 7, 3), (1, 1)])
def test_views_have_the_images_shape_and_follow_the_draw(shape: tuple[int, ...]) -> None:
    shown = torch.rand((5, *shape), generator=torch.Generator().manual_seed(1))
    shown[1] = shown[0]
    one, again, other = (
        contrastive_training.altered(shown, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert one.shape == shown.shape
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])
    made = train(shown.numpy(), CONTRASTIVE, public_set=SET, steps=2, dimensions=4)
    assert made.transform(shown.numpy()).shape == (5, 4)


def test_disagreement_is_the_cross_entropy_of_finding_the_other_view() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = np.exp(units @ units.T / 0.5)
    np.fill_diagonal(similar, 0)
    partners = [3, 4, 5, 0, 1, 2]
    expected = -np.log(similar[range(6), partners] / similar.sum(axis=1)).mean()
    ours = contrastive_training.disagreement(torch.as_tensor(vectors), 0.5)
    assert float(ours) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "blocks"), [((8, 8), 2), ((28, 28, 1), 2), ((33, 20), 3), ((224, 224, 3), 5)]
)
def test_larger_images_get_more_blocks(shape: tuple[int, ...], blocks: int) -> None:
    assert len(widths_for(shape)) == blocks


STARTERS: dict[ExtractorKind, tuple[Any, str]] = {
    CONTRASTIVE: (torch_cnn, "torch_cnn"),
    DENOISING: (torch_mlp, "torch_mlp"),
}


def problem_for(extractor: StoredExtractor) -> Problem:
    return Problem(3, extractor.file.header.row_shape, 5, extractor.file)


@pytest.mark.parametrize("kind", STARTERS)
def test_a_learner_that_starts_from_an_extractor_sees_what_it_sees(kind: ExtractorKind) -> None:
    extractor = trained(kind)
    parameters = {"start": "extractor", "fit_steps": 10}
    learner = STARTERS[kind][0](parameters, problem_for(extractor))
    rows = images(20, seed=6) if kind is CONTRASTIVE else table(20, seed=6)

    def seen() -> Any:
        with torch.no_grad():
            return learner._network[:-1](learner._scale(torch.as_tensor(rows).float())).numpy()

    np.testing.assert_allclose(seen(), extractor.transform(rows), rtol=1e-3, atol=1e-4)

    data = Labelled(rows, np.resize(np.arange(3), 20))
    learner.advance(data, None, steps=5, seed=0)
    assert not np.allclose(seen(), extractor.transform(rows), rtol=1e-3, atol=1e-4)
    # The scale stays the public one, and the trunk is the extractor's again after a new beginning.
    restarted = pickle.loads(pickle.dumps(learner))
    for each in (learner, restarted):
        each.advance(data, None, steps=5, seed=1)
    for ours, theirs in zip(
        learner._network.parameters(), restarted._network.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    fresh = STARTERS[kind][0](parameters, problem_for(extractor))
    np.testing.assert_array_equal(
        restarted.fit(data.features, data.labels).predict(rows),
        fresh.fit(data.features, data.labels).predict(rows),
    )
    np.testing.assert_allclose(restarted._scale.mean, extractor.file.arrays["mean"], rtol=1e-5)


@pytest.mark.parametrize("kind", STARTERS)
def test_a_learner_starts_at_random_unless_told(kind: ExtractorKind) -> None:
    build, _ = STARTERS[kind]
    problem = problem_for(trained(kind))
    widths: dict[str, object] = {"hidden": 8, "channels": [4]} if kind is CONTRASTIVE else {}
    with_, without = build(widths, problem), build(widths, replace(problem, extractor=None))
    for ours, theirs in zip(
        with_._network.parameters(), without._network.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_start_that_does_not_fit_is_said_so() -> None:
    problem = problem_for(trained(CONTRASTIVE))
    start = {"start": "extractor"}
    with pytest.raises(ConfigurationError, match="the task names none"):
        torch_cnn(start, replace(problem, extractor=None))
    with pytest.raises(ConfigurationError, match="can start from a denoising extractor"):
        torch_mlp(start, problem)
    with pytest.raises(ConfigurationError, match="rows of another shape"):
        torch_cnn(start, replace(problem, row_shape=(12, 11)))
    with pytest.raises(ConfigurationError, match="whose hidden is 16, not 128"):
        torch_cnn({**start, "hidden": 128}, problem)
    with pytest.raises(ConfigurationError, match=r"whose channels is \[4, 8\], not \[8\]"):
        torch_cnn({**start, "channels": [8]}, problem)
    assert torch_cnn({**start, "channels": (4, 8), "hidden": 16}, problem)


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    batch = pa.record_batch(
        {
            "age": pa.array([50.0, None, *range(20, 58)], pa.float64()),
            "sex": pa.array(["f", "m"] * 20).dictionary_encode(),
            "score": pa.array(np.random.default_rng(0).normal(size=40)),
        }
    )
    write_table(batch, tmp_path / "table")
    return tmp_path / "table"


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    notes = [f"cough {'fever' if i % 2 else 'rash'} day {i % 7}" for i in range(40)]
    write_table(pa.record_batch({"note": pa.array(notes, pa.large_string())}), tmp_path / "text")
    return tmp_path / "text"


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    write_array((images(40) * 255).astype(np.uint8), tmp_path / "images")
    return tmp_path / "images"


@pytest.mark.parametrize(
    ("file", "kind", "row_shape"),
    [
        # Age, age missing, two sexes and the score; two words of seven days and three of complaint.
        ("table_file", PCA_, (5,)),
        ("text_file", TFIDF_SVD, (11,)),
        ("image_file", CONTRASTIVE, (12, 12)),
    ],
)
def test_the_kind_of_set_decides_the_kind_of_extractor(
    file: str, kind: ExtractorKind, row_shape: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(file)
    settings = {"steps": 2} if kind is CONTRASTIVE else {}
    header = pretrain(path, **settings).file.header
    assert header.kind is kind
    assert header.public_set == digest_of(path)
    assert header.row_shape == row_shape
    assert header.steps == settings.get("steps", 0)


def test_a_kind_that_does_not_fit_the_set_is_refused(text_file: Path, table_file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"contrastive does not fit .* texts") as caught:
        pretrain(text_file, CONTRASTIVE)
    assert "tfidf_svd" in caught.value.hint
    with pytest.raises(ConfigurationError, match=r"tfidf_svd does not fit .* tables"):
        pretrain(table_file, TFIDF_SVD)
    with pytest.raises(ConfigurationError, match="takes no steps"):
        pretrain(table_file, PCA_, steps=5)


def test_only_networks_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, network = trained(PCA_), trained(DENOISING)
    monkeypatch.setitem(sys.modules, "silo_agent.trainer.models.extractors.networks", None)
    assert plain.transform(table()).shape == (300, plain.dimensions)
    with pytest.raises(ConfigurationError, match="needs torch") as caught:
        network.transform(table())
    assert "consilium[torch]" in caught.value.hint
    with pytest.raises(ConfigurationError, match="kind denoising needs"):
        trained(DENOISING)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "silo_agent.trainer.pretraining", *map(str, arguments)]
    one_core = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=one_core)


def test_a_process_of_its_own_trains_one_and_says_what_it_made(
    table_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    ended = run(table_file, out, "--kind", "denoising", "--dimensions", 6, "--steps", 20)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "digest": digest_of(out),
        "kind": "denoising",
        "dimensions": 6,
        "size_bytes": out.stat().st_size,
    }
    assert "10 of 20 steps" in ended.stderr
    # Another process, the same training: the same bytes.
    again = pretrain(table_file, DENOISING, dimensions=6, steps=20)
    write_extractor(again.file, tmp_path / "again")
    assert digest_of(tmp_path / "again") == digest_of(out)


def test_a_process_that_cannot_train_leaves_nothing(table_file: Path, tmp_path: Path) -> None:
    ended = run(table_file, tmp_path / "made", "--kind", "magic")
    assert ended.returncode == 1
    assert "no extractor of kind magic" in ended.stderr
    assert ended.stdout == ""
    assert not (tmp_path / "made").exists()
