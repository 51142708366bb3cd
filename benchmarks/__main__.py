"""`make bench`: measure the tables of docs/benchmarks.md, on a CUDA device if there is one, else on the CPU."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks import cpu, fleets, gpu, growth, holding, training
from benchmarks.meters import Figure, machine, table

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> None:
    parts = [part for part in ("weights", "training") if part in sys.argv[1:]] or ["weights", "training"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for part in parts:
        figures: list[Figure] = []
        for figure in weights(device) if part == "weights" else trained(device):
            figures.append(figure)
            text = f"{machine()}; {datetime.date.today()}; `python -m benchmarks {part}`\n\n{table(figures)}\n"
            page = renewed(PAGE.read_text(encoding="utf-8"), f"{part}-{device}", text)
            PAGE.write_text(page, encoding="utf-8")
            print(figure, flush=True)
    if "weights" in parts:
        (PAGE.parent / f"growth-{device}.json").write_text(json.dumps(growth.record(), indent=1) + "\n")
        growth.plot(PAGE.parent)


def weights(device: str) -> list[Figure]:
    """Measuring, cutting and holding masks."""
    if device == "cpu":
        return cpu.index() + cpu.global_cut() + holding.cost_per_step()
    bandwidth = gpu.copy_bandwidth()
    return gpu.index(bandwidth) + gpu.global_threshold(bandwidth) + holding.cost_per_step()


def trained(device: str) -> Iterable[Figure]:
    """Epochs of training."""
    return training.on_cpu() + fleets.on_cpu() if device == "cpu" else fleets.on_gpu()


def renewed(page: str, name: str, text: str) -> str:
    """The page with the part between two marks replaced."""
    begin, end = f"<!-- {name}: written by benchmarks -->\n", f"\n<!-- end of {name} -->\n"
    (before, rest), (_, after) = page.split(begin), page.split(end)
    assert end in rest
    return f"{before}{begin}\n{text}{end}{after}"


if __name__ == "__main__":
    main()
