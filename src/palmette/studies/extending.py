"""Extend a finished run by more rounds, where only their number ended it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from palmette.errors import RunDamaged
from palmette.files import replaced
from palmette.studies.experiment import SEALED, Experiment, with_checksum
from palmette.studies.folder import RunDir
from palmette.studies.record import AnyExperiment, experiment_of, records_of
from palmette.studies.search import attempts_of, bracket


def out_of_rounds(stopped: str | None) -> bool:
    """Whether a run ended for this reason because its number of rounds was reached.

    >>> out_of_rounds("30 rounds are done"), out_of_rounds("all retrainings are used"), out_of_rounds(None)
    (True, True, False)
    """
    return re.fullmatch(r"\d+ rounds? (is|are) done|.*all retrainings are used", stopped or "") is not None


def goes_on(records: Sequence[Mapping[str, Any]], rounds: int) -> bool:
    """Whether a run with these records continues if it may have so many rounds."""
    stopped = records[-1]["stopped"] if records else None
    return stopped is None or (out_of_rounds(stopped) and records[-1]["round"] < rounds)


def networks_to_keep(spec: AnyExperiment, records: Sequence[Mapping[str, Any]]) -> set[int] | None:
    """Rounds whose networks a longer search would start from; None if more rounds would not extend the run."""
    if not out_of_rounds(records[-1]["stopped"]):
        return None
    if spec.allowed_loss is None or not records[-1].get("search"):
        return set()
    found = bracket(attempts_of(records), spec.allowed_loss)
    starts = {end.attempts[0].start for end in (found.good, found.bad) if end is not None}
    return {found.best, *(start for start in starts if start is not None)}


def extends(there: AnyExperiment, asked: AnyExperiment, rundir: RunDir) -> bool:
    """Whether `asked` only adds rounds to the run `there`, and a checkpoint to resume from exists."""
    more = asked.rounds > there.rounds and replace(there, rounds=asked.rounds) == asked
    return more and goes_on(records_of(rundir), asked.rounds) and bool(rundir.checkpoint_numbers())


def longer(rundir: RunDir, spec: AnyExperiment) -> str:
    """Text of experiment.toml with only `rounds` and the id changed, so that existing checksums stay valid."""
    text = rundir.experiment.read_text(encoding="utf-8") if rundir.experiment.exists() else ""
    text, found = re.subn(r"(?m)^rounds = .*$", f"rounds = {spec.rounds}", text)
    if not found:  # a new folder, or one of version 1, which has no seals
        return spec.to_toml()
    text = re.sub(r"\A#.*", f"# {spec.id}", text)
    above, sealed, _ = text.rpartition(SEALED)
    return with_checksum(above) if sealed else text


def start_from_shorter(planned: Iterable[Experiment], out: Path, *, say: Callable[[str], None]) -> None:
    """Copy finished runs that only have fewer rounds to the folders of `planned` runs without one."""
    missing = {replace(e, rounds=0): e for e in planned if not RunDir(e.folder_in(out)).records_file.exists()}
    prefixes = {e.id.rpartition("-")[0] for e in missing.values()}
    found: dict[Experiment, tuple[int, RunDir]] = {}
    for file in out.glob("*/experiment.toml") if missing else ():
        with suppress(RunDamaged):
            if file.parent.name.rpartition("-")[0] in prefixes:
                rundir = RunDir(file.parent)
                there = experiment_of(rundir)
                asked = missing.get(replace(there, rounds=0)) if isinstance(there, Experiment) else None
                if asked and extends(there, asked, rundir) and records_of(rundir)[-1]["stopped"]:
                    longest = found.get(asked)
                    if longest is None or longest[0] < there.rounds:
                        found[asked] = (there.rounds, rundir)
    for asked, (_, rundir) in found.items():
        say(f"{asked.id} continues a copy of {rundir.path.name}")
        _copy(rundir, RunDir(asked.folder_in(out)), asked)


def _copy(source: RunDir, target: RunDir, spec: Experiment) -> None:
    """Copy a run for one with more rounds; the files that make a folder a run come last."""
    own = [source.experiment, source.records_file, source.timings_file, source.finished, source.lock_file]
    with target.lock():
        for file in sorted(source.path.rglob("*")):
            if file.is_file() and file not in own:
                place = target.path / file.relative_to(source.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                with replaced(place) as partial:
                    shutil.copyfile(file, partial)
        records = source.records()
        unfinished = [*records[:-1], {**records[-1], "stopped": None}]
        target.write_bytes(target.records_file.name, source.sealed_records(unfinished))
        target.write_text(target.experiment.name, longer(source, spec))
        for timing in source.timings():
            target.append_timing(timing)
