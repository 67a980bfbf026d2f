"""Images, grey values from 0 to 1."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image
from sklearn.datasets import load_digits

from experiments.data.files import external_file
from silo_agent.trainer.models.protocol import Labelled

PARTS = ("train", "t10k")
IDX_FILES = tuple(
    f"{part}-{kind}-ubyte.gz" for part in PARTS for kind in ("images-idx3", "labels-idx1")
)
"""The official files of MNIST and FashionMNIST."""
_TILES, _SIDE = 77, 56


def digits() -> Labelled:
    """1 797 × 64."""
    features, labels = load_digits(return_X_y=True)
    return Labelled(features / 16, labels.astype(np.int64))


def mnist_like(folder: Path | None, name: str) -> tuple[Labelled, int]:
    """70 000 × 784 of `name`, the official test rows last, and how many these are."""
    images, labels = [], []
    for part in PARTS:
        pixels = external_file(folder, name, f"{part}-images-idx3-ubyte.gz").read_bytes()
        classes = external_file(folder, name, f"{part}-labels-idx1-ubyte.gz").read_bytes()
        pixel_values = np.frombuffer(gzip.decompress(pixels), np.uint8, offset=16)
        images.append(pixel_values.reshape(-1, 28 * 28))
        labels.append(np.frombuffer(gzip.decompress(classes), np.uint8, offset=8))
    rows = Labelled(
        np.concatenate(images).astype(np.float32) / 255, np.concatenate(labels).astype(np.int64)
    )
    return rows, len(labels[-1])


def chest_xray(folder: Path | None) -> tuple[Labelled, int, npt.NDArray[np.int64]]:
    """(n, 56, 56) chest X-rays, 1 for pneumonia: the rows, official test rows last, how many, and whose.

    Of images that are there twice outside the test one is kept; no image is both in and outside it.
    """
    mosaic = external_file(folder, "chest-xray-pneumonia", "chest_xray_56x56_mosaic.png")
    meta = pd.read_csv(external_file(folder, "chest-xray-pneumonia", "meta.csv.gz"))
    with Image.open(mosaic) as picture:
        pixels = np.asarray(picture).reshape(_TILES, _SIDE, _TILES, _SIDE).swapaxes(1, 2)
    images = pixels.reshape(-1, _SIDE, _SIDE)[meta["index"]]
    test = np.asarray(meta["split"] == "test")
    repeated = np.asarray(meta["first_identical_index"] != meta["index"])
    order = np.concatenate([np.flatnonzero(~test & ~repeated), np.flatnonzero(test)])
    # Numbering begins anew in the test part: person1 there is somebody else.
    patients, _ = pd.factorize(np.where(test, "test/", "train/") + meta["patient"].astype(str))
    labels = np.asarray(meta["label"], dtype=np.int64)
    rows = Labelled(images[order].astype(np.float32) / 255, labels[order])
    return rows, int(test.sum()), patients[order].astype(np.int64)
