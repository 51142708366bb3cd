"""Draw docs/run.png and the table of the quick start: what `palmette run` gives, in about a minute on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from marks import renewed

HERE = Path(__file__).parent
PAGE = HERE / "quick-start.md"


def main() -> None:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "palmette", "run", "--device", "cpu", "--out", folder]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        seconds, last = time.monotonic() - began, json.loads(lines[-1])
        shutil.copyfile(last["figure"], HERE / "run.png")
    part = f"{_table(last['summary'])}\n\n{_under(last['summary'], seconds)}\n"
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), "run", part, "make_run.py"), encoding="utf-8")


def _table(summary: Sequence[Mapping[str, Any]]) -> str:
    moments = ("kept", "end")
    ends = (f"{moment}: {what}, %" for moment in moments for what in ("density", "accuracy"))
    titles = ("method", "dense: accuracy, %", *ends)
    lines = [titles, ("---", *("---:" for _ in titles[1:]))]
    for row in summary:
        cells = [_in_percent(row["dense"]["accuracy"])]
        for moment in moments:
            cells += [_in_percent(row[moment]["density"]), _in_percent(row[moment]["accuracy"])]
        lines.append((row["method"], *cells))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _under(summary: Sequence[Mapping[str, Any]], seconds: float) -> str:
    seeds, threads = max(row["runs"] for row in summary), torch.get_num_threads()
    speed = f"{seconds:.0f} s with {threads} thread{'s' if threads > 1 else ''} on {os.cpu_count()} CPU cores"
    return f"Mean ± sd over {seeds} seeds; `palmette run`, {speed}, torch {torch.__version__.partition('+')[0]}."


def _in_percent(pair: Sequence[float]) -> str:
    mean, deviation = (100 * value for value in pair)
    digits = 1 if mean >= 1 else 2
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


if __name__ == "__main__":
    main()
