"""What an officer is shown of a public set, and whether the hospital's own rows are in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coordinator.public_sets.convert import convert
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.about_task import about_task
from silo_agent.trainer.check import TrainerChecks
from silo_agent.trainer.data.public_summary import summary
from silo_agent.trainer.settings import read_settings
from wire.errors import Refusal
from wire.public_content import inspect
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

PUBLIC = pd.DataFrame(
    {"age": [20.0, 30.5, None, 90], "ward": ["east", "west", "east", "\x1b[31mred"]}
)
SAID = {"source": "UCI, doi:10.1/x", "licence": "CC BY 4.0"}


def made(folder: Path, **options: object) -> Path:
    PUBLIC.to_csv(folder / "public.csv", index=False)
    return convert(folder / "public.csv", folder / "sets", **options).path  # type: ignore[arg-type]


def test_a_set_says_what_it_is_and_its_words_do_not_steer_a_terminal(tmp_path: Path) -> None:
    assert summary(made(tmp_path, provenance=SAID)) == [
        "source: 'UCI, doi:10.1/x'",
        "licence: 'CC BY 4.0'",
        "4 rows, 2 columns",
        "'age': numbers from 20 to 90, 1 empty cell",
        "'ward': 3 categories: '\\x1b[31mred', 'east', 'west'",
    ]
    assert summary(made(tmp_path))[:2] == ["source: not said", "licence: not said"]


def test_texts_and_arrays_are_summed_up_too(tmp_path: Path) -> None:
    pd.DataFrame({"note": ["fever", "a cough"]}).to_csv(tmp_path / "notes.csv", index=False)
    notes = convert(tmp_path / "notes.csv", tmp_path / "sets", text_column="note")
    assert summary(notes.path)[-1] == "'note': texts of up to 7 characters"
    np.save(tmp_path / "images.npy", np.arange(8, dtype="uint8").reshape(2, 2, 2))
    images = convert(tmp_path / "images.npy", tmp_path / "sets")
    assert summary(images.path)[-1] == "2 rows of shape (2, 2), uint8, from 0 to 7"


def test_source_and_licence_are_covered_by_the_digest_and_leave_the_schema_alone(
    tmp_path: Path,
) -> None:
    plain, said = made(tmp_path), made(tmp_path, provenance=SAID)
    assert plain.name != said.name
    assert inspect(plain) == inspect(said)
    assert made(tmp_path, provenance={"source": "", "licence": ""}).name == plain.name


@pytest.mark.parametrize("said", [{"source": "x" * 501}, {"licence": "two\nlines"}])
def test_a_source_that_does_not_fit_a_line_is_refused(tmp_path: Path, said: object) -> None:
    with pytest.raises(Refusal, match="characters"):
        made(tmp_path, provenance=said)


def test_an_array_has_no_place_for_them_and_says_so(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((2, 2)))
    with pytest.raises(Refusal, match="no place for its source and licence"):
        convert(tmp_path / "images.npy", tmp_path / "sets", provenance=SAID)


def hospital(folder: Path, rows: str) -> SiloHome:
    (folder / "data.csv").write_text(f"age,ward,state\n{rows}")
    (folder / "silo.yaml").write_text("data: {path: data.csv, label: state}\nmodel: svm\n")
    return SiloHome(folder)


def test_rows_that_are_public_are_warned_of_at_home_and_in_no_finding(tmp_path: Path) -> None:
    path = made(tmp_path)
    home = hospital(tmp_path, "30.50,west,ill\n30.5, west ,well\n31,west,ill\n")
    checks = TrainerChecks(home, path, free=lambda folder: 2**40)
    findings = [finding.as_json() for finding in checks.findings()]
    (warned,) = [line for line in checks.details if "WARNING" in line]
    assert "2 of 3 private rows equal a public row (1 public rows equal a private" in warned
    hospital(tmp_path, "77,west,ill\n78,west,well\n79,east,ill\n")
    apart = TrainerChecks(home, path, free=lambda folder: 2**40)
    assert [finding.as_json() for finding in apart.findings()] == findings
    assert not any("WARNING" in line for line in apart.details)


def test_whoever_approves_sees_the_set_the_overlap_and_what_becomes_of_cells(
    tmp_path: Path,
) -> None:
    path = made(tmp_path, provenance=SAID)
    home = hospital(tmp_path, "30.5,west,ill\n31,north,well\nold,west,unclear\n")
    task = TaskDefinition(name="trial", public_set=path.name, labels=("ill", "well"), rows=4)
    (missing,) = about_task(home, read_settings(home.settings_file), task)
    assert "not here yet" in missing
    assert f"consilium agent fetch {path.name}" in missing
    home.public_sets.mkdir(parents=True)
    (home.public_sets / path.name).write_bytes(b"another")
    assert "not here yet" in about_task(home, read_settings(home.settings_file), task)[0]
    (home.public_sets / path.name).write_bytes(path.read_bytes())
    told = "\n".join(about_task(home, read_settings(home.settings_file), task))
    assert "CC BY 4.0" in told
    assert "numbers from 20 to 90" in told
    assert "Column age: cells that hold no number: 1" in told
    assert "Column ward: cells that have a category that the public set lacks: 1" in told
    assert "Column state: cells that have a label outside the task's label space: 1" in told
    assert "1 of 3 private rows equal a public row" in told
