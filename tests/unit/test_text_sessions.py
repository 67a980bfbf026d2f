"""Sessions on text: a language model gets the texts, everything that counts gets numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("transformers")

from session_scenes import SILO, opened, packed, votes
from tiny_language_model import notes, tiny_model

from coordinator.public_sets.convert import convert
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.check import TrainerChecks
from silo_agent.trainer.models import LearnerSpec
from silo_agent.trainer.session import Session, SessionInputs, TaskStorage, assemble
from silo_agent.trainer.settings import TrainingSettings
from wire.errors import ConfigurationError

pytestmark = pytest.mark.slow

LABELS = ("airways", "skin", "bones")
TRUTH = np.resize(np.arange(3), 90)
MODEL = {
    "name": "transformers",
    "parameters": {"path": "./language-model", "learning_rate": 0.003, "private_batch": 12},
}
OWN = """
import numpy as np

class Spotter:
    reads = "texts"

    def __init__(self, row_shape):
        assert row_shape == ()

    def fit(self, X, y):
        self.words = [set(" ".join(X[y == label]).split()) for label in range(y.max() + 1)]

    def predict(self, X):
        return np.array([np.argmax([len(set(x.split()) & w) for w in self.words]) for x in X])

class Confused(Spotter):
    reads = "text"
"""


def private(labels: list[int], rows: int = 36) -> pd.DataFrame:
    truth = np.resize(np.array(labels), rows)
    return pd.DataFrame({"note": notes(truth, 1), "label": [LABELS[index] for index in truth]})


def session(
    folder: Path, rows: pd.DataFrame, model: Any = None, public: Any = None, **settings: Any
) -> Session:
    folder.mkdir(exist_ok=True)
    tiny_model(folder / "language-model")
    texts = pd.DataFrame({"note": notes(TRUTH, 2)}) if public is None else public
    task = {"local_steps": 60, "rounds": {"max_rounds": 2}, **settings.pop("task", {})}
    made, misfits = opened(
        folder, texts, rows, LABELS, {"model": model or MODEL, **settings}, **task
    )
    assert made is not None, misfits
    return made


def test_a_language_model_votes_learns_from_the_consensus_and_reads_raw_rows_at_home(
    tmp_path: Path,
) -> None:
    # The silo has never seen bones; the others have.
    rows = private([0, 1])
    first = votes(session(tmp_path, rows), 1)
    seen = TRUTH < 2
    assert np.mean(first[seen] == TRUTH[seen]) > 0.9
    assert not (first == 2).any()

    # Another process goes on from the state on disk.
    again = session(tmp_path, rows)
    assert votes(again, 1).tolist() == first.tolist()
    consensus = packed(again, TRUTH)
    assert np.mean(votes(again, 2, consensus) == TRUTH) > 0.9

    again.finish(2, consensus)
    model = joblib.load(again.folder.model_path())
    asked = pd.DataFrame({"ward": "x", "note": notes([2, 0, 1, 2], 7)})
    assert model.predict(asked) == ["bones", "airways", "skin", "bones"]
    assert model.predict(asked.iloc[:0]) == []


def test_a_private_labeller_counts_words_while_the_learner_reads_texts(tmp_path: Path) -> None:
    privacy = {"mechanism": {"name": "private_labeller"}, "epsilon": 1000}
    made = session(tmp_path, private([0, 1, 2], 90), privacy=privacy)
    side = made._silo_round(1, None)
    assert side.private.features.dtype == object
    numbers, public = side.as_numbers()
    assert numbers.features.dtype == public.dtype == np.float32
    assert len(public) == len(TRUTH)
    assert numbers.labels is side.private.labels
    assert np.mean(votes(made, 1) == TRUTH) > 0.9


def test_an_extractor_sees_numbers_and_leaves_the_learner_its_texts(tmp_path: Path) -> None:
    class Halves:
        dimensions = 2

        def transform(self, rows: Any) -> Any:
            assert rows.dtype == np.float32
            return rows[:, :2]

    made = session(tmp_path, private([0, 1, 2]))
    training = made.learner.training
    parameters = {"path": str(tmp_path / "language-model")}
    settings = TrainingSettings(model=LearnerSpec(name="transformers", parameters=parameters))
    assert made.numbers is not None
    whole = assemble(
        SessionInputs(
            definition=made.definition,
            settings=settings,
            private=training.private,
            public=training.public,
            patients=made.learner.patients,
            unit=made.releaser.scope.unit,
            storage=TaskStorage(made.folder, made.releaser.ledger, made.releaser.bits),
            silo=SILO,
            extractor=Halves(),  # type: ignore[arg-type]
            numbers=made.numbers,
        )
    )
    assert whole.extracted is not None
    assert whole.extracted.public.shape == (len(TRUTH), 2)
    assert whole.learner.training.public.dtype == object


@pytest.fixture
def spotter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ward_texts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ward_texts", raising=False)


@pytest.mark.usefixtures("spotter")
def test_a_persons_own_class_may_read_texts_too(tmp_path: Path) -> None:
    made = session(tmp_path / "silo", private([0, 1, 2]), "ward_texts:Spotter")
    consensus = packed(made, TRUTH)
    assert np.mean(votes(made, 1) == TRUTH) > 0.9
    assert np.mean(votes(made, 2, consensus) == TRUTH) > 0.9
    made.finish(2, consensus)
    model = joblib.load(made.folder.model_path())
    assert model.predict(pd.DataFrame({"note": notes([1, 2], 9)})) == ["skin", "bones"]


@pytest.mark.usefixtures("spotter")
def test_what_a_class_reads_must_be_one_of_two_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Confused: `reads` is 'text'"):
        session(tmp_path / "silo", private([0, 1, 2]), "ward_texts:Confused")


def test_a_label_space_of_its_own_goes_with_texts(tmp_path: Path) -> None:
    spaces = {"st-anna": ["airways", "bones"]}
    task = {"method": "cofed", "label_spaces": spaces, "rounds": {"max_rounds": 1}}
    made = session(tmp_path, private([0, 2]), task=task)
    cast = votes(made, 1)
    assert set(cast) == {0, 2}
    made.finish(1, packed(made, np.where(TRUTH == 1, -1, TRUTH)))
    model = joblib.load(made.folder.model_path())
    assert model.predict(pd.DataFrame({"note": notes([2, 0], 9)})) == ["bones", "airways"]


def test_a_learner_of_texts_is_refused_where_there_is_a_table(tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [20, 30, 40]})
    rows = table.assign(label=["skin", "bones", "skin"])
    tiny_model(tmp_path / "language-model")
    made, misfits = opened(tmp_path, table, rows, LABELS, {"model": MODEL})
    assert made is None
    assert [misfit.sentence for misfit in misfits] == [
        "The learner that silo.yaml names reads texts, and the public set is a table."
    ]


def test_the_rehearsal_builds_it_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    session(tmp_path, private([0, 1, 2]))
    home = SiloHome(tmp_path)

    def found(public: pd.DataFrame) -> dict[str, str]:
        public.to_parquet(tmp_path / "other.parquet")
        path = convert(tmp_path / "other.parquet", tmp_path / "sets").path
        findings = TrainerChecks(home, path).findings()
        return {finding.name: f"{finding.status} {finding.sentence}" for finding in findings}

    fitting = found(pd.DataFrame({"note": notes(TRUTH, 2)}))
    assert "transformers can be made" in fitting["learner"]
    assert "The private data fit" in fitting["data schema"]
    assert (
        "reads texts, and the public set is a table"
        in found(pd.DataFrame({"note": [1.5, 2]}))["data schema"]
    )
    (tmp_path / "language-model" / "config.json").unlink()
    assert "is not a model folder" in found(pd.DataFrame({"note": notes(TRUTH, 2)}))["learner"]
