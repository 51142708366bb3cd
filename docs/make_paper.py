"""Draw docs/paper-fig2.png: Figure 2 of the paper, scaled down; some minutes on two CPU cores."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent


def main() -> None:
    with TemporaryDirectory() as folder:
        scaled = ["--epochs", "2", "--seeds", "0..1", "--device", "cpu", "--out", folder]
        subprocess.run([sys.executable, "-m", "palmette", "paper", "fig2", *scaled], check=True)
        shutil.copy(Path(folder) / "fig2-e2-n2.png", HERE / "paper-fig2.png")


if __name__ == "__main__":
    main()
