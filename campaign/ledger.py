"""Rows of the campaign, and the file on disk that each of them resumes from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


@dataclass(frozen=True)
class Result:
    """Outcome of a case.

    Args:
        tried: number of trials in it: a kill, a flipped bit, a file that was read.
        lost: one line for each trial that failed, saying what to repeat.
        refused: trials that do not count for the goal, such as combinations that torch itself refuses.
    """

    tried: int
    lost: tuple[str, ...] = ()
    refused: int = 0


@dataclass(frozen=True)
class Case:
    """A piece of work that is done whole or not at all.

    Args:
        name: unique in its row, and the same whenever the row runs with the same seed.
        run: tries it in the empty folder that it is given.
    """

    name: str
    run: Callable[[Path], Result]


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Args:
        name: how the command line calls it.
        what: what is tried, and when it counts as survived.
        goal: number of trials to reach.
        cases: all cases for a seed, always in the same order.
    """

    name: str
    what: str
    goal: int
    cases: Callable[[int], Iterable[Case]]


@dataclass(frozen=True)
class Tally:
    """Sums over the cases of a row that are on disk."""

    tried: int
    refused: int
    lost: tuple[str, ...]
    cases: int
    seconds: float


class Ledger:
    """Results of one row and seed, a line per case; a case in the file is run again only if it lost something."""

    def __init__(self, folder: Path, row: Row, seed: int) -> None:
        self.row, self.seed = row, seed
        self.path = folder / f"{row.name}-{seed}.jsonl"

    def run(self, *, sample: int | None = None) -> Iterator[tuple[str, Result]]:
        """Run what is missing, of all cases or of `sample` evenly spread ones; yield each result."""
        done = {line["case"] for line in self._lines() if not line["lost"]}
        cases = list(self.row.cases(self.seed))
        if sample is not None and sample < len(cases):
            cases = [cases[i * len(cases) // sample] for i in range(sample)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for case in cases:
            if case.name in done:
                continue
            start = time.monotonic()
            with TemporaryDirectory(prefix="palmette-campaign-") as folder:
                result = case.run(Path(folder))
            line = {
                "case": case.name,
                "tried": result.tried,
                "refused": result.refused,
                "lost": result.lost,
                "seconds": round(time.monotonic() - start, 3),
            }
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            yield case.name, result

    def tally(self) -> Tally:
        """What is on disk."""
        lines = self._lines()
        return Tally(
            tried=sum(line["tried"] for line in lines),
            refused=sum(line["refused"] for line in lines),
            lost=tuple(f"{line['case']}: {why}" for line in lines for why in line["lost"]),
            cases=len(lines),
            seconds=sum(line["seconds"] for line in lines),
        )

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        found = {}
        for line in self.path.read_text(encoding="utf-8").split("\n")[:-1]:  # the last one may be torn
            parsed = json.loads(line)
            found[parsed["case"]] = parsed
        return list(found.values())
