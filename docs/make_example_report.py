"""Make docs/example-report.html: `palmette report` of what `palmette run` leaves, in about a minute on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

REPORT = Path(__file__).with_name("example-report.html")


def main() -> None:
    palmette = [sys.executable, "-m", "palmette"]
    with TemporaryDirectory() as folder:
        run = [*palmette, "run", "--device", "cpu", "--out", f"{folder}/runs"]
        subprocess.run(run, stdout=subprocess.DEVNULL, check=True)
        title = "What palmette run gives: an MLP on handwritten digits"
        subprocess.run([*palmette, "report", f"{folder}/runs", "-o", REPORT, "--title", title], check=True)


if __name__ == "__main__":
    main()
