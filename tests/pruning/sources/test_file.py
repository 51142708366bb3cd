"""Weights that are read in parts are cut as `prune` cuts them at once: random networks, every scope and budget."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

import palmette as pm
from palmette.checkpoints.measuring import measure
from palmette.measures import spectrum
from palmette.pruning.methods import SCOPES
from palmette.pruning.sources.file import decide
from palmette.pruning.sources.memory import Memory
from palmette.pruning.sources.stored import stored_weights
from palmette.pruning.sources.survey import survey
from palmette.pruning.weights import Weight

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BUDGETS = [
    pm.Sap(),
    pm.Sap(p=1.0, q=2.0, gamma=2.0, beta=1.0),
    pm.Sap(p=0.3, q=1.5, eta=0.5),
    *(pm.FixedRatio(ratio) for ratio in (0.0, 0.1, 0.5, 1.0)),
]
OF_TAILS = [pm.TailMass(), pm.TailMass(p=1, eta=1 / 3), pm.TailMass(p=0.7, eta=0.0)]


def network(draw):
    """One to five weights of any shape, dtype, layout and scale, with ties, zeros and masks."""
    weights, masks = {}, {}
    for i in range(draw.randint(1, 5)):
        shape = [draw.randint(1, 12) for _ in range(draw.randint(2, 4))]
        w = torch.randn(shape) * 10 ** draw.uniform(-8, 3)
        if draw.random() < 0.4:
            w = (w * 2).round() / 2
        w *= torch.rand(shape) < draw.choice([1.1, 1.1, 0.5, 0.0])
        weights[f"w{i}"] = Weight(w.to(draw.choice(DTYPES)), transposed=draw.random() < 0.3)
        masks[f"w{i}"] = torch.rand(shape) < draw.choice([1.1, 0.7, 0.1])
    return weights, masks if draw.random() < 0.5 else None


@pytest.mark.parametrize("scope", SCOPES)
# Entries that are kept as they are, before they are counted.
@pytest.mark.parametrize("few", [0, pytest.param(50, marks=pytest.mark.slow), 10**6])
def test_cut_in_parts_equals_cut_in_memory(monkeypatch, few, scope):
    monkeypatch.setattr(spectrum, "EXACT", few)
    torch.manual_seed(few)
    draw = random.Random(few)
    for _ in range(8):
        weights, masks = network(draw)
        budget, chunk = draw.choice([*BUDGETS, *OF_TAILS]), draw.choice([1, 20, 10**6])
        check_cut(weights, masks, scope=scope, budget=budget, chunk=chunk)


def check_cut(weights, masks, *, chunk, **settings):
    """A cut in parts is the cut of `prune`."""
    wanted, _ = pm.prune(weights, masks, **settings)
    stored = stored_weights(weights, masks)
    cut = decide(stored, chunk=chunk, **settings)
    for one in stored:
        found = torch.cat([mask for _, mask in cut.masks(one, chunk)])
        assert torch.equal(found, wanted[one.name]), (settings, chunk, one.name)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("budget", OF_TAILS, ids=str)
def test_tail_mass_of_a_file_equals_tail_mass_in_memory(budget, scope):
    torch.manual_seed(0)
    draw = random.Random(0)
    for chunk in (1, 20, 10**6):
        check_cut(*network(draw), scope=scope, budget=budget, chunk=chunk)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_saliency_ranks_the_weights_of_a_file(scope):
    torch.manual_seed(0)
    draw = random.Random(1)
    for budget in (pm.Sap(), pm.FixedRatio(0.5), pm.TailMass()):
        weights, masks = network(draw)
        noise = {name: torch.rand(weight.shape) for name, weight in weights.items()}
        check_cut(
            weights,
            masks,
            scope=scope,
            budget=budget,
            saliency=lambda name, weight, noise=noise: weight * noise[name].to(weight.dtype),
            chunk=20,
        )


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_narrow_neurons_are_cut_as_in_float64(budget, dtype):
    torch.manual_seed(0)
    w = (torch.randn(600, 500) * torch.rand(600, 1)).to(dtype).float()
    w[1], w[2] = 0.0, 0.25  # no index; an index of exactly 0
    w[3:9] = (w[3:9] > 0.1).float()  # a cut of exactly as many as are zero
    (found,) = survey([replace(one, read=partial(_narrow, one.read, dtype)) for one in _stored(w)], budget=budget)
    assert found.spectrum.narrow
    assert found.neuron_cut == int(budget.plan(Memory.of(w)).cut.sum())
    assert found.dead == int((w == 0).all(1).sum())
    assert int(budget.plan_of_sums(found.layer).cut) == int(budget.plan(Memory.of(w.reshape(1, -1))).cut)


@pytest.mark.parametrize("width", [1, 16, 33])
def test_narrow_rows_are_cut_exactly_where_float32_sums_overflow(width):
    torch.manual_seed(0)
    w = (torch.rand(50, width) * torch.tensor([3e38, 1e-40]).repeat(25)[:, None]).to(torch.bfloat16)
    (found,) = survey(_stored(w), budget=pm.Sap())
    assert found.neuron_cut == int(pm.Sap().plan(Memory.of(w)).cut.sum())
    assert found.dead == int((w == 0).all(1).sum())


def _stored(w):
    return stored_weights({"w": Weight(w)})


def _narrow(read, dtype, first, last):
    return read(first, last).to(dtype)


def test_report_does_not_depend_on_threads_or_parts():
    torch.manual_seed(0)
    weights = {f"w{i}": Weight(torch.randn(64, 100).to(dtype)) for i, dtype in enumerate(DTYPES * 3)}
    one, *others = (_report(weights, threads, chunk) for threads, chunk in ((1, 10**6), (4, 10**6), (4, 800)))
    assert [other == one for other in others] == [True, True]


def _report(weights, threads, chunk):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return measure(stored_weights(weights), budget=pm.Sap(), chunk=chunk)
    finally:
        assert torch.get_num_threads() == threads
        torch.set_num_threads(before)
