"""Finds the files of data sets that are not part of Consilium or scikit-learn."""

from __future__ import annotations

from pathlib import Path

from wire.errors import ConfigurationError


def external_file(folder: Path | None, dataset: str, name: str) -> Path:
    """`folder/dataset/name`, or ConfigurationError saying which file is needed."""
    if folder is None:
        raise ConfigurationError(
            f"The data set {dataset} does not come with Consilium.",
            f"Name the folder that holds {dataset}/{name} with --data.",
        )
    path = folder / dataset / name
    if not path.is_file():
        raise ConfigurationError(
            f"{path} is not there.", f"--data must name a folder that holds {dataset}/{name}."
        )
    return path
