"""`make bench`: every figure of docs/benchmarks.md, on the CPU or, where there is one, on the CUDA device."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import torch

from benchmarks import cpu, gpu, growth, holding
from benchmarks.meters import Figure, machine, table


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
    print(text)


if __name__ == "__main__":
    main()
