"""Networks of somebody's own told apart: a run knows no more of its network than what it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from operator import eq
from pathlib import Path

from palmette.reports.tables import Record, Run
from palmette.studies.experiment import OWN_DATA, Experiment
from palmette.studies.folder import RunDir


def told_apart(runs: Mapping[Path, Run]) -> dict[Path, Experiment]:
    """The experiments of those of `runs` whose model is somebody's own, each with a name for its network alone.

    Where several networks are called alike, as when `module:function` was edited between two runs, each is called
    by its size too, or by its first folder where sizes are equal. Runs of `prune_and_retrain` are in folders that
    people name, and are called by these. They have no seed: those of one network with the same settings are
    numbered as seeds are; a copy has the number of what it is a copy of.
    """
    own = {path: run for path, run in runs.items() if ":" in run[0].model and run[1]}
    networks: dict[tuple[str, str], dict[str, Path]] = {}
    for path, (experiment, records) in own.items():
        networks.setdefault((experiment.data, experiment.model), {}).setdefault(_network(records), path)
    found: dict[Path, Experiment] = {}
    seeds: dict[str, list[Path]] = {}
    for path, (experiment, records) in own.items():
        alike = networks[experiment.data, experiment.model]
        if len(alike) > 1:
            first, firsts = alike[_network(records)], list(alike.values())
            which = (
                f" as in {_short(first, firsts)}"
                if experiment.data == OWN_DATA
                else _by_size(first, {other: runs[other][1] for other in firsts})
            )
            experiment = replace(experiment, model=experiment.model + which)
        found[path] = experiment
        if experiment.data != OWN_DATA:
            continue
        numbered = seeds.setdefault(experiment.id, [])
        copied = (number for number, other in enumerate(numbered) if _is_copy(path, other, runs))
        seed = next(copied, len(numbered))
        if seed == len(numbered):
            numbered.append(path)
        found[path] = replace(experiment, seed=seed)
    return found


def _is_copy(path: Path, other: Path, runs: Mapping[Path, Run]) -> bool:
    """Whether two runs are one; a copy may be an early one, with the first rounds only."""
    same = list(map(eq, runs[path][1], runs[other][1]))
    # Round 0 is the same in all runs of a network that came trained, but no two take the same time for it.
    return all(same) and (len(same) > 1 or _time(path) == _time(other))


def _time(path: Path) -> bytes:
    """What is written of the time of round 0."""
    file = RunDir(path).timings_file
    return file.read_bytes().partition(b"\n")[0] if file.exists() else b""


def _network(records: Sequence[Record]) -> str:
    """Its layers and their sizes."""
    return repr({name: layer["total"] for name, layer in records[0]["retrained"]["layers"].items()})


def _by_size(path: Path, networks: Mapping[Path, Sequence[Record]]) -> str:
    """What tells the network of a run from the others, if possible without the id that the folder is called by."""
    sizes = {other: records[0]["retrained"]["total"] for other, records in networks.items()}
    if list(sizes.values()).count(sizes[path]) == 1:
        return f", {sizes[path]:,} weights"
    around = {other: other.resolve().parent for other in sizes}
    if len(set(around.values())) < len(around):
        return f" as in {_short(path, list(sizes))}"
    return f" as in {_short(around[path], list(around.values()))}"


def _short(path: Path, paths: Sequence[Path]) -> str:
    """As much of the end of `path` as tells it from the others; the name of a model has no second colon."""
    for parts in count(1):
        names = ["/".join(other.resolve().parts[-parts:]).replace(":", "-") for other in paths]
        if len(set(names)) == len(paths) or parts > len(path.parts):
            break
    return names[paths.index(path)]
