"""Make docs/example-report.html, `palmette report` of what `palmette run` leaves, and report.png, its upper part.

In about a minute on a CPU. The picture is Chromium's, which needs no window; without it the old one stays.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

REPORT = Path(__file__).resolve().with_name("example-report.html")
PICTURE = REPORT.with_name("report.png")
WIDTH, HEIGHT = 1400, 1384


def main() -> None:
    palmette = [sys.executable, "-m", "palmette"]
    with TemporaryDirectory() as folder:
        run = [*palmette, "run", "--device", "cpu", "--out", f"{folder}/runs"]
        subprocess.run(run, stdout=subprocess.DEVNULL, check=True)
        title = "What palmette run gives: an MLP on handwritten digits"
        subprocess.run([*palmette, "report", f"{folder}/runs", "-o", REPORT, "--title", title], check=True)
    picture()


def picture() -> None:
    """A screenshot of the report."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        print(f"{PICTURE.name} is left as it is: no browser, apt-get install chromium", file=sys.stderr)
        return
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=9000"]
    size = f"--window-size={WIDTH},{HEIGHT}"
    command = [browser, *flags, size, f"--screenshot={PICTURE}", REPORT.as_uri()]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
