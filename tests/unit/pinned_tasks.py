"""Task definitions of every kind, each with the digest hospitals approved it under. Never change a digest here."""

from __future__ import annotations

PINNED: dict[str, tuple[str, str]] = {
    "a plain task of the first version": (
        """
name: breast-cancer
public_set: "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
rows: 370
labels: [malignant, benign]
rounds: {max_rounds: 5, deadline: 10m, grace: 30s, quorum: 3}
""",
        "3e1c7f80d92961651133d618483ad9214a79c07eb6670fc436a0c6963a5b74a5",
    ),
    "every field of the first version": (
        """
name: stroke-2024
public_set: "1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e"
rows: 123456
labels: [ischaemic, hämorrhagisch, "no"]
method: fedct
consensus: {rule: qualified_majority, min_share: 0.667}
rounds:
  max_rounds: 40
  deadline: 90
  grace: 1500ms
  quorum: 2
  max_extensions: 7
  stop_churn: 0.002
  stop_patience: 4
local_steps: 12
encoding: one_hot
silos: [essen, lyon]
""",
        "f0bbcc576728d3aef401497a199959d09ab676c89600852ee5918daab6e6bd2e",
    ),
    "a draft by the set's name, with labels YAML reads as numbers": (
        """
name: digits
public_set: digits@2
labels: [0, 1, 2, yes]
""",
        "548dc9752b5c114a22aaf9abf978c1543ed1c85525e61c6e37aaef55fbacd31e",
    ),
    "cross-fitting behind a demand on privacy": (
        """
name: cross
public_set: "2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d"
rows: 1000
labels: [a, b]
cross_fit: 3
privacy: {mechanisms: [randomized_response, teacher_votes], max_epsilon: 2.5, max_delta: 1.0e-6, accept_estimates: true}
""",
        "5b2b1037c60bc6d646a423246b64ae18d2a3b4e476ebd69f252ba3f9e1366609",
    ),
    "xor on one-hot ballots": (
        """
name: xor
public_set: "3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c"
rows: 64
labels: [a, b, c]
encoding: one_hot
privacy: {mechanisms: [xor], max_epsilon: 1}
""",
        "4c48a7451d8c92436257e3a7a2645c10bd8e503392ddcef3f727826232b0215d",
    ),
    "fedkt as the paper has it": (
        """
name: kt
public_set: "4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b"
rows: 500
labels: [a, b]
method: fedkt
""",
        "73b5badf1bccccc399f878c5fe8813f6e4d450da50e13f2e4d10bc63c775b43c",
    ),
    "fedkt that hides silos": (
        """
name: kt-one
public_set: "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
rows: 500
labels: [a, b]
method: fedkt
fedkt: {level: L1, teachers: 9}
privacy: {party_gamma: 0.05}
""",
        "47de6400b26dad54ab73b2dc52599a67ea1df17d4a67e7e6c4fb91618ad59ff1",
    ),
    "fedkt that hides patients": (
        """
name: kt-two
public_set: "6969696969696969696969696969696969696969696969696969696969696969"
rows: 500
labels: [a, b]
method: fedkt
fedkt: {level: L2, partitions: 2, teachers: 30}
privacy: {mechanisms: [teacher_votes], max_epsilon: 8}
""",
        "629a8240b339dbf620326365feda7518fa46fe02e3a565685115f9990cc8a39c",
    ),
    "cofed between silos that know different classes": (
        """
name: co
public_set: "7878787878787878787878787878787878787878787878787878787878787878"
rows: 77
labels: [a, b, c]
method: cofed
silos: [north, south, west]
label_spaces: {north: [c, a], south: [b]}
consensus: {threshold: 0.45, weights: {north: 3, west: 2}}
""",
        "e7a12fc91bc6e21b694c532015e538b6a51bf8c7eb5a8e0b2de18cac194e66b4",
    ),
    "cofed weighted by size": (
        """
name: co-size
public_set: "8787878787878787878787878787878787878787878787878787878787878787"
rows: 77
labels: [a, b, c]
method: cofed
consensus: {credibility: data_size}
""",
        "f1252e04300297f93d05b9c3e4cf9af2c4afdb26c6f5968facdd1283c1ef6f7b",
    ),
    "fedaux as the paper has it": (
        """
name: aux
public_set: "9696969696969696969696969696969696969696969696969696969696969696"
rows: 2000
labels: [a, b]
method: fedaux
extractor: "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"
""",
        "c89b26b0cb8f05e2ebed30094740c3bdb45894ea93afc8428b7ad4528ff0eaf3",
    ),
    "fedaux with settings, certainties hidden by the private labeller": (
        """
name: aux-set
public_set: "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5"
rows: 2000
labels: [a, b]
method: fedaux
extractor: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
fedaux: {negatives: 0.3, regularisation: 0.05}
local_steps: 7
privacy: {mechanisms: [private_labeller, none]}
""",
        "1d2d9978ff5aeee105d2ddec8d0654e2d0ae37d5b5e8151b78152c4dc8c6cf17",
    ),
    "silos weighted by the task": (
        """
name: weighted
public_set: "b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4b4"
rows: 8
labels: [a, b]
consensus: {rule: weighted, weights: {south: 0, north: 3}}
""",
        "e442318865e4f7f37feeac251ac024a24ad8bd1231bb98773c79a5ad0906066e",
    ),
    "the most reliable silos by staple": (
        """
name: staple
public_set: "c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3c3"
rows: 8
labels: [a, b]
consensus: {rule: staple}
extractor: "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
""",
        "c974d9e2070d6e6842c8608c243abd1f94377e84ddcd5b9899059d967e8cb777",
    ),
    "without those who agree least": (
        """
name: trimmed
public_set: "d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2"
rows: 8
labels: [a, b]
encoding: scored
consensus: {rule: trimmed, trim: 0.25}
""",
        "52c7fc07d450975b6cc1bdb7cdbb49b975d5be2382bfdd95af78080f6b02890b",
    ),
    "several classes may claim a row": (
        """
name: claims
public_set: "e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1"
rows: 8
labels: [a, b]
consensus: {rule: per_class_threshold}
rounds: {stop_patience: 0}
""",
        "8fb7447cea394890f9d428bb28e00ef4e2af04a2ba92befcb6346d8991d6b45a",
    ),
    "noise on counts under the majority": (
        """
name: counts
public_set: "f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0"
rows: 8
labels: [a, b]
privacy: {party_gamma: 0.1}
""",
        "a1a91622e63d4582a7370b4492eb6ee890ca4f73fe56bb09ffc3fc10a74e5911",
    ),
}
"""What it is, task.yaml, digest; computed by the code before the digest was frozen (version 0.1.0)."""
