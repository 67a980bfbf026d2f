"""A patient's place (shard, fold, seat in a batch) depends on that patient alone: nobody else's coming or going moves it."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seeded_bits import SeededBits

from silo_agent.trainer.data.private_data import DataSettings, PrivateData, load_private
from silo_agent.trainer.data.unit_keys import patient_marks, row_marks, unit_keys
from silo_agent.trainer.methods import final_fit
from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.methods.cross_fitting import folds_of
from silo_agent.trainer.methods.fedkt import draw_shards
from silo_agent.trainer.models.places import places
from silo_agent.trainer.models.protocol import Labelled
from silo_agent.trainer.models.teachers import round_robin
from silo_agent.trainer.privacy.labellers.one_row import one_row_each
from silo_agent.trainer.privacy.mechanisms import teacher_votes
from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.mechanisms.teacher_plan import TeacherPlan
from wire.ballot import BallotShape, Encoding
from wire.privacy.declaration import Unit

PATIENTS = [f"p{number:03d}" for number in range(120) for _ in range(1 + number % 3)]
HEADER = "pid,age,ward,y\n"


def lines(patients: list[str]) -> list[str]:
    return [
        f"{name},{20 + index % 50},{'ab'[index % 2]},{index % 2}\n"
        for index, name in enumerate(patients)
    ]


def read(folder: Path, rows: list[str], header: str = HEADER, **settings: Any) -> PrivateData:
    folder.mkdir(exist_ok=True)
    (folder / "d.csv").write_text(header + "".join(rows))
    given = {"path": "d.csv", "label": "y", **settings}
    return load_private(DataSettings.model_validate(given), folder)


def by_line(private: PrivateData, rows: list[str]) -> dict[str, int]:
    return dict(zip(rows, unit_keys(private).tolist(), strict=True))


@pytest.mark.parametrize("settings", [{"patient_id": "pid"}, {"drop": ("pid",)}], ids=str)
def test_removing_a_patient_or_moving_rows_leaves_every_other_number_as_it_was(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    rows = lines(PATIENTS)
    if "drop" in settings:
        rows = list(dict.fromkeys(f"x{line[4:]}" for line in rows))
    before = by_line(read(tmp_path, rows, **settings), rows)
    for kept in (rows[::-1], rows[3:], rows[:40] + rows[44:], [rows[-1], *rows[:-1]]):
        after = by_line(read(tmp_path, kept, **settings), kept)
        assert after.items() <= before.items()
        assert len(after) == len(kept)


def test_rows_of_one_patient_have_one_number_and_patients_different_ones(tmp_path: Path) -> None:
    keys = unit_keys(read(tmp_path, lines(PATIENTS), patient_id="pid"))
    assert len(np.unique(keys)) == 120
    assert len({*zip(PATIENTS, keys.tolist(), strict=True)}) == 120
    assert keys.min() >= 0


def test_without_ids_equal_rows_are_units_of_their_own_in_any_order(tmp_path: Path) -> None:
    rows = ["p,30,a,0\n"] * 5 + ["p,31,a,0\n"] * 2
    keys = unit_keys(read(tmp_path, rows, drop=("pid",)))
    assert len(np.unique(keys)) == 7
    moved = unit_keys(read(tmp_path, rows[::-1], drop=("pid",)))
    assert {*moved.tolist()} == {*keys.tolist()}
    fewer = unit_keys(read(tmp_path, rows[1:], drop=("pid",)))
    assert {*fewer.tolist()} < {*keys.tolist()}


def test_rows_without_an_id_are_one_unit_together(tmp_path: Path) -> None:
    keys = unit_keys(read(tmp_path, ["a,30,a,0\n", ",30,a,0\n", ",31,b,1\n"], patient_id="pid"))
    assert keys[0] != keys[1] == keys[2]


def test_what_stands_in_a_row_is_recognised_whatever_the_columns_order_and_the_format(
    tmp_path: Path,
) -> None:
    plain = read(tmp_path / "a", ["p,30,a,0\n", "q,31,b,1\n"], drop=("pid",))
    columns = {"ward": ["a"], "y": [0], "age": [30.0], "pid": ["p"]}
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    settings = DataSettings(path=Path("d.parquet"), label="y", drop=("pid",))
    turned = load_private(settings, tmp_path)
    assert row_marks(plain)[0] == row_marks(turned)[0]
    assert row_marks(plain)[0] != row_marks(plain)[1]
    assert patient_marks(plain) is None


def test_rows_of_arrays_have_numbers_by_their_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    features, labels = generator.random((20, 3, 5), dtype=np.float32), np.arange(20) % 2
    order = generator.permutation(20)
    keys = []
    for name, chosen in (("a", np.arange(20)), ("b", order)):
        np.savez(tmp_path / f"{name}.npz", x=features[chosen], y=labels[chosen])
        settings = DataSettings(path=Path(f"{name}.npz"), label="y")
        keys.append(unit_keys(load_private(settings, tmp_path)))
    assert np.array_equal(keys[0][order], keys[1])
    assert len(np.unique(keys[0])) == 20


@pytest.mark.parametrize("groups", [2, 5, 25])
def test_groups_are_about_equal_and_another_key_deals_anew(groups: int) -> None:
    patients = np.random.default_rng(0).integers(0, 2**63 - 1, 5000)
    one, other = (places(patients, groups, key) for key in ("one", "other"))
    expected = 5000 / groups
    assert np.abs(np.bincount(one, minlength=groups) - expected).max() < 5 * np.sqrt(expected)
    assert np.mean(one == other) == pytest.approx(1 / groups, abs=0.04)


def test_teachers_and_folds_of_others_stay_when_one_patient_goes() -> None:
    patients = np.random.default_rng(0).integers(0, 2**63 - 1, 300)
    order = np.random.default_rng(1).permutation(300)
    for kept in (order, order[1:], np.arange(1, 300), np.arange(299)):
        for partition in range(3):
            everyone = draw_shards(patients, 5, 0, partition)
            assert np.array_equal(draw_shards(patients[kept], 5, 0, partition), everyone[kept])


def test_validation_at_home_leaves_others_in_their_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    folds: list[dict[int, int]] = []
    real = places

    def noted(patients: np.ndarray, groups: int, key: str) -> np.ndarray:
        found = real(patients, groups, key)
        folds.append(dict(zip(patients.tolist(), found.tolist(), strict=True)))
        return found

    class Constant:
        def fit(self, rows: np.ndarray, labels: np.ndarray) -> None:
            pass

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.zeros(len(rows), dtype=np.int64)

    monkeypatch.setattr(final_fit, "places", noted)
    patients = np.random.default_rng(0).integers(0, 2**63 - 1, 150)
    for kept in (np.arange(150), np.random.default_rng(1).permutation(150)[1:]):
        private = Labelled(np.zeros((len(kept), 1)), np.zeros(len(kept), dtype=np.int64))
        training = CoTraining(private, np.zeros((4, 1)), lambda _: Constant(), 1, 0)
        final_fit.best_share(training, patients[kept], 1, np.zeros(4, dtype=np.int64))
    assert folds[-1].items() < folds[0].items()


def test_folds_of_public_rows_know_nothing_of_patients() -> None:
    assert np.array_equal(folds_of(50, 3, "task/silo/0"), folds_of(50, 3, "task/silo/0"))


@pytest.mark.parametrize("teachers", [2, 3])
def test_in_a_secret_deal_who_comes_is_as_likely_as_who_went_in_every_shard_beside_the_same_others(
    teachers: int,
) -> None:
    """Over all n! deals, wherever the newcomer's number is sorted in: so one teacher changes, never two."""
    laws = []
    for rank in range(5):
        law: Counter[tuple[int, ...]] = Counter()
        for order in permutations(range(5)):
            shards = round_robin(np.array(order), teachers)
            law[(*np.delete(shards, rank).tolist(), int(shards[rank]))] += 1
        laws.append(law)
    assert all(law == laws[0] for law in laws)


def test_secret_deals_and_draws_do_not_depend_on_the_order_of_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same bits give each patient the same shard and row, however the rows are ordered."""
    patients = np.random.default_rng(0).integers(0, 2**63 - 1, 40).repeat(2)
    order = np.random.default_rng(1).permutation(80)
    dealt = []

    class Noting:
        known = None
        classes = 2
        public = np.zeros((3, 1))

        def __init__(self, patients: np.ndarray) -> None:
            self.patients = patients

    def noted(silo: Noting, shards: np.ndarray, *_: object) -> np.ndarray:
        dealt.append(dict(zip(silo.patients.tolist(), shards.tolist(), strict=True)))
        raise InterruptedError

    monkeypatch.setattr(teacher_votes, "histogram", noted)
    plan = TeacherPlan("gaussian", 4, 3, 3, 1.0)
    scope = Scope(BallotShape(3, 2, Encoding.INDEX), 1, 1.0, 1e-5, Unit.PATIENT, units=40)
    for kept in (np.arange(80), order):
        with pytest.raises(InterruptedError):
            teacher_votes.teacher_answers(
                Noting(patients[kept]),  # type: ignore[arg-type]
                plan,
                scope,
                0,
                SeededBits(3),
            )
    assert dealt[0] == dealt[1]
    drawn = [
        one_row_each(patients[kept], scope.units, SeededBits(2))[0]
        for kept in (np.arange(80), order)
    ]
    assert np.array_equal(patients[drawn[0]], patients[order][drawn[1]])
