"""A language model small enough for a test: random weights and a vocabulary of its own, in a folder like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

WORDS = ("fever", "cough", "chills", "rash", "itch", "hives", "sprain", "fracture", "cast")
FILLING = ("the", "patient", "has", "a", "some", "and", "no", "visit", "today", "clinic")
BY_CLASS = (WORDS[0:3], WORDS[3:6], WORDS[6:9])
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tiny_model(folder: Path, architecture: str = "DistilBertModel", **config: Any) -> Path:
    """A folder with two layers of width 32; the model has no head unless its architecture brings one."""
    import torch
    import transformers

    vocabulary = [*_SPECIAL, *WORDS, *FILLING, "##s"]
    shape: dict[str, Any]
    if architecture.startswith("DistilBert"):
        shape = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
        kind: Any = transformers.DistilBertConfig
    else:
        shape = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
        }
        kind = transformers.BertConfig
    settings = kind(
        vocab_size=len(vocabulary),
        max_position_embeddings=24,
        initializer_range=0.1,
        **{**shape, **config},
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        getattr(transformers, architecture)(settings).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return folder


def tiny_generator(folder: Path) -> Path:
    """The same for a model that generates text (GPT-2): its tokenizer knows an end and no padding."""
    import tokenizers
    import torch
    import transformers

    words = {word: place for place, word in enumerate(("<end>", "<unknown>", *WORDS, *FILLING))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unknown>"
    ).save_pretrained(folder)
    settings = transformers.GPT2Config(
        vocab_size=len(words),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=24,
        eos_token_id=0,
        bos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        transformers.GPT2Model(settings).save_pretrained(folder)
    return folder


def notes(labels: Any, seed: int) -> np.ndarray[Any, np.dtype[np.object_]]:
    """One made note per label: filling words, and two that only its class has."""
    draw = np.random.default_rng(seed)
    made = np.empty(len(labels), dtype=object)
    for row, label in enumerate(labels):
        words = [*draw.choice(FILLING, 5), *draw.choice(BY_CLASS[label], 2)]
        made[row] = " ".join(draw.permutation(words).tolist())
    return made
