"""Language models continue like other networks, on the texts themselves, and never leave the machine they are on."""

from __future__ import annotations

import json
import pickle
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from tiny_language_model import WORDS, notes, tiny_generator, tiny_model  # noqa: E402

from silo_agent.trainer.models import IterativeLearner, Labelled, Learner, LearnerSpec, build  # noqa: E402
from silo_agent.trainer.models.catalogue import reads  # noqa: E402
from silo_agent.trainer.models.protocol import reads_of  # noqa: E402
from wire.errors import ConfigurationError  # noqa: E402

pytestmark = pytest.mark.slow

LORA = {"rank": 8, "alpha": 16}
QUICK: dict[str, object] = {"learning_rate": 0.003, "private_batch": 12, "pseudo_batch": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "distil")


def learner(folder: Path, classes: int = 3, seed: int = 0, **parameters: object) -> Any:
    given = {"path": str(folder), **QUICK, **parameters}
    return build(LearnerSpec(name="transformers", parameters=given), classes, (), seed)


def rows(labels: list[int], count: int, seed: int) -> Labelled:
    wanted = np.resize(np.array(labels), count)
    return Labelled(notes(wanted, seed), wanted)


def right(trained: Any, data: Labelled) -> float:
    return float(np.mean(trained.predict(data.features) == data.labels))


def weights(trained: Any) -> Any:
    return torch.nn.utils.parameters_to_vector(trained._ready()[0].parameters()).detach()


def trainable(trained: Any) -> int:
    parameters = trained._ready()[0].parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


@pytest.mark.parametrize("architecture", ["DistilBertModel", "BertForMaskedLM"])
def test_it_learns_what_words_mean(tmp_path: Path, architecture: str) -> None:
    trained = learner(tiny_model(tmp_path / "model", architecture))
    trained.advance(rows([0, 1, 2], 60, 1), None, 60, 0)
    assert right(trained, rows([0, 1, 2], 150, 2)) > 0.9


def test_it_speaks_both_protocols_and_reads_texts(folder: Path) -> None:
    made = learner(folder)
    assert isinstance(made, IterativeLearner)
    assert isinstance(made, Learner)
    assert reads_of(made) == reads(LearnerSpec(name="transformers")) == "texts"
    assert reads(LearnerSpec(name="svm")) == "features"
    predicted = made.predict(notes([0, 1], 1))
    assert predicted.dtype == np.int64
    assert predicted.shape == (2,)
    assert made.predict(np.empty(0, dtype=object)).shape == (0,)


def test_steps_are_exact_and_half_private_half_pseudo_labelled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composition: list[list[int]] = []
    real = torch.nn.functional.cross_entropy

    def recorded(logits: Any, labels: Any) -> Any:
        composition.append(torch.bincount(labels, minlength=2).tolist())
        return real(logits, labels)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", recorded)
    private, pseudo = rows([0], 5, 1), rows([1], 40, 2)
    made = learner(folder, private_batch=4, pseudo_batch=6)
    made.advance(private, None, 2, 0)
    made.advance(private, pseudo, 3, 1)
    made.advance(private, pseudo[np.zeros(40, dtype=bool)], 1, 2)
    assert composition == [[4, 0]] * 2 + [[4, 6]] * 3 + [[4, 0]]
    steps = {int(state["step"]) for state in made._ready()[1].state.values()}
    assert steps == {6}


def test_a_class_known_only_from_the_consensus_is_learned(folder: Path) -> None:
    private, pseudo, unseen = rows([0, 1], 30, 1), rows([0, 1, 2], 90, 2), rows([2], 30, 3)
    made = learner(folder)
    made.advance(private, None, 30, 0)
    assert right(made, unseen) == 0
    made.advance(private, pseudo, 60, 1)
    assert right(made, unseen) > 0.5


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}, {"freeze": True}], ids=str)
def test_a_restarted_trainer_continues_exactly_where_it_stopped(
    folder: Path, settings: dict[str, object]
) -> None:
    private, pseudo = rows([0, 1, 2], 30, 1), rows([0, 1, 2], 60, 2)
    steady = learner(folder, **settings)
    steady.advance(private, None, 5, 0)
    bookmark = pickle.dumps(steady)
    # Kept again before it was used again: nothing is lost on the way.
    restarted = pickle.loads(pickle.dumps(pickle.loads(bookmark)))
    for one in (steady, restarted):
        one.advance(private, pseudo, 5, 1)
    # The optimiser's moments and dropout count: without them the weights would differ.
    assert torch.equal(weights(steady), weights(restarted))
    assert not torch.equal(weights(steady), weights(pickle.loads(bookmark)))


def test_an_untrained_learner_can_be_kept_too(folder: Path) -> None:
    data = rows([0, 1, 2], 12, 1)
    fresh, kept = learner(folder), pickle.loads(pickle.dumps(learner(folder)))
    for one in (fresh, kept):
        one.advance(data, None, 2, 0)
    assert torch.equal(weights(fresh), weights(kept))


def test_adapters_train_and_keep_a_fraction_and_leave_the_model_alone(folder: Path) -> None:
    data = rows([0, 1, 2], 60, 1)
    whole = learner(folder)
    adapted = learner(folder, learning_rate=0.01, lora={**LORA, "targets": ["q_lin", "v_lin"]})
    before = {name: value.clone() for name, value in adapted._ready()[0].state_dict().items()}
    for one in (whole, adapted):
        one.advance(data, None, 60, 0)
    assert right(adapted, rows([0, 1, 2], 150, 2)) > 0.8
    assert trainable(adapted) < trainable(whole) / 4
    assert len(pickle.dumps(adapted)) < len(pickle.dumps(whole)) / 4

    changed = {
        name
        for name, value in adapted._ready()[0].state_dict().items()
        if not torch.equal(value, before[name])
    }
    # DistilBERT's head has two layers, and both are new: a frozen random one would spoil the adapters.
    head = {
        f"{part}.{kind}" for part in ("pre_classifier", "classifier") for kind in ("weight", "bias")
    }
    assert head < changed
    assert all("lora" in name for name in changed - head)
    assert len(changed - head) == 2 * 2 * 2


def test_freezing_trains_the_head_alone(folder: Path) -> None:
    made = learner(folder, freeze=True)
    assert trainable(made) == (32 * 32 + 32) + (32 * 3 + 3)


def test_parts_of_the_body_that_the_folder_lacks_are_trained_in_any_case(tmp_path: Path) -> None:
    # A masked language model has no pooler.
    made = learner(tiny_model(tmp_path / "bert", "BertForMaskedLM"), freeze=True)
    assert trainable(made) == (32 * 32 + 32) + (32 * 3 + 3)


def test_seeds_decide_head_draws_and_dropout(folder: Path) -> None:
    data = rows([0, 1, 2], 30, 1)

    def after(seed: int, draw: int) -> Any:
        made = learner(folder, seed=seed)
        made.advance(data, None, 2, draw)
        return weights(made)

    reference = after(1, 1)
    assert torch.equal(after(1, 1), reference)
    assert not torch.equal(after(2, 1), reference)
    assert not torch.equal(after(1, 2), reference)


def test_torchs_global_randomness_and_threads_are_left_alone(folder: Path) -> None:
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    data = rows([0, 1, 2], 12, 1)
    made = learner(folder, lora=LORA, n_jobs=threads + 1)
    made.advance(data, None, 2, 0)
    made.predict(data.features)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_fit_starts_anew(folder: Path) -> None:
    data = rows([0, 1, 2], 30, 1)
    used = learner(folder, fit_steps=3)
    used.advance(rows([0, 1, 2], 30, 5), None, 4, 0)
    assert torch.equal(
        weights(used.fit(data.features, data.labels)),
        weights(learner(folder, fit_steps=3).fit(data.features, data.labels)),
    )


def test_a_network_of_the_same_form_can_begin_like_another(folder: Path) -> None:
    taught = learner(folder, seed=1)
    taught.advance(rows([0, 1, 2], 60, 1), None, 60, 0)
    fresh = learner(folder, seed=2)
    assert fresh.copy_weights_from(taught)
    assert torch.equal(weights(fresh), weights(taught))
    assert fresh._ready()[1].state == {}
    for other in (learner(folder, classes=2), learner(folder, lora=LORA), object()):
        assert not learner(folder).copy_weights_from(other)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_the_head_has_the_tasks_classes_whatever_the_folder_has(
    tmp_path: Path, classes: int
) -> None:
    made = learner(
        tiny_model(tmp_path / "m", "DistilBertForSequenceClassification", num_labels=2), classes
    )
    data = rows([0], 10, 1)
    made.advance(data, None, 2, 0)
    assert made._ready()[0].classifier.out_features == classes
    assert set(made.predict(data.features)) <= set(range(classes))


def test_long_texts_are_cut_and_empty_ones_are_read(folder: Path) -> None:
    made = learner(folder)
    long = " ".join(WORDS * 40)
    assert len(made.predict(np.array(["", long, WORDS[0], long + " rash"], dtype=object))) == 4
    short = learner(folder, max_length=4)
    short._ready()
    first = np.array(["fever cough", "fever cough rash itch hives"], dtype=object)
    logits = short._logits(short._ready()[0].eval(), first)
    assert torch.allclose(logits[0], logits[1])


def test_a_model_that_neither_pads_nor_marks_a_beginning_serves_too(tmp_path: Path) -> None:
    made = learner(tiny_generator(tmp_path / "gpt"))
    made.advance(rows([0, 1, 2], 60, 1), None, 60, 0)
    new = rows([0, 1, 2], 90, 2)
    assert right(made, new) > 0.9
    assert made.predict(np.array(["", ""], dtype=object)).shape == (2,)
    padded = made.predict(np.array([*new.features[:3], " ".join(WORDS * 2)], dtype=object))
    assert padded[:3].tolist() == [int(made.predict(new.features[[row]])[0]) for row in range(3)]


def test_a_rows_label_does_not_depend_on_its_neighbours(folder: Path) -> None:
    made = learner(folder)
    made.advance(rows([0, 1, 2], 60, 1), None, 20, 0)
    texts = notes(np.resize(np.arange(3), 150), 4)
    texts[::7] = " ".join(WORDS)
    together = made.predict(texts)
    alone = [int(made.predict(texts[[row]])[0]) for row in range(0, 150, 15)]
    assert together[::15].tolist() == alone


def test_no_network_is_touched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reached(*address: object) -> None:
        raise AssertionError("a learner reached for the network")

    monkeypatch.setattr(socket.socket, "connect", reached)
    monkeypatch.setattr(socket, "getaddrinfo", reached)
    made = learner(folder, lora=LORA)
    made.advance(rows([0, 1, 2], 12, 1), None, 1, 0)
    assert pickle.loads(pickle.dumps(made)).predict(notes([0], 1)).shape == (1,)


# -- what a person may write ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"lerning_rate": 1}, "no parameter lerning_rate"),
        ({"learning_rate": 0}, "learning_rate of learner transformers"),
        ({"lora": {"rnk": 4}}, r"lora\.rnk of learner transformers"),
        ({"lora": LORA, "freeze": True}, "choose one"),
        ({"random_state": 3}, "takes no parameter random_state"),
        ({"path": "bert-base-uncased"}, "bert-base-uncased is not a model folder on this machine"),
    ],
)
def test_wrong_parameters_are_named(
    folder: Path, parameters: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        learner(folder, **parameters)


def test_a_path_is_needed_and_starts_at_silo_yaml(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a parameter path"):
        build(LearnerSpec(name="transformers"), 2, (), 0)
    spec = LearnerSpec(name="transformers", parameters={"path": folder.name, "freeze": True})
    found = spec.found_from(folder.parent)
    assert found.parameters == {"path": str(folder), "freeze": True}
    own = LearnerSpec(name="ward:Model", parameters={"path": "x"})
    assert own.found_from(folder.parent) == own
    assert LearnerSpec(name="svm").found_from(folder.parent) == LearnerSpec(name="svm")


def test_numbers_are_refused(folder: Path) -> None:
    spec = LearnerSpec(name="transformers", parameters={"path": str(folder)})
    with pytest.raises(ConfigurationError, match="reads texts; these rows are numbers"):
        build(spec, 2, (30,), 0)
    with pytest.raises(ValueError, match="reads texts"):
        learner(folder).predict(np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"0\.\.1"):
        learner(folder, classes=2).advance(rows([2], 3, 1), None, 1, 0)
    with pytest.raises(ValueError, match="at least one private row"):
        learner(folder).advance(rows([0], 3, 1)[np.zeros(3, dtype=bool)], None, 1, 0)


def test_unknown_lora_targets_are_answered_with_the_layers_there_are(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="names no layer") as caught:
        learner(folder, lora={"targets": ["qeury"]}).predict(notes([0], 1))
    assert "q_lin" in caught.value.hint


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_pickled_weights_are_refused_unread(folder: Path, tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "it-ran",))

    own = copied(folder, tmp_path / "own")
    (own / "model.safetensors").unlink()
    (own / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(ConfigurationError, match="a pickle, which may run any code") as caught:
        learner(own)
    assert "save_pretrained" in caught.value.hint
    assert not (tmp_path / "it-ran").exists()


def test_a_folders_own_code_is_not_run(folder: Path, tmp_path: Path) -> None:
    own = copied(folder, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "planted", "auto_map": {"AutoConfig": "planted.Planted"}}
    (own / "config.json").write_text(json.dumps(config))
    (own / "planted.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')")
    with pytest.raises(ConfigurationError, match=r"config\.json in .* cannot be read"):
        learner(own)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "vocab.txt"])
def test_an_incomplete_folder_is_refused_when_the_learner_is_built(
    folder: Path, tmp_path: Path, missing: str
) -> None:
    own = copied(folder, tmp_path / "own")
    (own / missing).unlink()
    with pytest.raises(ConfigurationError, match="own"):
        learner(own)


def test_damaged_weights_are_refused_when_the_learner_is_built(
    folder: Path, tmp_path: Path
) -> None:
    own = copied(folder, tmp_path / "own")
    content = (own / "model.safetensors").read_bytes()
    (own / "model.safetensors").write_bytes(content[:-100])
    with pytest.raises(ConfigurationError, match=r"weights in .* cannot be read"):
        learner(own)


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    own = copied(folder, tmp_path / "own")
    other = tiny_model(tmp_path / "other", "BertModel")
    (own / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ConfigurationError, match=r"not those of the model its config\.json"):
        learner(own).predict(notes([0], 1))


def test_a_kept_learner_needs_the_folder_it_began_with(folder: Path, tmp_path: Path) -> None:
    own = copied(folder, tmp_path / "own")
    made = learner(own, lora=LORA)
    made.advance(rows([0, 1, 2], 12, 1), None, 1, 0)
    bookmark = pickle.dumps(made)
    content = bytearray((own / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (own / "model.safetensors").write_bytes(bytes(content))
    with pytest.raises(ConfigurationError, match="has changed since the learner was kept"):
        pickle.loads(bookmark).predict(notes([0], 1))
    (own / "config.json").unlink()
    with pytest.raises(ConfigurationError, match="is not a model folder"):
        pickle.loads(bookmark)


def test_a_wanted_gpu_that_is_absent_is_said_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="no GPU"):
        learner(folder, device="cuda")
