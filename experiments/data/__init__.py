"""Data sets of the experiments, and how their rows are split over silos."""

from experiments.data.catalogue import DEFAULT_SIZES, EXTERNAL, load, load_once, require_files
from experiments.data.dataset import Dataset, Indices
from experiments.data.splits import Sizes, Split, pooled, split_dataset

__all__ = [
    "DEFAULT_SIZES",
    "EXTERNAL",
    "Dataset",
    "Indices",
    "Sizes",
    "Split",
    "load",
    "load_once",
    "pooled",
    "require_files",
    "split_dataset",
]
