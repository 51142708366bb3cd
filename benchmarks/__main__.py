"""`make bench`: measure every line of docs/benchmarks.md, on a CUDA device if there is one, else on the CPU."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks import cpu, fleets, gpu, growth, holding, training
from benchmarks.meters import Figure, machine, table

INTRODUCTION = """# Benchmarks

Machines are noisy, so each line compares two measurements of one run: read the ratio. `make bench` measures on the
machine at hand, with a CUDA device if there is one, and writes this page. "Extra memory" is the rise of memory
above its level before, results included. Times are medians.
"""
GROWTH = """## From 10^5 to 10^9 weights

![Time and memory grow linearly](growth.png)

On a GPU, time is constant up to about 10^7 weights, where the host dominates, and proportional beyond. The index
needs scratch memory of constant size. A cut needs one byte per weight for the mask; the search for its threshold
adds a constant and a small fraction.
"""
TITLES = {"weights": "Weights: measure, cut, hold", "training": "Training"}
WHERE = {"cpu": "on a CPU", "cuda": "on a GPU"}


def main() -> None:
    parts = [part for part in ("weights", "training") if part in sys.argv[1:]] or ["weights", "training"]
    folders = [Path(argument) for argument in sys.argv[1:] if argument not in parts]
    folder = folders[0] if folders else Path(__file__).parent.parent / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for part in parts:
        figures: list[Figure] = []
        for figure in weights(device) if part == "weights" else trained(device):
            figures.append(figure)
            text = f"{machine()}; {datetime.date.today()}; `python -m benchmarks {part}`\n\n{table(figures)}\n"
            (folder / f"{part}-{device}.md").write_text(text)
            print(figure, flush=True)
    if "weights" in parts:
        (folder / f"growth-{device}.json").write_text(json.dumps(growth.record(), indent=1) + "\n")
        growth.plot(folder)
    write_page(folder)


def weights(device: str) -> list[Figure]:
    """Measuring, cutting and holding masks."""
    if device == "cpu":
        return cpu.index() + cpu.global_cut() + holding.cost_per_step()
    bandwidth = gpu.copy_bandwidth()
    return gpu.index(bandwidth) + gpu.global_threshold(bandwidth) + holding.cost_per_step()


def trained(device: str) -> Iterable[Figure]:
    """Epochs of training."""
    return training.on_cpu() + fleets.on_cpu() if device == "cpu" else fleets.on_gpu()


def write_page(folder: Path) -> None:
    """Write docs/benchmarks.md from the tables of all machines."""
    pages = [INTRODUCTION]
    for part, title in TITLES.items():
        for device, where in WHERE.items():
            if (found := folder / f"{part}-{device}.md").exists():
                pages.append(f"## {title}, {where}\n\n{found.read_text()}")
        if part == "weights":
            pages.append(GROWTH)
    (folder / "benchmarks.md").write_text("\n".join(pages))


if __name__ == "__main__":
    main()
