"""Grids of experiments: read from TOML, and run in fleets."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import torch

from palmette.errors import NotWritten, PalmetteError, RunDamaged, RunInterrupted, in_words
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer, Outcomes
from palmette.studies.running import fleets, run_together
from palmette.studies.settings import placed, seeds
from palmette.studies.spec import BELONGS_TO
from palmette.training.data.images import Images
from palmette.training.data_parallel import WorkerGroup
from palmette.words import did_you_mean

Engine: TypeAlias = Callable[..., Outcomes]
"""Trains fleets: `here`, in this process, or `palmette.integrations.ray.driver.OnRay`, on a cluster."""
MOST = 100_000
"""Maximum number of combinations of a grid; more are probably a mistake."""

_DEFAULTS = {f.name: f.default for f in fields(Experiment)}
_TABLES = ("base", "axes", "variants")


def read(file: str | Path) -> list[Experiment]:
    """Read the experiments of a grid from a TOML file, each once.

    ``[base]`` has settings of `Experiment` that all share, ``[axes]`` a list of values for each varied setting,
    and each of ``[[variants]]`` is a table of settings that vary together. Every variant is combined with
    every combination of the axes; the first axis changes slowest, variants fastest. Values of an axis or a
    variant override those of `base`. Seeds may be written as ``"0..3,7"``.

    A setting that belongs to another method (or optimizer) is left out of a combination, and combinations that are
    then equal are one experiment. An invalid combination is an error that names it; so is a setting that no
    combination uses.
    """
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"no grid at {str(path)!r}: a TOML file with [base], [axes] and [[variants]]")
    try:
        return experiments(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except RecursionError as error:
        raise ValueError(f"{path}: its lists are nested too deep") from error
    except (TypeError, ValueError) as error:  # includes invalid TOML and UTF-8
        raise placed(f"{path}: ", error) from error


def experiments(grid: Mapping[str, Any]) -> list[Experiment]:
    """Experiments of a grid given as a dict, in the form of the TOML file of `read`.

    >>> grid = {"axes": {"seed": "3..4", "method": ["sap", "one-shot"], "eta": [0, 0.1]}}
    >>> [(e.seed, e.method, e.eta) for e in experiments(grid) if e.seed == 3]
    [(3, 'sap', 0.0), (3, 'sap', 0.1), (3, 'one-shot', 0.0)]
    """
    base, axes, variants = _base(grid), _axes(grid), _variants(grid)
    for name in axes:
        if any(name in variant for variant in variants):
            raise ValueError(f"{name} is in [axes] and in [[variants]]; it can be varied in only one of them")
    if (count := len(variants) * math.prod(map(len, axes.values()))) > MOST:
        raise ValueError(f"a grid may have at most {MOST:,} combinations, got {count:,}")

    made, used, given = dict[Experiment, None](), set[str](), {*base, *axes, *(n for v in variants for n in v)}
    if not given:
        raise ValueError(
            "a grid needs at least one setting, got none: one value each below [base], lists of values below "
            '[axes], such as seed = "0..3", or settings that vary together below [[variants]]'
        )
    for *values, variant in itertools.product(*axes.values(), variants):
        varied = dict(zip(axes, values, strict=True)) | variant
        own = _own(base | varied)
        used |= own.keys()
        try:
            made[Experiment(**own)] = None
        except (TypeError, ValueError) as error:
            raise placed(f"{_words(varied) or 'base'}: ", error) from error
    for name in sorted(given - used):
        other, allowed = BELONGS_TO[name]
        raise ValueError(f"{name} belongs to {other} {' or '.join(allowed)}, which no combination has")
    return list(made)


def here(
    work: Sequence[Mapping[Path, Experiment]],
    *,
    data_folder: str | Path | None,
    device: torch.device | str,
    size: int | None,
    observer: Observer,
    images: Images | None = None,
    workers: WorkerGroup | None = None,
) -> Outcomes:
    """Train one fleet after another in this process. A fleet that fails does not stop the next.

    An interruption (`RunInterrupted`) and a full disk (`NotWritten`) end the sweep. Arguments are those of
    `run_together`.
    """
    outcomes: Outcomes = {}
    where: dict[str, Any] = {"data_folder": data_folder, "device": device, "images": images, "workers": workers}
    for number, fleet in enumerate(work):
        if observer.interrupts():
            raise RunInterrupted(f"ended before fleet {number + 1} of {len(work)}; the others are on disk")
        outcomes |= _trained(fleet, None, size=size, observer=observer, **where)
    return outcomes


def _trained(
    fleet: Mapping[Path, Experiment], company: bool | None, *, size: int | None, observer: Observer, **where: Any
) -> Outcomes:
    """Train a fleet; return its outcomes. After an error, train the rest one by one to isolate the failure."""
    try:
        return run_together(fleet, company=company, size=size, observer=observer, **where)
    except (RunInterrupted, NotWritten, BrokenPipeError):  # the last: nobody reads what an observer prints
        raise
    except Exception as error:  # a model, its data or a device may raise anything
        outcomes: Outcomes = {folder: why for folder in fleet if (why := why_over(folder)) is not None}
        left = {folder: experiment for folder, experiment in fleet.items() if folder not in outcomes}
        if len(left) > 1 and not isinstance(error, OSError | PalmetteError):  # which would hit all again
            observer.say(f"{len(left)} networks continue one by one, since one of them failed: {in_words(error)}")
            for folder, experiment in left.items():
                outcomes |= _trained({folder: experiment}, size != 1, size=size, observer=observer, **where)
            return outcomes
        for folder, experiment in left.items():
            outcomes[folder] = error
            RunDir(folder).note_failure(in_words(error))
            observer.ended(experiment, error)
        return outcomes


def run(
    experiments: Iterable[Experiment],
    folder: str | Path,
    *,
    data_folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    size: int | None = None,
    observer: Observer | None = None,
    engine: Engine = here,
) -> Outcomes:
    """Run all experiments, each in `folder` / its id, in fleets that are trained together.

    Finished runs are not repeated, interrupted runs resume, and a failure does not stop the rest.

    Args:
        experiments: such as the result of `read`; duplicates run once.
        folder: parent of the run folders.
        data_folder, device: as for `palmette.run`.
        size: number of networks to train at once; by default as many as fit into memory.
        observer: receives progress and results.
        engine: trains the fleets.

    >>> from tempfile import TemporaryDirectory
    >>> two = [Experiment(method=m, model="linear", rounds=1, epochs=1) for m in ("sap", "one-shot")]
    >>> with TemporaryDirectory() as folder:
    ...     list(run(two, folder).values())
    ['1 round is done', '1 round is done']
    """
    planned = list(dict.fromkeys(experiments))
    work = [{e.folder_in(folder): e for e in fleet} for fleet in fleets(planned)]
    found = engine(work, data_folder=data_folder, device=device, size=size, observer=observer or Observer())
    return {e.folder_in(folder): found[e.folder_in(folder)] for e in planned}


def _base(grid: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in grid.items():
        if name not in _TABLES:
            hint = "; settings that all share belong below [base]" if name in _DEFAULTS else ""
            raise ValueError(f"a grid has the tables {', '.join(_TABLES)}, got {name} = {value!r}{hint}")
    return _settings(grid.get("base", {}), "[base]")


def _axes(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    axes = grid.get("axes", {})
    if not isinstance(axes, Mapping):
        raise TypeError(f"[axes] must be a table of lists, got {axes!r}")
    found = {}
    for name, values in axes.items():
        _check_name(name, "[axes]")
        if name == "seed" and isinstance(values, str):
            values = seeds(values)
        if not isinstance(values, list) or not values or any(isinstance(v, list | Mapping) for v in values):
            raise TypeError(f"{name} in [axes] must be a list of values, got {name} = {values!r}")
        found[name] = values
    return found


def _variants(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Variants; a single one without settings if the grid has none."""
    variants = grid.get("variants", [{}])
    if not isinstance(variants, list) or not variants:
        raise TypeError(f"[[variants]] must be tables of settings, got {variants!r}")
    found = [_settings(variant, "[[variants]]") for variant in variants]
    for variant in found:
        for name, (other, allowed) in BELONGS_TO.items():
            if name in variant and variant.get(other, allowed[0]) not in allowed:
                raise ValueError(f"{_words(variant)}: {name} belongs to {other} {' or '.join(allowed)}")
    return found


def _settings(table: Any, place: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise TypeError(f"{place} must be a table of settings, got {table!r}")
    for name, value in table.items():
        _check_name(name, place)
        if isinstance(value, list | Mapping):
            raise TypeError(f"{name} in {place} must be one value (lists go into [axes]), got {name} = {value!r}")
    return dict(table)


def _check_name(name: str, place: str) -> None:
    if name not in _DEFAULTS:
        hint = did_you_mean(name, _DEFAULTS) or f"; there are {', '.join(_DEFAULTS)}"
        raise ValueError(f"{place} has {name!r}, which is not a setting{hint}")


def _own(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` without settings of another method or optimizer."""
    own = {}
    for name, value in settings.items():
        other, allowed = BELONGS_TO.get(name, (name, (value,)))
        if settings.get(other, _DEFAULTS[other]) in allowed:
            own[name] = value
    return own


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in settings.items())


def why_over(folder: Path) -> str | None:
    """Reason why the run in a folder ended; None if it is not finished."""
    try:
        records = RunDir(folder).records()
    except RunDamaged:
        return None
    stopped: str | None = records[-1].get("stopped") if records else None
    return stopped
