"""`palmette show`: settings, state and records of a run."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.display.live import in_short
from palmette.cli.display.printing import (
    JSON,
    console_of_stdout,
    fitted,
    plain_table,
    print_text,
    width_of,
    wrapped,
)
from palmette.cli.options import PATH
from palmette.errors import RunDamaged
from palmette.reports.limits import limit_of
from palmette.studies.experiment import Experiment, OwnExperiment
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.record import AnyExperiment, Record, experiment_of, records_of
from palmette.studies.search import shown_score
from palmette.studies.settings import slug
from palmette.studies.status import standing
from palmette.words import counted, duration, measured, size

if TYPE_CHECKING:
    from rich.console import Console


_SPARE = (("disk",), ("PQ Index",), ("round",), ("density",))  # columns that a narrow terminal lacks


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=PATH, default=Path("runs"))
@JSON
def show(folder: Path, as_json: bool) -> None:
    """List the runs in a folder, or show one run round by round.

    FOLDER is `runs` by default: each run is a line. The folder of one run shows its settings, state and rounds.
    Reading does not disturb a process that trains a run.
    """
    runs = find_runs(folder)
    if not runs:
        raise ValueError(f"no run in {str(folder)!r}; `palmette run` makes some, in `runs` by default")
    alone = runs[0].path == folder
    found = [_read(run, bits=True) if alone else _read_or_damage(run) for run in runs]
    if as_json:
        click.echo(json.dumps(found[0] if alone else found, indent=1, allow_nan=False))
        return
    if alone:
        _print_one(console_of_stdout(), found[0])
    else:
        _print_many(console_of_stdout(), found, folder)


def _read_or_damage(run: RunDir) -> dict[str, Any]:
    """Result of `_read`, or the damage of the folder, so that other runs are shown."""
    try:
        return _read(run)
    except RunDamaged as error:
        names = "label stopped owner failure settings rounds epochs epoch seconds go_on how_far precision sealed"
        known = {"run": run.path.name, "folder": str(run.path), "state": "damaged", "damage": str(error)}
        return known | dict.fromkeys(names.split()) | {"rounds_done": 0, "bytes": run.size(), "records": []}


def _read(run: RunDir, *, bits: bool = False) -> dict[str, Any]:
    """Everything that is shown, as plain values; `bits` also reads masks and the answer, to notice damage."""
    experiment, records, timings = experiment_of(run), records_of(run), run.timings()
    now = standing(run, records=records)
    if bits:
        from palmette.studies.trainers.snapshots import good_damage  # imports torch

        now = replace(now, damage=run.mask_damage(records, only_heads=False) or good_damage(run))
    limit = limit_of((experiment, records))
    return {
        "run": experiment.id,
        "label": experiment.label,
        "folder": str(run.path),
        "state": now.state,
        "damage": now.damage,
        "owner": now.owner,
        "stopped": now.stopped,
        "failure": now.failure,
        "settings": experiment.differences(),
        "rounds": experiment.rounds,
        "epochs": experiment.epochs,
        "rounds_done": now.rounds,
        "epoch": now.epoch,
        "seconds": sum(timing["seconds"] for timing in timings) if timings or not records else None,
        "bytes": run.size(),
        "go_on": None if now.stopped is not None else _how_to_resume(run, experiment),
        "how_far": None if limit is None else str(limit),
        "precision": None if limit is None else limit.precision,
        "sealed": now.sealed,
        "records": [Record.from_json(record).flat() for record in records],
    }


def _how_to_resume(run: RunDir, experiment: AnyExperiment) -> str:
    if isinstance(experiment, OwnExperiment):
        return f"call prune_and_retrain again, as before, with folder={str(run.path)!r}"
    place = run.path.resolve()
    if experiment.folder_in(place.parent) != place:
        return f"{shlex.join(['mv', str(run.path), str(run.path.with_name(experiment.id))])} && …"
    file, parent = os.path.relpath(run.experiment), os.path.relpath(run.path.parent)
    return shlex.join(["palmette", "run", file, *(["--out", parent] if parent != "runs" else [])])


def _where(found: Mapping[str, Any]) -> str:
    """State of a run and its place, as text."""
    if found["state"] == "finished":
        return f"finished: {found['stopped']}"
    place = f"round {found['rounds_done']} of {found['rounds']}"
    if found["epochs"]:  # unknown for `prune_and_retrain`
        place += f", {found['epoch']} of {counted(found['epochs'], 'epoch')} saved"
    if found["state"] == "running":
        return f"running, {place}, by {found['owner']}"
    return f"interrupted, {place}" if found["state"] == "interrupted" else "new: nothing is saved yet"


def _print_one(console: Console, found: Mapping[str, Any]) -> None:
    settings = ", ".join(f"{name} = {json.dumps(value)}" for name, value in found["settings"].items())
    if found["epochs"]:  # 0 for `prune_and_retrain`, which has defaults of its own
        settings = f"{settings}; others have their defaults" if settings else "all have their defaults"
    facts = {
        "method": found["label"],
        "settings": settings,
        "state": f"damaged: {found['damage']}" if found["damage"] else found["failure"] or _where(found),
        "unsealed": None if found["sealed"] else "written by an earlier version: damaged numbers go unnoticed",
        "how far": found["how_far"],
        "precision": found["precision"],
        "time": "unknown" if found["seconds"] is None else duration(found["seconds"]),
        "disk": size(found["bytes"]),
        "resume": found["go_on"],
    }
    console.print(found["run"], style="bold", soft_wrap=True)
    for name, text in facts.items():
        if text is not None:
            width = 10_000 if name == "resume" else console.width - 10  # a command stays whole
            console.print(f"{name:<9} {wrapped(text, width).replace(chr(10), chr(10) + ' ' * 10)}", soft_wrap=True)
    if not found["records"]:
        return
    scores, searched = _scores(found), "good" in found["records"][0]
    decided = {name: scores.pop(name) for name in ("held-out",) if searched and name in scores}
    titles = ("density", "kept", "PQ Index", "Gini", "dead\nneurons", "cut\nnext")
    table = plain_table("round", *scores, *titles, *decided, *(["verdict"] if searched else []))
    for row, r in enumerate(found["records"]):
        measures = (measured(r["pq_index"]), measured(r["gini_index"]))
        counts = (f"{r['dead_neurons']:,}", f"{r['cut_weights']:,}")
        left = (_percent(r["density"], 2), f"{r['kept']:,}")
        shown, score = ([column[row] for column in columns.values()] for columns in (scores, decided))
        table.add_row(str(r["round"]), *shown, *left, *measures, *counts, *score, *_verdict(r))
    console.print()
    console.print(table)


def _print_many(console: Console, found: list[dict[str, Any]], folder: Path) -> None:
    names = {"run": [one["run"] + (f" in {_folder(one)}" if _folder(one) else "") for one in found]}
    score = "score" if any(map(_is_own, found)) else "accuracy"
    titles = ("round", score, "density", "PQ Index", "disk")
    numbers = dict(zip(titles, zip(*map(_numbers, found), strict=True), strict=True))
    state = {"state": [_state(one) for one in found]}
    if width_of({**names, **numbers, **state}) > console.width + 1:
        names = _names_in_columns(found)
    folded = {title: [word for cell in cells for word in cell.split()] for title, cells in (names | state).items()}
    columns = {**names, **fitted(numbers, console.width + 1 - width_of(folded), _SPARE), **state}
    words = ({*names} - {"seed"}) | {"state"}
    console.print(plain_table(*columns, words=words, rows=zip(*columns.values(), strict=True)))
    for one in found:
        if one["damage"] or one["failure"]:
            print_text(console, f"{_state(one)}: {one['damage'] or one['failure']}")
    states = [one["state"] for one in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if unsealed := sum(one["sealed"] is False for one in found):
        counts += f"; {unsealed} unsealed"
    total = size(sum(one["bytes"] for one in found))
    lying = [one for one in found if Path(one["folder"]).is_relative_to(folder)]  # the others are in an archive
    example = next((one for one in lying if not one["damage"]), lying[0] if lying else None)
    hint, place = ("One of them", example["folder"]) if example else ("All of them", str(folder))
    command = f"palmette {'show' if example else 'table'} {shlex.quote(place)}"
    print_text(console, f"\n{counts}; {total}. {hint} round by round:\n  {command}")


def _numbers(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Round, accuracy, density, PQ Index and size of a run."""
    accuracy = density = index = ""
    if one["records"]:
        last = one["records"][one["records"][-1].get("answer", -1)]
        accuracy = shown_score(_score(last)) if _is_own(one) else _percent(last["test_accuracy"])
        density, index = _percent(last["density"], 2), measured(last["pq_index"])
    rounds = "" if one["settings"] is None else f"{max(0, one['rounds_done'] - 1)}/{one['rounds']}"
    return rounds, accuracy, density, index, size(one["bytes"])


def _folder(one: Mapping[str, Any]) -> str:
    """Name of the folder if it is not the id, as for runs of `prune_and_retrain`."""
    name = Path(one["folder"]).resolve().name
    return "" if name == one["run"] else name


def _state(one: Mapping[str, Any]) -> str:
    return in_short(one["stopped"]) if one["state"] == "finished" else str(one["state"])


def _names_in_columns(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Columns that distinguish the runs, instead of their ids."""
    kinds = [OwnExperiment if _is_own(one) else Experiment for one in found]
    them = [
        None if one["settings"] is None else kind(**one["settings"])
        for kind, one in zip(kinds, found, strict=True)
    ]
    names = {
        "data": [slug(e.data) if e else "" for e in them],
        "model": [slug(e.model) if e else "" for e in them],
        "method": [e.label if e else f"…{one['run'][-15:]}" for e, one in zip(them, found, strict=True)],
        "seed": [str(e.seed) if e else "" for e in them],
    }
    for name in ("data", "model"):
        if len({*names[name]} - {""}) <= 1:
            del names[name]
    if len({*zip(*names.values(), strict=True)}) < len(found):
        names["folder"] = [_folder(one) or f"…{one['run'][-9:]}" for one in found]
    return names


def _is_own(one: Mapping[str, Any]) -> bool:
    """Whether it is a run of `prune_and_retrain`, whose scores may be of any kind."""
    return "run" in (one["settings"] or ())


def _scores(one: Mapping[str, Any]) -> dict[str, list[str]]:
    """Columns of scores by title: accuracies, or what the user's functions returned; and what decided a search."""
    records = one["records"]
    decided = [shown_score(r["score"]) for r in records] if "good" in records[0] else []
    if not _is_own(one):
        columns = {"accuracy": [_percent(r["test_accuracy"]) for r in records]}
        columns["train"] = [_percent(r["train_accuracy"]) for r in records]
        return columns | ({"held-out": decided} if decided else {})
    columns = {}
    for part in ("test", "train", "validation"):
        values = [_of(part, r) for r in records]
        if any(value is not None for value in values):
            columns["held-out" if part == "validation" else part] = list(map(shown_score, values))
    judge = "held-out" if "held-out" in columns else "train"
    return columns | ({judge: decided} if decided else {})


def _of(part: str, record: Mapping[str, Any]) -> float | None:
    """Score of a part of the data in a run of `prune_and_retrain`."""
    score: float | None = record.get(f"{part}_score", record[f"{part}_accuracy"])
    return score


def _score(record: Mapping[str, Any]) -> float | None:
    """Score that says most: that of the test, else the one that decided."""
    found = (_of("test", record), record.get("score"), _of("validation", record), _of("train", record))
    return next((score for score in found if score is not None), None)


def _verdict(record: Mapping[str, Any]) -> list[str]:
    """Decision about a round of a search; nothing for other rounds."""
    if "good" not in record:
        return []
    again = "" if record["repeats"] is None else f", as {record['repeats']}"
    return [f"{'good' if record['good'] else 'too few'}{again}"]


def _percent(value: float | None, digits: int = 1) -> str:
    return "none" if value is None else f"{value:.{digits}%}"
