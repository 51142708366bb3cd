"""Damage to every file of finished and interrupted runs, and of cut and packed checkpoints, read afterwards."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import palmette as pm
from campaign.child import REFUSALS, Ended, Refused, forked
from campaign.kills import killed, undisturbed, value_of
from campaign.ledger import Case, Result, Row
from campaign.scenarios import (
    SCENARIOS,
    VOLATILE,
    Scenario,
    files,
    import_all,
    meanings,
    measured,
    output_of,
    palmette,
    refill,
    state_of,
)
from campaign.tracing import Point
from palmette.checkpoints.formats.safetensors import masks_file
from palmette.pruning.masks import Masks
from palmette.studies.folder import find_runs
from palmette.studies.trainers.snapshots import read_good

TRIALS = 40  # in a case
_NAMED = re.compile(
    "damage|not match|unsealed|left out|no readable|missing|of another|no file at|could not be read|restore"
    "|start again|another folder|other weights|palmette reads|one reads|not written by|would unpack",
    re.IGNORECASE,
)
_TIMES = ["seconds", "images_per_second", "members"]


@dataclass(frozen=True)
class Subject:
    """Files to damage.

    Args:
        make: fills a folder with them.
        readers: what is read afterwards, by name; "says" are texts, where naming the damage is enough.
        cases: how many there are.
    """

    make: Callable[[Path], None]
    readers: Mapping[str, Callable[[Path], Any]]
    cases: int


def damages(content: Mapping[str, bytes], choose: random.Random) -> tuple[str, dict[str, bytes | None]]:
    """One damage: in words, and the files that it changes; None removes a file."""
    while True:
        name = choose.choice(sorted(content))
        data, suffix = content[name], Path(name).suffix
        text = suffix in (".toml", ".jsonl", ".json", ".txt")
        kind = choose.choice(["flip", "flip", "cut", "swap", "remove", *(["digit", "line"] if text else [])])
        if kind == "remove" and name.endswith(".masks.safetensors"):
            continue  # weights without their masks are a whole checkpoint
        if kind == "remove":
            return f"{name} removed", {name: None}
        if not data:
            continue
        where = choose.randrange(len(data))
        if kind == "flip":
            bit = choose.randrange(8)
            flipped = data[:where] + bytes([data[where] ^ 1 << bit]) + data[where + 1 :]
            return f"{name} bit {bit} of byte {where} flipped", {name: flipped}
        if kind == "cut":
            return f"{name} cut to {where} bytes", {name: data[:where]}
        if kind == "swap":
            others = [n for n in sorted(content) if Path(n).suffix == suffix and content[n] != data]
            if others:
                other = choose.choice(others)
                return f"{name} and {other} swapped", {name: content[other], other: data}
        if kind == "digit" and (digits := [m.start() for m in re.finditer(rb"\d", data)]):
            where = choose.choice(digits)
            digit = str((int(data[where : where + 1]) + choose.randint(1, 9)) % 10).encode()
            return f"{name} byte {where} made {digit.decode()}", {name: data[:where] + digit + data[where + 1 :]}
        if kind == "line":
            lines = data.splitlines(keepends=True)
            number = choose.randrange(len(lines))
            return f"{name} without line {number + 1}", {name: b"".join(lines[:number] + lines[number + 1 :])}


def read(subject: Subject, folder: Path) -> dict[str, Ended]:
    """What every reader is told."""
    found = {}
    for name, reader in subject.readers.items():
        try:
            found[name] = Ended("done", reader(folder))
        except (Refused, *REFUSALS) as error:
            found[name] = Ended("refused", why=f"{type(error).__name__}: {error}")
        except Exception as error:
            found[name] = Ended("raised", why=f"{type(error).__name__}: {error}")
    return found


def fault(known: Mapping[str, Ended], now: Ended, *, times: bool) -> str | None:
    """What a reader was told that is not the same and does not name the damage; `times` are damaged, and shown."""
    if now.how != "done":
        return f"reading {now}"
    for name, there in now.value.items():
        if there.how == "refused" and _NAMED.search(there.why):
            continue
        if there.how != "done":
            return f"{name} {there}"
        said = name.startswith("says")
        if there.value != known[name].value and not (said and (times or _NAMED.search(str(there.value)))):
            return f"{name} is told something else"
    return None


# What is damaged.


def _of(name: str, folder: Path) -> None:
    SCENARIOS[name].prepare(folder)
    SCENARIOS[name].command(folder)


def _interrupted(name: str, share: float, folder: Path) -> None:
    """Folder of a run killed when `share` of its operations was done."""
    scenario = SCENARIOS[name]
    known = undisturbed(scenario, folder)
    refill(folder, known.before)
    value_of(Ended("done") if forked(partial(killed, scenario, folder, Point(int(share * len(known.events))))).why
             == "signal 9" else Ended("raised"))  # fmt: skip


def _resumed(scenario: Scenario, folder: Path) -> Any:
    result = scenario.command(folder)
    return result, meanings(folder)


def _says_report(folder: Path) -> str:
    page = folder.with_name("report.html")
    said = output_of("report", folder, "-o", page)
    return said.replace(str(page), "") + page.read_text(encoding="utf-8")


def _table(folder: Path) -> str:
    found = pm.read_runs(folder)
    return str(found.drop(columns=_TIMES).to_csv())


def _masks(folder: Path) -> list[Any]:
    """Every mask that a record speaks of."""
    return [
        (run.path.name, record["round"], state_of(run.load_masks(record["round"])))
        for run in find_runs(folder)
        for record in run.records()
    ]


def _returned(folder: Path) -> list[list[str]]:
    return [state_of(read_good(run)["state_dict"]) for run in find_runs(folder)]


def _next_cut(folder: Path) -> list[str]:
    out = folder.with_name("next.safetensors")
    masks = masks_file(out)
    for file in (out, masks):
        file.unlink(missing_ok=True)  # of the last trial
    palmette("prune", folder / "out.safetensors", "-o", out, "--density", 0.1)
    return [measured(out), *state_of(Masks.load(masks))]


def _unpacked(folder: Path) -> bytes:
    out = folder.with_name("plain.safetensors")
    out.unlink(missing_ok=True)
    palmette("unpack", folder / "out.safetensors", "-o", out)
    return out.read_bytes()


_RUNS: Mapping[str, Callable[[Path], Any]] = {
    "says show": lambda folder: output_of("show", folder / "runs"),
    "says table": lambda folder: output_of("table", folder / "runs"),
    "read_runs": lambda folder: _table(folder / "runs"),
    "masks": lambda folder: _masks(folder / "runs"),
}
_OWN: Mapping[str, Callable[[Path], Any]] = {
    "says show": lambda folder: output_of("show", folder / "run"),
    "read_runs": lambda folder: _table(folder / "run"),
    "masks": lambda folder: _masks(folder / "run"),
    "returned": lambda folder: _returned(folder / "run"),
    "resuming": SCENARIOS["prune_and_retrain"].command,
}
SUBJECTS = {
    "finished-run": Subject(partial(_of, "run"), _RUNS, 14),
    "finished-page": Subject(
        partial(_of, "run"), {"says report": lambda folder: _says_report(folder / "runs")}, 1
    ),
    "finished-search": Subject(
        partial(_of, "run-search"), {**_RUNS, "returned": lambda folder: _returned(folder / "runs")}, 8
    ),
    "finished-own": Subject(partial(_of, "prune_and_retrain"), _OWN, 8),
    **{
        f"interrupted-{kind}-{share}": Subject(
            partial(_interrupted, name, share / 100), {"resuming": partial(_resumed, SCENARIOS[name])}, 4
        )
        for kind, name in (("run", "run"), ("own", "prune_and_retrain"))
        for share in (40, 70)
    },
    "pruned": Subject(
        partial(_of, "prune"),
        {"measure": lambda folder: measured(folder / "out.safetensors"), "next cut": _next_cut},
        7,
    ),
    "packed": Subject(
        partial(_of, "prune-pack"),
        {"load": lambda folder: state_of(pm.load(folder / "out.safetensors")), "unpack": _unpacked},
        7,
    ),
}


def _case(name: str, number: int, seed: int, folder: Path) -> Result:
    subject, place = SUBJECTS[name], folder / "work"
    if name not in ("pruned", "packed"):
        import_all()
    place.mkdir()
    if name.startswith("interrupted"):
        subject.make(place)  # makes children of its own
    else:
        value_of(forked(partial(subject.make, place)))
    whole = files(place)
    known = value_of(forked(partial(read, subject, place)))
    if wrong := [f"{reader} {ended}" for reader, ended in known.items() if ended.how != "done"]:
        raise RuntimeError(f"{name} cannot be read undamaged: {wrong}")
    choose, lost = random.Random(f"{seed} {name} {number}"), []
    damageable = {n: data for n, data in whole.items() if data is not None and _belongs(n)}
    for _ in range(TRIALS):
        words, changed = damages(damageable, choose)
        refill(
            place, {n: data for n, data in {**whole, **changed}.items() if data is not None or n not in changed}
        )
        now = forked(partial(read, subject, place))
        times = any(Path(n).name in VOLATILE for n in changed)
        if (why := fault(known, now, times=times)) is not None:
            lost.append(f"{words}: {why}")
    shutil.rmtree(place)
    return Result(TRIALS, tuple(lost))


def _belongs(name: str) -> bool:
    """Whether a file is one that palmette reads: not an input, a table or a figure."""
    return Path(name).name not in ("lock", "model.safetensors") and not name.endswith((".png", ".txt"))


def _cases(seed: int) -> Iterator[Case]:
    for name, subject in SUBJECTS.items():
        for number in range(subject.cases):
            yield Case(f"{name}/{number}", partial(_case, name, number, seed))


ROWS = (
    Row(
        "damage",
        "bit flips, changed digits, removed lines and files, truncated and swapped files, in finished and "
        "interrupted runs and in pruned and packed checkpoints; the damage is reported, or all that is read is "
        "unchanged",
        2000,
        _cases,
    ),
)
