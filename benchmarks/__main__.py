"""`make bench`: every figure of docs/benchmarks.md, on the CPU or, where there is one, on the CUDA device."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import torch

from benchmarks import cpu, gpu, growth, holding
from benchmarks.meters import Figure, machine, table

INTRODUCTION = """# Benchmarks

Each line is measured beside something else in the same run, because machines are noisy; the ratio is what counts.
`make bench` runs them on the machine at hand, with a CUDA device if there is one, and writes this page. "Extra
memory" is how far memory rose above where it stood, results included. Times are medians.
"""
GROWTH = """## From 10^5 to 10^9 weights

![Time and memory grow linearly](growth.png)

Time is constant up to some 10^7 weights on a GPU, where it is the host's, and in proportion from there on. The
index needs scratch memory of constant size; of a cut, the mask is one byte per weight, and the search for the
threshold a constant and a small share.
"""
TITLES = {"cpu": "On a CPU", "cuda": "On a GPU"}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    figures: list[Figure] = []
    if device == "cuda":
        bandwidth = gpu.copy_bandwidth()
        figures += gpu.index(bandwidth) + gpu.global_threshold(bandwidth)
    else:
        figures += cpu.index() + cpu.global_cut()
    figures += holding.cost_per_step()
    text = f"{machine()}; {datetime.date.today()}; `python -m benchmarks`\n\n{table(figures)}\n"
    (folder / f"benchmarks-{device}.md").write_text(text)
    (folder / f"growth-{device}.json").write_text(json.dumps(growth.record(), indent=1) + "\n")
    growth.plot(folder)
    write_page(folder)
    print(text)


def write_page(folder: Path) -> None:
    """docs/benchmarks.md from the tables of the machines it was run on."""
    parts = [INTRODUCTION]
    for device, title in TITLES.items():
        part = folder / f"benchmarks-{device}.md"
        if part.exists():
            parts.append(f"## {title}\n\n{part.read_text()}")
    (folder / "benchmarks.md").write_text("\n".join([*parts, GROWTH]))


if __name__ == "__main__":
    main()
