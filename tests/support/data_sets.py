"""Small data sets in the layouts of the real ones, and a fixture that hides the real ones."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

from palmette.training.data import data_set, pictures
from palmette.training.data import idx as idx_files


@pytest.fixture(autouse=True)
def no_other_data(tmp_path, monkeypatch):
    """Hide the data folders of this machine."""
    monkeypatch.delenv("PALMETTE_DATA", raising=False)
    for module in (data_set, pictures):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache" / "palmette")
    monkeypatch.setattr(idx_files, "FASHION_MNIST", replace(idx_files.FASHION_MNIST, system_folders=()))


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, *, train=20, test=10, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", train), ("t10k", test)):
        for what, array in (
            ("images-idx3", pixels(n, 28, 28)),
            ("labels-idx1", (np.arange(n) % 10).astype(np.uint8)),
        ):
            body = idx(array)
            name = f"{part}-{what}-ubyte"
            (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(body) if packed else body)
    return folder
