"""One pass over stored weights: power sums, all magnitudes, and the cut of each neuron."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import add
from typing import TypeVar

import torch
from torch import Tensor

from palmette.measures.narrow import SHARE, narrow_power_sums
from palmette.measures.pq import PowerSums, power_sums
from palmette.measures.rows import Rows
from palmette.measures.spectrum import NARROW, Spectrum
from palmette.pruning.budgets import Budget
from palmette.pruning.sources.stored import CHUNK, FilePart, StoredWeight

_Result = TypeVar("_Result")
_SMALL = 1 << 12  # entries


@dataclass(frozen=True)
class Survey:
    """Result of one pass over a weight.

    Args:
        layer: power sums of the weight as one row.
        spectrum: magnitudes of the weight.
        neuron_cut: number of weights the budget prunes neuron by neuron; 0 without `neurons`.
        dead: neurons whose weights are all zero; 0 without `neurons`.
    """

    stored: StoredWeight
    layer: PowerSums
    spectrum: Spectrum
    neuron_cut: int
    dead: int


def survey(
    weights: Sequence[StoredWeight], *, budget: Budget, neurons: bool = True, chunk: int = CHUNK
) -> Iterator[Survey]:
    """Read each weight once, in order; torch's threads measure parts while the next one is read.

    Args:
        budget: its p and q define the power sums; with `neurons`, it must need power sums only.
        neurons: whether to count the weights that the budget prunes in each neuron.
        chunk: entries per read.
    """
    parts = (part for stored in weights for part in stored.parts(chunk))
    looked_at = in_order(partial(_look, budget, neurons), parts)
    for _, seen in groupby(looked_at, key=lambda one: id(one.stored)):
        yield _together(seen, budget, neurons)


def in_order(work: Callable[[FilePart], _Result], parts: Iterable[FilePart]) -> Iterator[_Result]:
    """`work` of each part, in order, in as many threads as torch has, while the caller reads the next part.

    At most threads + 2 parts are alive. Small parts are done here, where threads would take longer to wake up.
    """
    threads = torch.get_num_threads()
    waiting: deque[Future[_Result]] = deque()
    try:
        torch.set_num_threads(1)  # idle torch threads would slow down the workers
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for part in parts:
                small = part.values.numel() < _SMALL
                waiting.append(_done(work(part)) if small else pool.submit(work, part))
                del part  # free it before the next one is read
                if len(waiting) > threads:
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


def _look(budget: Budget, neurons: bool, part: FilePart) -> _Seen:
    spectrum = Spectrum()
    spectrum.add(part.values, part.kept)
    p, q = float(budget.p), float(budget.q)
    values, kept = part.rows(part.values), None if part.kept is None else part.rows(part.kept)
    quick = values.dtype in NARROW and values.device.type == "cpu" and kept is None and q <= 2
    if quick and not _in_parts(part.of):
        return _Seen(part.of, spectrum, None, *(_cut_and_dead(values, budget) if neurons else (0, 0)))
    return _Seen(part.of, spectrum, power_sums(Rows.of(values, kept), p=p, q=q))


def _in_parts(stored: StoredWeight) -> bool:
    """Whether further parts hold further inputs of the same neurons, not further neurons."""
    return (stored.transposed and not stored.stacked) or len(stored.shape) < 2


def _cut_and_dead(values: Tensor, budget: Budget) -> tuple[int, int]:
    """Number of weights the budget prunes in the rows, and number of zero rows; in float32 if that suffices."""
    p, q = float(budget.p), float(budget.q)
    sums = narrow_power_sums(values, p=p, q=q)
    low, high = (replace(sums, p_sum=sums.p_sum * (1 + off)) for off in (-SHARE, SHARE))
    most, cut = budget.plan_of_sums(_one_below_another([low, high])).cut.view(2, -1)
    unsure = (cut != most) | sums.q_sum.isinf()
    if bool(unsure.any()):
        cut[unsure] = budget.plan_of_sums(power_sums(Rows.of(values[unsure]), p=p, q=q)).cut
    return int(cut.sum()), int((sums.q_sum == 0).sum())


def _together(seen: Iterable[_Seen], budget: Budget, neurons: bool) -> Survey:
    spectrum = Spectrum()
    parts: list[_Seen] = []
    for one in seen:
        spectrum.merge(one.spectrum)
        parts.append(replace(one, spectrum=Spectrum()))  # its magnitudes are no longer needed
    stored = parts[0].stored
    sums = [one.neurons for one in parts if one.neurons is not None]
    if not sums:
        cut, dead = (sum(getattr(one, key) for one in parts) for key in ("neuron_cut", "dead"))
        return Survey(stored, _counted(spectrum, budget), spectrum, cut, dead)
    rows = reduce(add, sums) if _in_parts(stored) else _one_below_another(sums)
    cut = int(budget.plan_of_sums(rows).cut.sum()) if neurons else 0
    return Survey(stored, rows.over_rows(), spectrum, cut, int((rows.q_sum == 0).sum()) if neurons else 0)


def _counted(spectrum: Spectrum, budget: Budget) -> PowerSums:
    """Power sums of 16-bit weights, from the counts of each magnitude."""
    p, q = float(budget.p), float(budget.q)
    p_sum, q_sum = (torch.tensor([spectrum.power_sum(power)], dtype=torch.float64) for power in (p, q))
    return PowerSums(torch.tensor([spectrum.d]), torch.ones(1, dtype=torch.float64), p_sum, q_sum, p, q)


def _one_below_another(sums: Sequence[PowerSums]) -> PowerSums:
    if len(sums) == 1:
        return sums[0]
    d, scale, p_sum, q_sum = map(torch.cat, zip(*((s.d, s.scale, s.p_sum, s.q_sum) for s in sums), strict=True))
    return PowerSums(d, scale, p_sum, q_sum, sums[0].p, sums[0].q)
