"""Run the ladders, or what is missing of them; see `prediction.ladders`."""

import sys
from pathlib import Path

import torch

from prediction.ladders import run, tables

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("python -m prediction FOLDER [PROCESSES] [DATA-MODEL]")
    folder, *rest = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    failed = run(
        Path(folder),
        device="cuda" if torch.cuda.is_available() else "cpu",
        processes=int(rest[0]) if rest else 1,
        only=rest[1] if len(rest) > 1 else "",
    )
    tables(Path(folder))
    sys.exit(f"{failed} fleets failed; the same command runs them again" if failed else 0)
