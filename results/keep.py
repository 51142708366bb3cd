"""Pack the runs of a study for the record: `python -m results.keep RUNS STUDY`.

Masks, states and locks stay behind, and numbers keep six digits: far more than seeds leave certain, and less than
half of the size.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

from palmette.studies.rundir import find_runs

DIGITS = 6


def keep(runs: Path, study: Path) -> None:
    """Write `runs.tar.xz` in the folder `study` from the run folders in `runs`."""
    partial = study / "runs.tar.xz.partial"
    with tarfile.open(partial, "w:xz", preset=9) as archive:
        for run in find_runs(runs):
            records = "".join(f"{json.dumps(_short(record))}\n" for record in run.records())
            timings = "".join(f"{json.dumps(_short(timing))}\n" for timing in run.timings())
            for file, text in (
                (run.experiment, run.experiment.read_text()),
                (run.records_file, records),
                (run.timings_file, timings),
            ):
                entry = tarfile.TarInfo(f"{run.path.name}/{file.name}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
    partial.replace(study / "runs.tar.xz")


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    return [_short(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
