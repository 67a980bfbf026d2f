"""Deals out the demo's patients: `deal.py public` or `deal.py HOSPITAL`, each into /data, a volume of its own.

The same deal is made in every container and only one hand of it written down: no rows are handed around.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

LABEL = "diagnosis"
HOSPITALS = ("bologna", "coimbra", "leiden")
PATIENTS = 16
"""Of one hospital. As few as in a rare disease: that is where others' votes help."""
TEST = 150
SEED = 1


def deal() -> tuple[pd.DataFrame, dict[str, pd.DataFrame], pd.DataFrame]:
    """The 569 patients, each class in proportion: public rows, every hospital's own, rows for the test."""
    frame = load_breast_cancer(as_frame=True).frame
    frame[LABEL] = np.array(["malignant", "benign"])[frame.pop("target")]
    rest, test = _split(frame, TEST)
    public, private = _split(rest, PATIENTS * len(HOSPITALS))
    # One class after the other, dealt like cards.
    ordered = private.sort_values(LABEL, kind="stable")
    hands = {
        hospital: ordered.iloc[first :: len(HOSPITALS)].sort_index()
        for first, hospital in enumerate(HOSPITALS)
    }
    return public.drop(columns=LABEL), hands, test


def _split(frame: pd.DataFrame, size: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    left, taken = train_test_split(frame, test_size=size, random_state=SEED, stratify=frame[LABEL])
    return left, taken


def main() -> None:
    """Writes one hand of the deal."""
    whose, folder = sys.argv[1], Path("/data")
    public, hands, test = deal()
    if whose == "public":
        public.to_csv(folder / "biopsies.csv", index=False)
        print(f"{len(public)} public rows, nobody's label among them.")
        return
    hands[whose].to_csv(folder / "patients.csv", index=False)
    # What nobody trains on: the report measures with it.
    test.to_csv(folder / "test.csv", index=False)
    print(f"{len(hands[whose])} patients of {whose}.")


if __name__ == "__main__":
    main()
