"""Power cuts: what a disk may hold of the first operations of a command, and the same command again."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from campaign.child import forked
from campaign.downloads import server
from campaign.kills import SLICES, fault_of_end, fault_of_look, undisturbed
from campaign.ledger import Case, Result, Row
from campaign.scenarios import SCENARIOS, refill
from campaign.tracing import Event

WAYS = ("nothing unsynced", "names only", "contents only", "torn", "mixed")


@dataclass
class _File:
    """A file: its content on the disk, and what was done to it since, in order."""

    synced: bytes = b""
    since: list[Event] = field(default_factory=list)


@dataclass
class _Folder:
    """A folder: its names on the disk, and the changes of names since, in order; None removes a name."""

    synced: dict[str, Any] = field(default_factory=dict)
    since: list[tuple[str, Any]] = field(default_factory=list)

    def names(self, count: int | None = None) -> dict[str, Any]:
        """Names after the first `count` changes, or after all."""
        found = dict(self.synced)
        for name, thing in self.since[:count]:
            found[name] = thing
        return {name: thing for name, thing in found.items() if thing is not None}


class Disk:
    """Model of a file system: a content is safe after fsync of its file, a name after fsync of its folder.

    Until then a content may be old, new, cut short or zeros, and changes of names within a folder may be lost from
    the last one backwards. This promises less than ext4, xfs or btrfs do.
    """

    def __init__(self, content: Mapping[str, bytes | None]) -> None:
        self.root = _Folder()
        for name, data in content.items():
            folder, last = self._place(name)
            folder.synced[last] = _Folder() if data is None else _File(data)

    def _place(self, path: str) -> tuple[_Folder, str]:
        folder = self.root
        *parents, last = path.split("/")
        for name in parents:
            folder = folder.names()[name]
        return folder, last

    def apply(self, event: Event) -> None:
        """Do what a program did."""
        if event.path == ".":
            self._sync(self.root, deep=event.kind == "sync all")
            return
        folder, name = self._place(event.path)
        thing = folder.names().get(name)
        if event.kind in ("create", "mkdir"):
            folder.since.append((name, _File() if event.kind == "create" else _Folder()))
        elif event.kind in ("write", "truncate"):
            if isinstance(thing, _File):  # else written to after it was removed
                thing.since.append(event)
        elif event.kind == "sync":
            self._sync(thing)
        elif event.kind in ("unlink", "rmdir"):
            folder.since.append((name, None))
        elif event.kind == "rename":
            other, target = self._place(event.target)
            folder.since.append((name, None))
            other.since.append((target, thing))

    def _sync(self, thing: Any, *, deep: bool = False) -> None:
        if isinstance(thing, _File):
            thing.synced, thing.since = written(thing.synced, thing.since), []
        elif isinstance(thing, _Folder):
            thing.synced, thing.since = thing.names(), []
            for inside in thing.synced.values() if deep else ():
                self._sync(inside, deep=True)

    def after(self, way: str, choose: random.Random) -> dict[str, bytes | None]:
        """Files that may be found after a power cut."""
        names = {"nothing unsynced": 0, "contents only": 0}.get(way)
        found: dict[str, bytes | None] = {}

        def walk(folder: _Folder, path: str) -> None:
            count = choose.randint(0, len(folder.since)) if way == "mixed" else names
            for name, thing in folder.names(count).items():
                if isinstance(thing, _Folder):
                    found[path + name] = None
                    walk(thing, f"{path}{name}/")
                else:
                    found[path + name] = content(thing)

        def content(file: _File) -> bytes:
            now = written(file.synced, file.since)
            if not file.since or way in ("nothing unsynced", "names only"):
                return file.synced
            if way == "contents only":
                return now
            kept = choose.randint(0, max(0, len(now) - 1))
            torn = (now[:kept], now[:kept] + bytes(len(now) - kept), now, file.synced)
            return choose.choice(torn[: 2 if way == "torn" else 4])

        walk(self.root, "")
        return found


def written(content: bytes, events: list[Event]) -> bytes:
    """Content of a file after writes and truncations."""
    for event in events:
        if event.kind == "truncate":
            content = content[: event.offset].ljust(event.offset, b"\0")
        else:
            content = content.ljust(event.offset, b"\0")
            content = content[: event.offset] + event.data + content[event.offset + len(event.data) :]
    return content


def states(disk: Disk, events: list[Event], seed: int) -> Iterator[tuple[int, str, dict[str, bytes | None]]]:
    """Every state that a power cut may leave: after how many events, in which way, and the files; each once."""
    known = set()
    for number in range(len(events) + 1):
        for way in WAYS:
            found = copy.deepcopy(disk).after(way, random.Random(f"{seed} {number} {way}"))
            digest = hashlib.sha256(repr(sorted(found.items())).encode()).digest()
            if digest not in known:
                known.add(digest)
                yield number, way, found
        if number < len(events):
            disk.apply(events[number])


def _slice(name: str, number: int, seed: int, folder: Path) -> Result:
    scenario, place = SCENARIOS[name], folder / "work"
    with server() if name.startswith("data") else nullcontext():
        known = undisturbed(scenario, place)
        lost, tried = [], 0
        for after, way, content in list(states(Disk(known.before), known.events, seed))[number::SLICES]:
            refill(place, content)
            seen = forked(partial(scenario.look, place))
            ended = forked(partial(scenario.command, place))
            tried += 1
            end = None if ended.how == "refused" else fault_of_end(ended, place, known)
            for why in (fault_of_look(seen, known), end):
                if why is not None:
                    event = known.events[max(0, after - 1)]
                    lost.append(f"after event {after}, {event.kind} {event.path}, {way}: {why}")
    return Result(tried, tuple(lost))


def _cases(seed: int) -> Iterator[Case]:
    work: Callable[..., Result] = _slice
    for name in SCENARIOS:
        for number in range(SLICES):
            yield Case(f"{name}/{number}", partial(work, name, number, seed))


ROWS = (
    Row(
        "power-cuts",
        "power cut after every file operation of the same commands: unsynced contents are old, torn or zero, "
        "unsynced names undone; after resuming, all files equal those of an undisturbed run, or the damage is "
        "reported",
        1000,
        _cases,
    ),
)
