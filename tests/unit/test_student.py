"""The public student: trained on public rows and published labels alone; and a silo that begins with one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import yaml
from seeded_bits import SeededBits
from typer.testing import CliRunner, Result

from coordinator.public_sets.convert import convert
from silo_agent.shared.home import SiloHome
from silo_agent.trainer import student as students
from silo_agent.trainer.cli.student import student as commands
from silo_agent.trainer.data.home_model import HomeModel, load_model
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.public_copies import PublicCopies
from silo_agent.trainer.session import Session, SiloContext, open_session
from silo_agent.trainer.settings import read_settings
from wire.ballot import pack, unpack
from wire.errors import ConfigurationError
from wire.public_content import inspect
from wire.runtime.files import digest_of
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

ROWS = 200
LABELS = ("no", "yes")
FOREST = LearnerSpec(name="random_forest", parameters={"n_estimators": 10})


def patients(count: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(20, 90, size=count),
            "dose": draw.normal(size=count),
            "ward": draw.choice(["north", "south"], size=count),
        }
    )


def ill(rows: pd.DataFrame) -> np.ndarray:
    return ((rows.age > 55) ^ (rows.dose > 0.5)).to_numpy().astype(np.int64)


PUBLIC = patients(ROWS, seed=1)


class Hospital:
    """A home folder with its public set; private data and silo.yaml where a test wants them."""

    def __init__(self, root: Path, **task: Any) -> None:
        self.home = SiloHome(root)
        self.home.public_sets.mkdir(parents=True)
        PUBLIC.to_parquet(root / "public.parquet")
        converted = convert(root / "public.parquet", root / "converted")
        shutil.copy(converted.path, self.home.public_sets / converted.digest)
        self.public_file = self.home.public_sets / converted.digest
        self.definition = TaskDefinition.model_validate(
            {
                "name": "falls",
                "public_set": converted.digest,
                "rows": ROWS,
                "labels": LABELS,
                "rounds": {"max_rounds": 3, "quorum": 1},
                **task,
            }
        )
        self.consensus = ill(PUBLIC)
        self.consensus[::10] = -1

    def packed(self) -> bytes:
        return pack(self.consensus, self.definition.shape.as_index())

    def write_private(self, count: int, **settings: Any) -> None:
        private = patients(count, seed=2)
        private.assign(ill=[LABELS[one] for one in ill(private)]).to_csv(
            self.home.root / "private.csv", index=False
        )
        said = {
            "model": "decision_tree",
            "data": {"path": "private.csv", "label": "ill"},
            **settings,
        }
        self.home.settings_file.write_text(yaml.safe_dump(said))

    def opened(self) -> tuple[Session | None, list[str]]:
        ledger = Ledger(self.home.ledger, self.home.ledger_witness, lambda: datetime.now(UTC))
        silo_context = SiloContext(
            read_settings(self.home.settings_file),
            self.home.root,
            self.home.tasks,
            ledger,
            SeededBits(1),
        )
        _, schema = inspect(self.public_file)
        session, misfits = open_session(
            self.definition, schema, self.public_file, silo_context, "a"
        )
        return session, [misfit.sentence for misfit in misfits if misfit.fatal]

    def session(self) -> Session:
        session, misfits = self.opened()
        assert session is not None, misfits
        return session

    def export(self, folder: Path) -> Path:
        """As `consilium task export` does."""
        folder.mkdir()
        (folder / "definition.json").write_text(self.definition.canonical())
        shutil.copy(self.public_file, folder / "public-set")
        (folder / "consensus.bin").write_bytes(self.packed())
        return folder


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path / "home")


def finished(hospital: Hospital) -> None:
    hospital.write_private(30)
    hospital.session().finish(3, hospital.packed())


def run(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(one) for one in arguments])


def right(model: HomeModel, seed: int = 9) -> float:
    fresh = patients(500, seed)
    said = [LABELS.index(one) for one in model.predict(fresh)]
    return float(np.mean(said == ill(fresh)))


# -- training ---------------------------------------------------------------------------------------


def test_a_silo_keeps_the_final_consensus_and_needs_nothing_private_to_teach_it(
    hospital: Hospital, tmp_path: Path
) -> None:
    finished(hospital)
    hospital.home.settings_file.unlink()
    (hospital.home.root / "private.csv").unlink()
    out = tmp_path / "student.joblib"

    shown = run("train", "falls", "--home", hospital.home.root, "--out", out)

    assert shown.exit_code == 0, shown.exception
    text = " ".join(shown.stdout.split())
    assert "taught 180 rows; 20 had no consensus" in text
    assert digest_of(out) in text
    model = load_model(out)
    assert model.labels == LABELS
    assert right(model) > 0.9


def test_only_public_files_of_a_home_are_opened(hospital: Hospital, tmp_path: Path) -> None:
    """Even where private ones are there."""
    finished(hospital)
    script = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from silo_agent.trainer.cli.student import student
student(sys.argv[2:], standalone_mode=False)
for path in sorted({path for path in opened if path.startswith(sys.argv[1])}):
    print("opened", path)
"""
    root = str(hospital.home.root)
    asked = ["train", "falls", "--home", root, "--out", str(tmp_path / "student.joblib")]
    done = subprocess.run(
        [sys.executable, "-c", script, root, *asked, "--model", "decision_tree"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    opened = {
        Path(line.removeprefix("opened ")).name
        for line in done.stdout.splitlines()
        if line.startswith("opened ")
    }
    copying = {name for name in opened if name.startswith(".")} | {"public-sets", "sets"}
    assert opened - copying == {"definition.json", "kept-consensus", hospital.definition.public_set}


def test_an_exported_task_teaches_the_same_student(hospital: Hospital, tmp_path: Path) -> None:
    finished(hospital)
    folder = hospital.export(tmp_path / "export")
    copies = PublicCopies(hospital.home)
    lessons = students.from_home(hospital.home, "falls", copies), students.from_folder(folder)

    here, there = (students.train(lesson, FOREST, seed=4) for lesson in lessons)
    other = students.train(lessons[1], FOREST, seed=5)

    fresh = patients(500, seed=9)
    assert here.predict(fresh) == there.predict(fresh) != other.predict(fresh)
    assert lessons[0].per_class == {
        "no": int(np.sum(hospital.consensus == 0)),
        "yes": int(np.sum(hospital.consensus == 1)),
    }


def test_rows_without_a_consensus_teach_nothing(hospital: Hospital, tmp_path: Path) -> None:
    hospital.consensus[ill(PUBLIC) == 1] = -1
    lesson = students.from_folder(hospital.export(tmp_path / "export"))

    assert set(students.train(lesson, FOREST, 0).predict(PUBLIC)) == {"no"}


def test_parameters_reach_the_learner(hospital: Hospital, tmp_path: Path) -> None:
    folder, out = hospital.export(tmp_path / "export"), tmp_path / "student.joblib"
    options = ["--model", "decision_tree", "--parameter", "max_depth=1", "--out", out]

    assert run("train", "--from", folder, *options).exit_code == 0
    assert right(load_model(out)) < 0.85
    wrong = run("train", "--from", folder, "--parameter", "max_depth", "--out", out)
    assert "name=value" in str(wrong.exception)


@pytest.mark.parametrize("fault", ["set", "length", "silent", "absent", "definition"])
def test_what_cannot_be_taught_is_said_in_a_sentence(
    hospital: Hospital, tmp_path: Path, fault: str
) -> None:
    if fault == "silent":
        hospital.consensus[:] = -1
    folder = hospital.export(tmp_path / "export")
    match fault:
        case "set":
            (folder / "public-set").write_bytes(b"another")
        case "length":
            (folder / "consensus.bin").write_bytes(hospital.packed() + b"0")
        case "absent":
            (folder / "consensus.bin").unlink()
        case "definition":
            (folder / "definition.json").write_text("{}")
    expected = {
        "set": "is not at .*public-set, or is another one",
        "length": "cannot be read: The ballot",
        "silent": "has no label on any row",
        "absent": "is no exported task: .*consensus.bin",
        "definition": "no task definition this version understands",
    }
    with pytest.raises(ConfigurationError, match=expected[fault]):
        students.train(students.from_folder(folder), FOREST, 0)


def test_a_task_that_has_not_finished_has_nothing_to_teach(hospital: Hospital) -> None:
    hospital.write_private(30)
    hospital.session()

    with pytest.raises(ConfigurationError, match="no final consensus of task falls"):
        students.from_home(hospital.home, "falls", PublicCopies(hospital.home))
    assert "one of the two" in str(run("train").exception)


# -- asking -----------------------------------------------------------------------------------------


def test_labels_are_printed_as_csv(hospital: Hospital, tmp_path: Path) -> None:
    out, rows = tmp_path / "student.joblib", tmp_path / "rows.csv"
    run("train", "--from", hospital.export(tmp_path / "export"), "--out", out)
    fresh = patients(5, seed=3)
    fresh.assign(remark="no feature").to_csv(rows, index=False)

    shown = run("predict", out, rows)

    assert shown.stdout.splitlines() == ["label", *load_model(out).predict(fresh)]
    assert "cannot be used" in str(run("predict", out, tmp_path / "none.csv").exception)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    joblib.dump({"a": 1}, tmp_path / "other.joblib")
    (tmp_path / "broken.joblib").write_bytes(b"\x80nothing")

    with pytest.raises(ConfigurationError, match="holds no model"):
        load_model(tmp_path / "other.joblib")
    with pytest.raises(ConfigurationError, match="cannot be read as a model"):
        load_model(tmp_path / "broken.joblib")
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_model(tmp_path / "none.joblib")


# -- beginning with a student -----------------------------------------------------------------------


def taught(hospital: Hospital, tmp_path: Path, learner: LearnerSpec = FOREST) -> HomeModel:
    folder = hospital.export(tmp_path / f"export-{learner.name}")
    made = students.train(students.from_folder(folder), learner, 0)
    students.write(made, hospital.home.root / "student.joblib")
    return made


def first_ballot(hospital: Hospital) -> np.ndarray:
    return unpack(hospital.session().vote(1, None).data, hospital.definition.shape)


def test_a_silo_that_begins_with_a_student_is_righter_from_the_first_round(
    tmp_path: Path,
) -> None:
    truth, scores = ill(PUBLIC), []
    for start in (None, "student.joblib"):
        hospital = Hospital(tmp_path / f"home-{start}")
        taught(hospital, tmp_path / f"home-{start}")
        # A tree gives back the labels it was fitted on, so the student's are seen in the ballot.
        hospital.write_private(12, **({"start_from": start} if start else {}))
        labels = first_ballot(hospital)
        scores.append(np.mean(labels == truth))
    said = [LABELS.index(one) for one in taught(hospital, tmp_path).predict(PUBLIC)]

    assert np.array_equal(labels, said)
    assert scores[1] > scores[0] + 0.1


def test_a_consensus_takes_the_students_place(hospital: Hospital, tmp_path: Path) -> None:
    taught(hospital, tmp_path)
    hospital.write_private(12, start_from="student.joblib")
    session = hospital.session()
    session.vote(1, None)
    hospital.consensus = 1 - ill(PUBLIC)

    labels = unpack(session.vote(2, hospital.packed()).data, hospital.definition.shape)

    assert np.array_equal(labels, hospital.consensus)


def test_cross_fitting_keeps_the_students_own_labels_out_too(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path / "home", cross_fit=2)
    made = taught(hospital, tmp_path)
    hospital.write_private(12, start_from="student.joblib")

    labels = first_ballot(hospital)

    said = np.array([LABELS.index(one) for one in made.predict(PUBLIC)])
    assert 0.6 < np.mean(labels == said) < 1


NETWORK = LearnerSpec(name="torch_mlp", parameters={"hidden": [16], "fit_steps": 200})


@pytest.mark.parametrize(
    ("width", "folds", "alike"), [(16, 1, True), (17, 1, False), (16, 2, False)]
)
def test_a_network_of_the_same_form_begins_with_the_students_weights(
    tmp_path: Path, width: int, folds: int, alike: bool
) -> None:
    hospital = Hospital(tmp_path / "home", local_steps=1, cross_fit=folds)
    made = taught(hospital, tmp_path, NETWORK)
    parameters = {"hidden": [width], "learning_rate": 1e-9}
    own = {"name": "torch_mlp", "parameters": parameters}
    hospital.write_private(12, model=own, start_from="student.joblib")
    session = hospital.session()

    labels = unpack(session.vote(1, None).data, hospital.definition.shape)

    said = np.array([LABELS.index(one) for one in made.predict(PUBLIC)])
    assert np.array_equal(labels, said) is alike
    # Cross-fitted networks must not have seen a label; the one that stays at home may.
    session.finish(1, hospital.packed())
    path = session.folder.model_path()
    assert path is not None
    assert (load_model(path).predict(PUBLIC) == made.predict(PUBLIC)) is (width == 16)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": ("yes", "no")}, "taught other labels than the task's"),
        ({"schema": True}, "reads rows of another form"),
        ({"method": "fedkt"}, "FedKT's teachers begin with private rows alone"),
    ],
)
def test_a_student_of_something_else_is_a_misfit(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    other = Hospital(tmp_path / "other")
    made = taught(other, tmp_path)
    if change.pop("schema", False):
        schema = made.encoder.schema
        fewer = schema.model_copy(update={"columns": schema.columns[:2]})
        object.__setattr__(made.encoder, "schema", fewer)
    if change.get("method") == "fedkt":
        change = {"method": "fedkt", "rounds": {"quorum": 1}}
    hospital = Hospital(tmp_path / "home", **change)
    students.write(made, hospital.home.root / "student.joblib")
    hospital.write_private(12, start_from="student.joblib")

    session, misfits = hospital.opened()

    assert session is None
    assert sentence in " ".join(misfits)


def test_a_start_that_is_not_there_is_named(hospital: Hospital) -> None:
    hospital.write_private(12, start_from="student.joblib")

    with pytest.raises(ConfigurationError, match=r"student\.joblib does not exist"):
        hospital.opened()
