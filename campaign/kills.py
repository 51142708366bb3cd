"""Kills at every write, sync, rename and truncate of the commands that write files, each resumed afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from campaign.child import Ended, forked
from campaign.downloads import server
from campaign.ledger import Case, Result, Row
from campaign.scenarios import SCENARIOS, Scenario, files, import_all, meanings, records, refill
from campaign.tracing import Event, Point, Tracer, points

SLICES = 12  # cases of a scenario; each takes every twelfth point


@dataclass(frozen=True)
class Undisturbed:
    """What a scenario does and leaves behind if nothing disturbs it."""

    before: Mapping[str, bytes | None]
    after: Mapping[str, Any]
    result: Any
    events: list[Event]
    seen_before: Mapping[str, Any]
    seen_after: Mapping[str, Any]


def undisturbed(scenario: Scenario, folder: Path) -> Undisturbed:
    """Run a scenario in `folder`; raise if it fails."""
    if scenario.look is records:
        import_all()
    refill(folder, {})
    value_of(forked(partial(scenario.prepare, folder)))
    before, seen_before = files(folder), value_of(forked(partial(scenario.look, folder)))
    result, events = value_of(forked(partial(_traced, scenario, folder)))
    seen_after = value_of(forked(partial(scenario.look, folder)))
    return Undisturbed(before, meanings(folder), result, events, seen_before, seen_after)


def value_of(ended: Ended) -> Any:
    """What a child returned; it must have come to its end."""
    if ended.how != "done":
        raise RuntimeError(f"the campaign could not begin: {ended}")
    return ended.value


def _traced(scenario: Scenario, folder: Path) -> tuple[Any, list[Event]]:
    tracer = Tracer(folder)
    tracer.install()
    return scenario.command(folder), tracer.events


def killed(scenario: Scenario, folder: Path, point: Point) -> None:
    """Run a scenario up to a point of its death."""
    Tracer(folder, point).install()
    scenario.command(folder)


def fault_of_look(seen: Ended, known: Undisturbed) -> str | None:
    """What is wrong with what a reader is told now: it must be old, new, a part of the new, or refused."""
    if seen.how != "done":
        return None if seen.how == "refused" else f"a reader {seen}"
    for name, value in seen.value.items():
        old, new = known.seen_before.get(name), known.seen_after.get(name)
        part = isinstance(value, list) and isinstance(new, list) and value == new[: len(value)]
        if value != old and value != new and not part:
            return f"a reader is told of {name!r} what is neither old nor new"
    return None


def fault_of_end(ended: Ended, folder: Path, known: Undisturbed) -> str | None:
    """What is wrong after the same command was run again."""
    if ended.how == "refused" and "exists; choose a new folder" in ended.why:  # it was killed when all was done
        ended = Ended("done", known.result)
    if ended.how != "done":
        return f"resuming {ended}"
    if ended.value != known.result:
        return f"another result: {ended.value}"
    found = meanings(folder)
    differ = [name for name in {**found, **known.after} if found.get(name, "") != known.after.get(name, "")]
    left = [name for name in differ if ".partial" in name or ".tmp" in name]
    if left and left == differ:
        return f"left behind: {', '.join(sorted(left)[:3])}"
    return f"other files: {', '.join(sorted(set(differ) - set(left))[:3])}" if differ else None


def _slice(name: str, number: int, folder: Path) -> Result:
    scenario, place = SCENARIOS[name], folder / "work"
    with server() if name.startswith("data") else nullcontext():
        known = undisturbed(scenario, place)
        lost, tried = [], 0
        for point in points(known.events)[number::SLICES]:
            refill(place, known.before)
            ended = forked(partial(killed, scenario, place, point))
            if ended.why != "signal 9":
                raise RuntimeError(f"{name} was to be killed at {point}, but {ended}")
            seen = forked(partial(scenario.look, place))
            ended = forked(partial(scenario.command, place))
            tried += 1
            event = known.events[point.number]
            for why in (fault_of_look(seen, known), fault_of_end(ended, place, known)):
                if why is not None:
                    lost.append(f"{'half of ' * point.half}{event.kind} {event.path}, event {point.number}: {why}")
    return Result(tried, tuple(lost))


def _cases(seed: int) -> Iterator[Case]:
    for name in SCENARIOS:
        for number in range(SLICES):
            yield Case(f"{name}/{number}", partial(_slice, name, number))


ROWS = (
    Row(
        "kills",
        "SIGKILL before or in the middle of every write, fsync, rename and truncate of `run`, `sweep`, `prune`, "
        "`prune_and_retrain` and `data get`; after resuming, all files equal those of an undisturbed run",
        300,
        _cases,
    ),
)
