"""Measure time and memory, name the machine, and print a table."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy
import torch


@dataclass(frozen=True)
class Figure:
    """One line of the table: a measurement, compared with another of the same run."""

    what: str
    ours: str
    compared_with: str = ""
    theirs: str = ""
    ratio: str = ""


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median wall time of `work` after one warm-up run; waits for the device."""
    work()
    times = []
    for _ in range(repeats):
        _finish()
        start = time.perf_counter()
        work()
        _finish()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def device_seconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Median time on the device, between two CUDA events, without the time of the host."""
    work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)  # half a millisecond for the host to get ahead
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def extra_bytes(work: Callable[[], object]) -> int:
    """Peak memory of `work`, result included, above the level before: of the device, or else of this process."""
    if torch.cuda.is_available():
        _finish()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        _finish()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # or freed memory would be used again, unseen
    Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def table(figures: list[Figure]) -> str:
    """Markdown table."""
    head = ("what", "palmette", "compared with", "its value", "ratio")
    lines = [head, ("---",) * len(head), *map(astuple, figures)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Hardware and versions, for the heading of a table."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    parts = [f"{cpu or platform.processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        driver = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        ).stdout.strip()
        parts.append(f"{torch.cuda.get_device_name()}, driver {driver}")
    parts.append(f"Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}")
    return "; ".join(parts)


def ms(value: float) -> str:
    """Seconds as text with three digits."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.2f} s"


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _status(field: str) -> int:
    line = next(line for line in _lines("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
