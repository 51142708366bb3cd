"""Distinct names for networks of the user: records have the name of a network, not its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from palmette.reports.tables import Record, Run
from palmette.studies.experiment import OwnExperiment
from palmette.studies.record import AnyExperiment


def with_distinct_names(runs: Mapping[Path, Run]) -> dict[Path, AnyExperiment]:
    """The experiments of the `runs` whose model is the user's own, each with a name for its network alone.

    Where several networks have one name, as when `module:function` was edited between two runs, the size is added
    to the name, or the first folder where sizes are equal. Runs of `prune_and_retrain` are in folders that people
    name, and get the name of the folder. They have no seed: runs of one network with the same settings are
    numbered as seeds are.
    """
    own = {path: run for path, run in runs.items() if ":" in run[0].model and run[1]}
    networks: dict[tuple[str, str], dict[str, Path]] = {}
    for path, (experiment, records) in own.items():
        networks.setdefault((experiment.data, experiment.model), {}).setdefault(_network(records), path)
    found: dict[Path, AnyExperiment] = {}
    seeds: dict[OwnExperiment, list[str]] = {}
    for path, (experiment, records) in own.items():
        alike = networks[experiment.data, experiment.model]
        if len(alike) > 1:
            first, firsts = alike[_network(records)], list(alike.values())
            if isinstance(experiment, OwnExperiment):
                which = f" as in {_short(first, firsts)}"
            else:
                which = _by_size(first, {other: runs[other][1] for other in firsts})
            experiment = replace(experiment, model=experiment.model + which)
        if isinstance(experiment, OwnExperiment):
            tokens = seeds.setdefault(replace(experiment, run="", initial=""), [])
            if experiment.run not in tokens:  # else a copy
                tokens.append(experiment.run)
            experiment = replace(experiment, seed=tokens.index(experiment.run))
        found[path] = experiment
    return found


def _network(records: Sequence[Record]) -> str:
    """Names and sizes of its layers."""
    return repr({name: layer["total"] for name, layer in records[0]["retrained"]["layers"].items()})


def _by_size(path: Path, networks: Mapping[Path, Sequence[Record]]) -> str:
    """Text that distinguishes the network of a run, if possible without the id that names its folder."""
    sizes = {other: records[0]["retrained"]["total"] for other, records in networks.items()}
    if list(sizes.values()).count(sizes[path]) == 1:
        return f", {sizes[path]:,} weights"
    around = {other: other.resolve().parent for other in sizes}
    if len(set(around.values())) < len(around):
        return f" as in {_short(path, list(sizes))}"
    return f" as in {_short(around[path], list(around.values()))}"


def _short(path: Path, paths: Sequence[Path]) -> str:
    """The shortest end of `path` that no other path has; the name of a model has no second colon."""
    for parts in count(1):
        names = ["/".join(other.resolve().parts[-parts:]).replace(":", "-") for other in paths]
        if len(set(names)) == len(paths) or parts > len(path.parts):
            break
    return names[paths.index(path)]
