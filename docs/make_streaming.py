"""Measure checkpoints of 10^6 to 10^10 weights in bounded memory, and write a table of `docs/benchmarks.md`.

    python docs/make_streaming.py FOLDER [WEIGHTS ...]

FOLDER is on the disk to read from and has room for the largest file, 20 GB by default; files are deleted again.
They hold bfloat16 weights in tensors of 4096 x 4096. Before each reading the file is dropped from the page cache
(posix_fadvise, DONTNEED), so that all of it comes from the disk. It is compared with a sequential read of
the same file and nothing else, in blocks of 16 MB, just before and just after.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from marks import renewed

from palmette.checkpoints.writing import SafetensorsWriter

PAGE = Path(__file__).with_name("benchmarks.md")
SIDE = 4096
SIZES = (10**6, 10**7, 10**8, 10**9, 10**10)
CHILD = """
import json, sys, time
import palmette as pm
from palmette.cli.measure import EXAMPLE
pm.how_compressible(EXAMPLE)  # loads what is loaded once
start, worked = time.perf_counter(), time.process_time()
report = pm.how_compressible(sys.argv[1])
seconds, worked = time.perf_counter() - start, time.process_time() - worked
with open("/proc/self/status") as status:  # ru_maxrss begins with what the parent has
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "worked": worked, "peak": peak, "d": report.whole.d}))
"""


def make(file: Path, weights: int) -> None:
    """Gaussian weights whose scale differs from layer to layer, as trained ones do."""
    rows = max(1, weights // SIDE)
    shapes = [min(SIDE, rows - first) for first in range(0, rows, SIDE)]
    heads = {f"layers.{i}.weight": (torch.bfloat16, (n, SIDE)) for i, n in enumerate(shapes)}
    pool = torch.randn(2 * min(rows, SIDE), SIDE, generator=torch.Generator().manual_seed(0)).bfloat16()
    with SafetensorsWriter(file, heads, {"format": "pt"}) as written:
        for i, n in enumerate(shapes):
            first = 997 * i % (len(pool) - n + 1)
            written.add(pool[first : first + n] * (0.01 + 0.001 * (i % 20)))


def forget(file: Path) -> None:
    """Drop the file from the page cache."""
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def read_seconds(file: Path) -> float:
    """Of one sequential reading from the disk."""
    forget(file)
    buffer = bytearray(1 << 24)
    start = time.perf_counter()
    with file.open("rb", buffering=0) as handle:
        while handle.readinto(buffer):
            pass
    return time.perf_counter() - start


def measured(file: Path) -> dict[str, float]:
    """Seconds and peak memory of `how_compressible`, in a process of its own."""
    forget(file)
    done = subprocess.run([sys.executable, "-c", CHILD, str(file)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(folder: Path, sizes: tuple[int, ...]) -> str:
    lines = [
        "| weights | file | seconds | ns of CPU a weight | memory | read at | plainly | of it |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sizes:
        file = folder / "palmette-synthetic.safetensors"
        try:
            make(file, size)
            before = read_seconds(file)
            runs = [measured(file) for _ in range(1 if size >= 10**10 else 3)]
            plain = statistics.mean((before, read_seconds(file)))
            taken, total = file.stat().st_size, statistics.median(run["seconds"] for run in runs)
            worked = statistics.median(run["worked"] for run in runs)
        finally:
            file.unlink(missing_ok=True)
        cells = [
            f"{runs[0]['d']:,}",
            f"{taken / 1e6:,.0f} MB",
            f"{total:.2f}",
            f"{worked / runs[0]['d'] * 1e9:.1f}",
            f"{max(run['peak'] for run in runs) / 1e6:,.0f} MB",
            f"{taken / total / 1e9:.2f} GB/s",
            f"{taken / plain / 1e9:.2f} GB/s",
            f"{plain / total:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = table(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])) or SIZES)
    page = renewed(PAGE.read_text(encoding="utf-8"), "streaming", made, "make_streaming.py")
    PAGE.write_text(page, encoding="utf-8")
