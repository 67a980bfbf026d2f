"""The papers' tables, one module each; every one is a command, `consilium experiment NAME`.

A module `experiments/papers/some_table.py` has one object `EXPERIMENT` and is listed here as `some-table`.
Modules are imported when asked for: they bring the learners' libraries along.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.papers.experiment import Experiment

EXPERIMENTS = {
    "fedct-table3": "FedCT, Table 3: trees, rules, boosting and forests on five tables.",
    "fedct-mixed": "FedCT, Table 5: another kind of learner in every hospital.",
    "fedct-table1": "FedCT, Table 1: networks on FashionMNIST and chest X-rays, beside five other methods.",
    "fedct-table2": "FedCT, Table 2: hospitals that see different classes; majority and qualified majority.",
    "fedct-scaling": "FedCT, Figure 6: the same rows over 5 to 80 hospitals.",
    "fedct-unlabelled": "FedCT, Figure 10: how many public rows it takes.",
    "fedct-shift": "FedCT, Table 4: public rows that are not like the hospitals' own.",
    "fedkt-adult": "FedKT, Tables 1, 2 and 8: forests on Adult and the public student they teach.",
    "fedkt-codrna": "FedKT, Tables 1, 2 and 8: boosted trees on cod-rna.",
    "cofed-adult": "CoFED, Figure 9: 100 silos with four kinds of learners on Adult.",
    "cofed-images": "CoFED, Figure 2: silos that know different classes of images.",
    "fedaux": "FEDAUX, Table 1: votes weighted by certainty, and votes that count alike.",
    "hearts": "UCI heart disease: four real hospitals, alone, together and pooled.",
}
"""What each command measures, in one line."""


def find(name: str) -> Experiment[Any, Any]:
    """The experiment listed as `name`."""
    module = import_module(f"experiments.papers.{name.replace('-', '_')}")
    found: Experiment[Any, Any] = module.EXPERIMENT
    return found
