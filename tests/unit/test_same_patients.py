"""The same patients under another name are noticed before anything is released, and share one budget if a person says so."""

from __future__ import annotations

import io
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ledger_scenes import NO_LIMIT, TASK, at_most, ballot, opened

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.backup import Part, back_up_part, restore_part
from silo_agent.trainer.check import TrainerChecks
from silo_agent.trainer.data.private_data import DataSettings, load_private
from silo_agent.trainer.privacy.ledger.patients import Marks, PatientRecord
from silo_agent.trainer.privacy.ledger.release import Kind, Release
from silo_agent.trainer.privacy.ledger.report import examine
from silo_agent.trainer.privacy.ledger.same_patients import Comparison, admit, compare
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.errors import (
    PATIENT_RECORD_LOST,
    PATIENT_RECORD_UNUSABLE,
    PATIENTS_CHARGED_ELSEWHERE,
    Fault,
    Refusal,
)
from wire.privacy.declaration import Unit
from wire.privacy.events import Pure
from wire.runtime.findings import Status

OTHER = "bb" * 32
WHY = "the cohort was given the name of its new register"


def marks(home: Path, patients: range, **settings: Any) -> Marks:
    text = "".join(f"p{number},{number},{number % 2}\n" for number in patients)
    home.mkdir(exist_ok=True)
    (home / "d.csv").write_text("pid,age,y\n" + text)
    given = {"path": "d.csv", "label": "y", **(settings or {"patient_id": "pid"})}
    return Marks.of(load_private(DataSettings.model_validate(given), home))


def named(dataset: str, **more: Any) -> PrivacySettings:
    given = {"mechanism": "private_labeller", "epsilon": 1, "lifetime_epsilon": 1}
    return PrivacySettings.model_validate({**given, "dataset": dataset, **more})


def admitted(home: Path, settings: PrivacySettings, found: Marks) -> Comparison:
    ledger, record = opened(home), PatientRecord(SiloHome(home).patients)
    return admit(settings, found, Unit.PATIENT, ledger, record)


def charged(home: Path, dataset: str, found: Marks, *rounds: int, **more: Any) -> None:
    """Opens a data set as a session does, and releases from it."""
    ledger, record = opened(home), PatientRecord(SiloHome(home).patients)
    settings = named(dataset, **more)
    admit(settings, found, Unit.PATIENT, ledger, record)
    for number in rounds:
        ledger.spend(ballot(number, dataset=dataset), NO_LIMIT)


def refused(home: Path, settings: PrivacySettings, found: Marks, fault: Fault) -> Refusal:
    with pytest.raises(Refusal) as caught:
        admitted(home, settings, found)
    assert caught.value.is_a(fault)
    return caught.value


@pytest.mark.parametrize("overlap", [range(0, 50), range(49, 120)], ids=["all", "one"])
def test_patients_charged_under_another_name_are_refused(tmp_path: Path, overlap: range) -> None:
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50)), 1)
    refusal = refused(
        tmp_path, named("cohort-b"), marks(tmp_path, overlap), PATIENTS_CHARGED_ELSEWHERE
    )
    shown = f"{refusal.sentence} {refusal.hint} {refusal.metadata()}"
    assert "cohort-a" not in shown
    assert str(len(set(overlap) & set(range(50)))) not in shown
    sizes = PatientRecord(SiloHome(tmp_path).patients).sizes()
    assert "cohort-b" not in sizes, "who is refused is not kept"


def test_the_same_name_and_other_patients_go_on(tmp_path: Path) -> None:
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50)), 1)
    admitted(tmp_path, named("cohort-a"), marks(tmp_path, range(60)))
    admitted(tmp_path, named("cohort-b"), marks(tmp_path, range(100, 150)))
    # All who were ever charged under a name are remembered.
    refused(tmp_path, named("cohort-b"), marks(tmp_path, range(55, 58)), PATIENTS_CHARGED_ELSEWHERE)


def test_a_name_under_which_nothing_was_released_keeps_nobody_out(tmp_path: Path) -> None:
    admitted(tmp_path, named("mistyped"), marks(tmp_path, range(50)))
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50)), 1)
    refused(tmp_path, named("mistyped"), marks(tmp_path, range(50)), PATIENTS_CHARGED_ELSEWHERE)


def test_leaving_the_patient_id_out_does_not_help(tmp_path: Path) -> None:
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50)), 1)
    rows = marks(tmp_path, range(20, 70), drop=("pid",))
    assert rows.patients is None
    refused(tmp_path, named("cohort-b"), rows, PATIENTS_CHARGED_ELSEWHERE)


def test_rows_without_ids_are_compared_as_rows(tmp_path: Path) -> None:
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50), drop=("pid",)), 1)
    for settings in ({"drop": ("pid",)}, {"patient_id": "pid"}):
        found = marks(tmp_path, range(49, 70), **settings)
        refused(tmp_path, named("cohort-b"), found, PATIENTS_CHARGED_ELSEWHERE)
        admitted(tmp_path, named("cohort-c"), marks(tmp_path, range(50, 70), **settings))


def test_equal_rows_of_other_patients_are_no_overlap_where_both_have_ids(tmp_path: Path) -> None:
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50)), 1)
    (tmp_path / "e.csv").write_text("pid,age,y\nq1,1,1\nq2,2,0\n")
    given = DataSettings(path=Path("e.csv"), label="y", patient_id="pid")
    admitted(tmp_path, named("cohort-b"), Marks.of(load_private(given, tmp_path)))


def test_with_a_reason_both_names_share_one_lifetime(tmp_path: Path) -> None:
    everyone = marks(tmp_path, range(50))
    charged(tmp_path, "cohort-a", everyone, 1, 2, 3)
    charged(tmp_path, "cohort-b", everyone, same_patients_as={"cohort-a": WHY})
    ledger = opened(tmp_path)
    entry = ledger.releases()[-1]
    assert (entry.kind, entry.dataset, entry.same_as) == (
        Kind.SAME_PATIENTS,
        "cohort-b",
        "cohort-a",
    )
    assert (entry.reason, entry.by, entry.ballots) == (WHY, "silo.yaml", 0)
    assert ledger.spent("cohort-b", 0) == ledger.spent("cohort-a", 0) == pytest.approx(0.75)
    budget = at_most(lifetime=1)
    ledger.spend(ballot(1, dataset="cohort-b", task_digest=OTHER), budget)
    for dataset in ("cohort-a", "cohort-b"):
        over = ledger.would_exceed(dataset, OTHER, (Pure(epsilon=0.01),), budget)
        assert over is not None
        assert over.whose == "lifetime"
    (total,) = examine(ledger.entries(), named("cohort-b")).datasets
    assert total.dataset == "cohort-a + cohort-b"
    assert (total.budget, total.ballots) == (1, 4)


def test_what_both_names_had_spent_before_is_added_up(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for dataset, task, rounds in (("a", TASK, (1, 2)), ("b", OTHER, (1,)), ("b", TASK, (3,))):
        for number in rounds:
            ledger.spend(ballot(number, dataset=dataset, task_digest=task), NO_LIMIT)
    ledger.declare_same_patients("b", "a", "renamed in March", Unit.PATIENT, 0.0)
    for found in (ledger, opened(tmp_path)):
        for name in ("a", "b"):
            assert found.spent(name, 0.0) == pytest.approx(1.0)
            assert found.spent(name, 0.0, TASK) == pytest.approx(0.75)
            assert found.spent(name, 0.0, OTHER) == pytest.approx(0.25)


def test_a_reason_is_kept_once_and_for_good(tmp_path: Path) -> None:
    everyone = marks(tmp_path, range(50))
    charged(tmp_path, "cohort-a", everyone, 1)
    for _ in range(2):
        charged(tmp_path, "cohort-b", everyone, same_patients_as={"cohort-a": WHY})
    assert [entry.kind for entry in opened(tmp_path).releases()] == [
        Kind.BALLOT,
        Kind.SAME_PATIENTS,
    ]
    # Taken out of silo.yaml again, it still holds; and the old name may come back.
    charged(tmp_path, "cohort-b", everyone)
    charged(tmp_path, "cohort-a", everyone)
    opened(tmp_path).verify()


def test_a_task_that_went_on_under_a_new_name_keeps_its_budget(tmp_path: Path) -> None:
    everyone = marks(tmp_path, range(5))
    charged(tmp_path, "cohort-a", everyone, 1, 2)
    charged(tmp_path, "cohort-b", everyone, same_patients_as={"cohort-a": WHY})
    over = opened(tmp_path).would_exceed(
        "cohort-b", TASK, (Pure(epsilon=0.26),), at_most(task=0.75)
    )
    assert over is not None


@pytest.mark.parametrize("given", ["", "  ", "x" * 501], ids=["empty", "blank", "long"])
def test_a_reason_is_a_reason(given: str) -> None:
    with pytest.raises(ValueError, match="same_patients_as"):
        named("cohort-b", same_patients_as={"cohort-a": given})
    with pytest.raises(ValueError, match="names the data set itself"):
        named("cohort-b", same_patients_as={"cohort-b": WHY})


@pytest.mark.parametrize("how", ["gone", "emptied"])
def test_a_record_that_lost_patients_stops_every_new_name(tmp_path: Path, how: str) -> None:
    everyone, home = marks(tmp_path, range(50)), SiloHome(tmp_path)
    charged(tmp_path, "cohort-a", everyone, 1)
    if how == "gone":
        home.patients.unlink()
    else:
        with closing(sqlite3.connect(home.patients)) as connection:
            connection.execute("DELETE FROM marks WHERE kind = 'patient'")
            connection.commit()
    refused(tmp_path, named("cohort-b"), marks(tmp_path, range(80, 90)), PATIENT_RECORD_LOST)
    charged(tmp_path, "cohort-b", everyone, same_patients_as={"cohort-a": WHY})
    charged(tmp_path, "cohort-a", everyone)


def test_a_damaged_record_releases_nothing(tmp_path: Path) -> None:
    SiloHome(tmp_path).trainer.mkdir(parents=True)
    SiloHome(tmp_path).patients.write_bytes(b"no database" * 200)
    refused(tmp_path, named("cohort-a"), marks(tmp_path, range(3)), PATIENT_RECORD_UNUSABLE)


def test_nothing_in_the_record_can_be_recognised_without_its_salt(tmp_path: Path) -> None:
    records = []
    for name in ("one", "two"):
        record = PatientRecord(tmp_path / name / "patients.db")
        record.keep("cohort-a", marks(tmp_path, range(40)))
        assert os.stat(record.path).st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(record.path)) as connection:
            records.append({mark for (mark,) in connection.execute("SELECT mark FROM marks")})
        assert b"p39" not in record.path.read_bytes()
    assert len(records[0]) == len(records[1]) == 80
    assert not records[0] & records[1]


def test_a_backup_brings_the_record_back(tmp_path: Path) -> None:
    everyone = marks(tmp_path / "old", range(50))
    charged(tmp_path / "old", "cohort-a", everyone, 1)
    new = SiloHome(tmp_path / "new")
    for part in Part:
        copy = io.BytesIO()
        back_up_part(SiloHome(tmp_path / "old"), part, copy)
        copy.seek(0)
        restore_part(new, part, copy)
    refused(new.root, named("cohort-b"), everyone, PATIENTS_CHARGED_ELSEWHERE)
    admitted(new.root, named("cohort-a"), everyone)


def test_a_ledger_of_an_earlier_version_is_said_to_have_kept_no_patients(tmp_path: Path) -> None:
    old = ballot(1, dataset="archive").model_dump(mode="json")
    for added in ("plan", "same_as", "patients_kept"):
        del old[added]
    ledger = opened(tmp_path)
    ledger.spend(Release.model_validate(old), NO_LIMIT)
    found = marks(tmp_path, range(9))
    assert admitted(tmp_path, named("cohort-b"), found).unrecorded == ("archive",)
    settings = named("cohort-b", same_patients_as={"archive": WHY})
    record = PatientRecord(SiloHome(tmp_path).patients)
    assert compare(settings, found, ledger, record) == Comparison({}, (), ())


def test_check_tells_the_hospital_which_and_the_network_side_only_that(tmp_path: Path) -> None:
    charged(tmp_path, "cohort-a", marks(tmp_path, range(50)), 1)
    marks(tmp_path, range(43, 60))
    (tmp_path / "silo.yaml").write_text(
        "data: {path: d.csv, label: y, patient_id: pid}\nmodel: svm\n"
        "privacy: {mechanism: private_labeller, epsilon: 1, dataset: cohort-b}\n"
    )
    checks = TrainerChecks(SiloHome(tmp_path))
    for finding in checks.findings():
        if finding.name == "patients":
            assert finding.status is Status.FAILED
            assert "cohort-a" not in f"{finding}"
            assert checks.details[-1] == "data set cohort-a: 7 of these patients (or rows)"
            return
    raise AssertionError("there was no finding about patients")
