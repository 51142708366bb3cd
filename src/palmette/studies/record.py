"""What a round leaves behind: plain numbers about the weights, for the whole network and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.errors import RunDamaged
from palmette.measures.gini import gini_of_rows
from palmette.measures.pq import index_of_rows
from palmette.measures.pq_map import P_GRID, Q_GRID, map_of_rows
from palmette.measures.rows import Rows
from palmette.pruning.weights import Weight
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir, find_runs

if TYPE_CHECKING:
    import pandas as pd


def measured(
    weights: Sequence[Mapping[str, Weight]], masks: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Any]]:
    """Density, PQ Index, Gini Index and dead neurons of the kept weights of networks that are built alike.

    Of all weights of a network together, and of each layer. A neuron is dead when none of its kept weights differs
    from zero. An index that does not exist is None, as in JSON.

    Args:
        weights: of each network, as `prunable(model)` gives them, in the state of :math:`w_t`.
        masks: which of them count: :math:`m_t` for the retrained record, :math:`m_{t+1}` for the pruned one.

    Diao et al. 2023, Section 4.2. The index is that at p = 0.5 and q = 1, whatever the method, as in the paper.
    """
    rows = _rows(weights, masks)
    found = _of(rows)
    for number, name in enumerate(weights[0]):
        layer = _of(Rows(rows.segments[number : number + 1], rows.kept[number : number + 1]))
        alive = [
            weight[name].rows((weight[name].tensor.detach() != 0) & mask[name]).any(1)
            for weight, mask in zip(weights, masks, strict=True)
        ]
        dead = (~torch.stack(alive)).sum(1).tolist()
        for network, numbers, count in zip(found, layer, dead, strict=True):
            network["dead_neurons"] = network.get("dead_neurons", 0) + count
            network.setdefault("layers", {})[name] = {**numbers, "dead_neurons": count}
    return found


def index_maps(
    weights: Sequence[Mapping[str, Weight]], masks: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Any]]:
    """The PQ Index of each network's kept weights over the paper's grid of p and q: rows are p, columns q."""
    return [
        {"p": P_GRID, "q": Q_GRID, "pq_index": [[_plain(value) for value in row] for row in values]}
        for values in map_of_rows(_rows(weights, masks)).tolist()
    ]


def after_cut(
    numbers: Mapping[str, Any], test: Mapping[str, Any], *, index: float | None, difference: float | None
) -> dict[str, Any]:
    """What a record says of a network that was just cut.

    Args:
        numbers: of it, as `measured` gives them.
        test: its score.
        index: the PQ Index before the cut.
        difference: by how much the accuracy has risen.
    """
    now = numbers["pq_index"]
    return {
        "test": test,
        **{name: numbers[name] for name in ("kept", "density", "pq_index", "gini_index")},
        "accuracy_difference": difference,
        "pq_index_difference": None if now is None or index is None else now - index,
    }


def read_runs(folder: str | Path, *, layers: bool = False) -> pd.DataFrame:
    """All runs in `folder`, at any depth, as one table with a row for each run and round.

    Columns are the id of the run, its settings, the round and its numbers: `test_accuracy`, `density`, `pq_index`
    and so on describe the retrained network, `pruned_…` the same network after the cut of that round,
    `cut_weights` how many went. What does not exist, such as an index of zeros, is NaN. `seconds` is the run's
    share of the time of its fleet, of which it was one of `members`, and `images_per_second` the speed of all of
    them; of the last time that the round was trained, or of its rest after it was resumed.

    Args:
        folder: a run folder, or one with run folders in it; all else is passed over.
        layers: a row for each run, round and layer instead, with the numbers of that layer.

    >>> from tempfile import TemporaryDirectory
    >>> from palmette import Experiment, run
    >>> with TemporaryDirectory() as folder:
    ...     for seed in (0, 1):
    ...         experiment = Experiment(method="lottery-ticket", model="linear", epochs=1, rounds=1, seed=seed)
    ...         rundir = run(experiment, f"{folder}/{experiment.id}")
    ...     table = read_runs(folder)
    >>> table[["method", "seed", "round", "kept"]]
               method  seed  round  kept
    0  lottery-ticket     0      0   640
    1  lottery-ticket     0      1   512
    2  lottery-ticket     1      0   640
    3  lottery-ticket     1      1   512
    """
    runs = find_runs(folder)
    if not runs:
        raise FileNotFoundError(f"no run in {str(folder)!r}")
    found = ((experiment_of(rundir), records_of(rundir), rundir.timings()) for rundir in runs)
    return framed([row for one in found for row in rows_of(*one, layers=layers)])


def framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a table of pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("a table of runs needs pandas: pip install 'palmette[report]'") from error
    return pd.DataFrame(rows)


def rows_of(
    experiment: Experiment,
    records: Iterable[Mapping[str, Any]],
    timings: Iterable[Mapping[str, Any]],
    *,
    layers: bool = False,
) -> list[dict[str, Any]]:
    """The rows of one run in `read_runs`."""
    settings = {"id": experiment.id, **experiment.settings()}
    times = {timing["round"]: timing for timing in timings}
    rows: list[dict[str, Any]] = []
    for record in records:
        if layers:
            parts = flattened_layers(record).items()
            rows += [settings | {"round": record["round"], "layer": name} | values for name, values in parts]
            continue
        timing = times.get(record["round"], {})
        speed = {name: timing.get(name) for name in ("seconds", "images_per_second", "members")}
        rows.append(settings | flattened(record) | speed)
    return rows


def experiment_of(rundir: RunDir, asked: Experiment | None = None) -> Experiment:
    """What is run in a folder, or an error if that cannot be read, or is not what was `asked` for."""
    if not rundir.experiment.exists():
        raise RunDamaged(
            f"the run folder {str(rundir.path)!r} has records, but no experiment.toml that says what is run "
            "in it; the command that ran it writes it anew"
        )
    try:
        there = Experiment.from_toml(rundir.experiment)
    except (TypeError, ValueError) as error:
        raise RunDamaged(f"the run folder {str(rundir.path)!r} does not say what is run in it: {error}") from error
    if asked is not None and asked != there:
        raise RunDamaged(
            f"{str(rundir.path)!r} holds the run {there.id}, not {asked.id}; give another folder, "
            "or remove that one"
        )
    return there


def records_of(rundir: RunDir) -> list[dict[str, Any]]:
    """The records of a run, or an error that says what is wrong with them."""
    records = rundir.records()
    if (wrong := _wrong(records)) is not None:
        raise RunDamaged(f"{str(rundir.records_file)!r} {wrong}; remove {str(rundir.path)!r} to begin again")
    return records


def _wrong(records: Sequence[Mapping[str, Any]]) -> str | None:
    try:
        for record in records:
            flattened(record), record["test"]["accuracy"], record["index_map"]["pq_index"]
            whole, layers = record["retrained"], flattened_layers(record).values()
            for numbers in (whole, *layers):
                # Added, for these are numbers always; an index may be None.
                numbers["total"] + numbers["kept"] + numbers["density"], numbers["pq_index"], numbers["gini_index"]
            if sum(layer["total"] for layer in layers) != whole["total"]:
                return f"lacks a layer in round {record['round']}"
    except (KeyError, TypeError, AttributeError) as error:
        return f"has a line that is no record: {error!r}"
    if [record["round"] for record in records] != list(range(len(records))):
        return "lacks rounds, or has one twice"
    return None


def flattened(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as one level of names: what concerns the whole network."""
    retrained = {name: value for name, value in record["retrained"].items() if name != "layers"}
    flat = {"round": record["round"]}
    for part in ("test", "train", "validation"):
        score = record[part] or {"loss": None, "accuracy": None}
        flat |= {f"{part}_accuracy": score["accuracy"], f"{part}_loss": score["loss"]}
    flat |= retrained
    for name, value in record["pruned"].items():
        inner = value if isinstance(value, Mapping) else {"": value}
        flat |= {f"pruned_{f'{name}_{key}' if key else name}": number for key, number in inner.items()}
    return flat | {"cut_weights": record["cut"]["weights"], "stopped": record["stopped"]}


def flattened_layers(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A record, layer by layer."""
    cut = record["cut"]["layers"]
    return {
        name: dict(values) | {"cut_weights": cut[name]} for name, values in record["retrained"]["layers"].items()
    }


def _rows(weights: Sequence[Mapping[str, Weight]], masks: Sequence[Mapping[str, Tensor]]) -> Rows:
    """All weights of each network as one row."""
    return Rows(
        tuple(torch.stack([w[name].tensor.detach().reshape(-1) for w in weights]) for name in weights[0]),
        tuple(torch.stack([m[name].reshape(-1) for m in masks]) for name in weights[0]),
    )


def _of(rows: Rows) -> list[dict[str, Any]]:
    index = index_of_rows(rows, p=0.5, q=1.0)
    numbers = zip(rows.counts().tolist(), index.tolist(), gini_of_rows(rows).tolist(), strict=True)
    return [
        {
            "total": rows.width,
            "kept": kept,
            "density": kept / rows.width,
            "pq_index": _plain(index),
            "gini_index": _plain(gini),
        }
        for kept, index, gini in numbers
    ]


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value
