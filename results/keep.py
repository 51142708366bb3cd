"""Pack the runs of a study for the record: `python -m results.keep RUNS STUDY`.

Masks, states and locks stay behind, and numbers keep six digits: far more than seeds leave certain, and less than
half of the size. Long studies come in pieces: a run on record stays, unless RUNS has as many rounds of it or more.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from palmette.studies.folder import find_runs

DIGITS = 6


def keep(runs: Path, study: Path) -> None:
    """Write `runs.tar.xz` in the folder `study` from what it has and from the run folders in `runs`."""
    found = {run.path.name: run for run in find_runs(runs)}
    if not found or not study.is_dir():
        raise FileNotFoundError(f"no run in {str(runs)!r}" if not found else f"no folder at {str(study)!r}")
    target, partial = study / "runs.tar.xz", study / "runs.tar.xz.partial"
    files = _on_record(target)
    for name, run in found.items():
        records = run.records()
        if files.get(f"{name}/{run.records_file.name}", "").count("\n") > len(records):
            continue
        files[f"{name}/{run.experiment.name}"] = run.experiment.read_text(encoding="utf-8")
        files[f"{name}/{run.records_file.name}"] = _lines(records)
        files[f"{name}/{run.timings_file.name}"] = _lines(run.timings())
    with tarfile.open(partial, "w:xz", preset=9) as archive:
        for path, text in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    partial.replace(target)


def _on_record(archive: Path) -> dict[str, str]:
    """The files of an archive by their paths; none where there is no archive."""
    if not archive.exists():
        return {}
    with tarfile.open(archive) as opened:
        members = [(entry.name, opened.extractfile(entry)) for entry in opened if entry.isfile()]
        return {name: file.read().decode() for name, file in members if file is not None}


def _lines(values: Iterable[object]) -> str:
    return "".join(f"{json.dumps(_short(value))}\n" for value in values)


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    return [_short(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python -m results.keep RUNS STUDY")
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
