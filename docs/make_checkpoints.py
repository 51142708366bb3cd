"""Measure real checkpoints, and write a table of `docs/without-retraining.md`.

    python docs/make_checkpoints.py RESNETS [NAME=CHECKPOINT ...]

RESNETS is a folder with resnet20-12fca82f.th, resnet32-d509ac18.th and resnet44-014dd654.th (Idelbayev,
pytorch_resnet_cifar10). CIFAR10, for make_headroom.py, is a folder with the official test_batch.bin.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from marks import renewed
from torch import Tensor

import palmette as pm
from palmette.pruning.methods import SCOPES

PAGE = Path(__file__).with_name("without-retraining.md")
RESNETS = {"ResNet-20": ("resnet20-12fca82f.th", 3), "ResNet-32": ("resnet32-d509ac18.th", 5)}
RESNETS["ResNet-44"] = ("resnet44-014dd654.th", 7)
VERDICTS = {"flatter than": "below noise", "about that of": "as noise", "more unequal than": "above noise"}
MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, with which they were trained


def test_set(folder: Path) -> tuple[Tensor, Tensor]:
    """The 10,000 test images, normalised, and their labels."""
    raw = np.fromfile(folder / "test_batch.bin", np.uint8).reshape(10_000, 1 + 3072)
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, sd = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, SD))
    return (images - mean) / sd, torch.from_numpy(raw[:, 0].astype(np.int64))


def measure_table(checkpoints: dict[str, Path]) -> str:
    """What `palmette measure` says of each."""
    heads = "| checkpoint | weights | PQ Index | Gini | Hoyer | neuron | layer | global | verdict | s |"
    lines = [heads, "|---|---:|---:|---:|---:|---:|---:|---:|---|---:|"]
    for name, path in checkpoints.items():
        seconds = math.inf
        for _ in range(3):
            start = time.perf_counter()
            report = pm.how_compressible(path)
            seconds = min(seconds, time.perf_counter() - start)
        whole = report.whole
        indices = [f"{x:.3f}" for x in (whole.pq_index, whole.gini_index, whole.hoyer)]
        cuts = [f"{whole.share_cut(scope):.1%}" for scope in SCOPES]
        words = next(short for said, short in VERDICTS.items() if said in report.verdict[1])
        words += ", quantised" if whole.coding else ""
        cells = [name, f"{whole.d:,}", *indices, *cuts, words, f"{seconds:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    resnets = Path(sys.argv[1])
    files = {name: resnets / file for name, (file, _) in RESNETS.items()}
    files |= {name: Path(path) for name, path in (given.split("=", 1) for given in sys.argv[2:])}
    page = PAGE.read_text(encoding="utf-8")
    page = renewed(page, "verdicts", measure_table(files), "make_checkpoints.py")
    PAGE.write_text(page, encoding="utf-8")
