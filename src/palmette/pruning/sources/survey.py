"""One pass over stored weights: power sums, all magnitudes, and the cut of each neuron."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import add
from typing import Any, TypeVar

import torch
from torch import Tensor

from palmette.measures.narrow import SHARE, narrow_power_sums
from palmette.measures.pq import PowerSums, power_sums
from palmette.measures.rows import Rows
from palmette.measures.spectrum import NARROW, Spectrum
from palmette.pruning.budgets import Budget
from palmette.pruning.counting import CutPlan
from palmette.pruning.sources.stored import CHUNK, FilePart, StoredWeight

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_SMALL = 1 << 12  # entries
_AT_ONCE = 64  # small weights


@dataclass(frozen=True)
class Survey:
    """Result of one pass over a weight.

    Args:
        layer: power sums of the weight as one row.
        spectrum: magnitudes of the weight.
        plan: the budget's plan for the weight as one row; None without `neurons`.
        neuron_cut: number of weights the budget prunes neuron by neuron; 0 without `neurons`.
        dead: neurons whose weights are all zero; 0 without `neurons`.
    """

    stored: StoredWeight
    layer: PowerSums
    spectrum: Spectrum
    plan: CutPlan | None
    neuron_cut: int
    dead: int


def survey(
    weights: Sequence[StoredWeight], *, budget: Budget, neurons: bool = True, chunk: int = CHUNK
) -> Iterator[Survey]:
    """Read each weight once, in order; torch's threads measure parts while the next one is read.

    Args:
        budget: its p and q define the power sums; with `neurons`, it must need power sums only.
        neurons: whether to plan the cuts of the weight and of its neurons.
        chunk: entries per read.
    """
    parts = (part for stored in weights for part in stored.parts(chunk))
    looked_at = in_order(partial(_look, budget, neurons), batches(parts, lambda part: part.of))
    seen_parts = (one for batch in looked_at for one in batch)
    by_weight = (_merged(seen) for _, seen in groupby(seen_parts, key=lambda one: id(one.stored)))
    for batch in batches(by_weight, lambda seen: seen[0].stored):
        yield from _together(batch, budget, neurons)


def batches(items: Iterable[_Item], stored: Callable[[_Item], StoredWeight]) -> Iterator[list[_Item]]:
    """Consecutive items of small weights, up to `_AT_ONCE` of them; an item of a larger weight alone."""
    batch: list[_Item] = []
    for item in items:
        small = stored(item).entries < _SMALL
        if batch and (not small or len(batch) == _AT_ONCE):
            yield batch
            batch = []
        batch.append(item)
        if not small:
            yield batch
            batch = []
    if batch:
        yield batch


def _plans(budget: Budget, sums: Sequence[PowerSums]) -> list[CutPlan]:
    """Plan of each, computed for all rows at once, since a small weight alone takes as long as many."""
    if not sums:
        return []
    whole = budget.plan_of_sums(one_below_another(sums))
    columns = (whole.index, whole.retained, whole.cut)
    parts = zip(*(column.split([len(one.d) for one in sums]) for column in columns), strict=True)
    return [CutPlan(one, *part) for one, part in zip(sums, parts, strict=True)]


def in_order(work: Callable[[list[FilePart]], _Result], parts: Iterable[list[FilePart]]) -> Iterator[_Result]:
    """`work` of each batch of parts, in order, in as many threads as torch has, while the caller reads the next.

    At most threads + 2 batches are alive. Small weights are done here, where threads would wait for one another.
    """
    threads = torch.get_num_threads()
    waiting: deque[Future[_Result]] = deque()
    try:
        torch.set_num_threads(1)  # idle torch threads would slow down the workers
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for batch in parts:
                small = batch[0].of.entries < _SMALL
                waiting.append(_done(work(batch)) if small else pool.submit(work, batch))
                del batch  # free it before the next one is read
                while waiting and (len(waiting) > threads or waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        torch.set_num_threads(threads)


def _done(result: _Result) -> Future[_Result]:
    found: Future[_Result] = Future()
    found.set_result(result)
    return found


@dataclass(frozen=True)
class _Seen:
    """Result of one part: its magnitudes, and either the sums of its neurons or their counts."""

    stored: StoredWeight
    spectrum: Spectrum
    neurons: PowerSums | None
    neuron_cut: int = 0
    dead: int = 0


def _look(budget: Budget, neurons: bool, batch: Sequence[FilePart]) -> list[_Seen]:
    p, q, seen = float(budget.p), float(budget.q), list[_Seen]()
    of_parts = [(part, part.rows(part.values)) for part in batch]
    for (quick, masked, *_), alike in groupby(of_parts, key=lambda one: _kind(one[0], one[1], q)):
        parts, rows = zip(*alike, strict=True)
        if quick:
            cuts = [_cut_and_dead(matrix, budget) if neurons else (0, 0) for matrix in rows]
            seen += [_Seen(part.of, _spectrum(part), None, *cut) for part, cut in zip(parts, cuts, strict=True)]
        else:
            kept = _concatenated([part.rows(part.kept) for part in parts]) if masked else None
            sums = power_sums(Rows.of(_concatenated(rows), kept), p=p, q=q).split([len(one) for one in rows])
            seen += [_Seen(part.of, _spectrum(part), one) for part, one in zip(parts, sums, strict=True)]
    return seen


def _kind(part: FilePart, rows: Tensor, q: float) -> tuple[Any, ...]:
    """What parts share that are measured together: whether without power sums, masked, and the kind of rows."""
    masked = part.kept is not None
    quick = rows.dtype in NARROW and rows.device.type == "cpu" and not masked and q <= 2
    return quick and not _in_parts(part.of), masked, rows.shape[1], rows.dtype, rows.device


def _concatenated(matrices: Sequence[Tensor]) -> Tensor:
    return matrices[0] if len(matrices) == 1 else torch.cat([*matrices])


def _spectrum(part: FilePart) -> Spectrum:
    spectrum = Spectrum()
    spectrum.add(part.values, part.kept)
    return spectrum


def _in_parts(stored: StoredWeight) -> bool:
    """Whether further parts hold further inputs of the same neurons, not further neurons."""
    return (stored.transposed and not stored.stacked) or len(stored.shape) < 2


def _cut_and_dead(values: Tensor, budget: Budget) -> tuple[int, int]:
    """Number of weights the budget prunes in the rows, and number of zero rows; in float32 if that suffices."""
    p, q = float(budget.p), float(budget.q)
    sums = narrow_power_sums(values, p=p, q=q)
    low, high = (replace(sums, p_sum=sums.p_sum * (1 + off)) for off in (-SHARE, SHARE))
    most, cut = budget.plan_of_sums(one_below_another([low, high])).cut.view(2, -1)
    unsure = (cut != most) | sums.q_sum.isinf()
    if bool(unsure.any()):
        cut[unsure] = budget.plan_of_sums(power_sums(Rows.of(values[unsure]), p=p, q=q)).cut
    return int(cut.sum()), int((sums.q_sum == 0).sum())


def _merged(seen: Iterator[_Seen]) -> list[_Seen]:
    """All parts of a weight, with all magnitudes in the first."""
    parts = [next(seen)]
    for one in seen:
        parts[0].spectrum.merge(one.spectrum)
        parts.append(replace(one, spectrum=Spectrum()))  # its magnitudes are no longer needed
    return parts


def _together(batch: Sequence[Sequence[_Seen]], budget: Budget, neurons: bool) -> Iterator[Survey]:
    """Survey of each weight, from its parts."""
    rows = [_rows(parts) for parts in batch]
    layers = [
        _counted(parts[0].spectrum, budget) if sums is None else sums.over_rows()
        for parts, sums in zip(batch, rows, strict=True)
    ]
    of_layers = _plans(budget, layers) if neurons else [None] * len(batch)
    of_neurons = iter(_plans(budget, [sums for sums in rows if sums is not None]) if neurons else [])
    for parts, sums, layer, plan in zip(batch, rows, layers, of_layers, strict=True):
        cut, dead = (sum(getattr(one, key) for one in parts) for key in ("neuron_cut", "dead"))
        if sums is not None and neurons:
            cut, dead = int(next(of_neurons).cut.sum()), int((sums.q_sum == 0).sum())
        yield Survey(parts[0].stored, layer, parts[0].spectrum, plan, cut, dead)


def _rows(parts: Sequence[_Seen]) -> PowerSums | None:
    """Power sums of the neurons of a weight, if its parts have them."""
    sums = [one.neurons for one in parts if one.neurons is not None]
    if not sums:
        return None
    return reduce(add, sums) if _in_parts(parts[0].stored) else one_below_another(sums)


def _counted(spectrum: Spectrum, budget: Budget) -> PowerSums:
    """Power sums of 16-bit weights, from the counts of each magnitude."""
    p, q = float(budget.p), float(budget.q)
    p_sum, q_sum = (torch.tensor([spectrum.power_sum(power)], dtype=torch.float64) for power in (p, q))
    return PowerSums(torch.tensor([spectrum.d]), torch.ones(1, dtype=torch.float64), p_sum, q_sum, p, q)


def one_below_another(sums: Sequence[PowerSums]) -> PowerSums:
    """Power sums of the rows of all."""
    if len(sums) == 1:
        return sums[0]
    d, scale, p_sum, q_sum = map(torch.cat, zip(*((s.d, s.scale, s.p_sum, s.q_sum) for s in sums), strict=True))
    return PowerSums(d, scale, p_sum, q_sum, sums[0].p, sums[0].q)
