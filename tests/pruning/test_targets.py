"""Densities that a search tries next."""

from __future__ import annotations

import math
import random

import pytest
import torch

import palmette as pm
from palmette.pruning.budgets import Partly
from palmette.pruning.targets import Bisect, Interpolate, Probe

DENSE = Probe(1.0, 0.0)


@pytest.mark.parametrize(
    ("good", "bad", "expected"),
    [(1.0, 0.25, 0.5), (0.5, 0.125, 0.25), (0.1, None, 0.01), (0.001, None, 0.001 / math.sqrt(2))],
)
def test_bisect_takes_the_geometric_mean(good, bad, expected):
    assert Bisect().next_density([DENSE], good, bad) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("losses", "good", "bad", "expected"),
    [
        ({}, 1.0, None, 0.25),  # without loss, by the largest factor
        ({0.2: 0.5}, 0.2, None, 0.1),  # half the tolerance is used: half of the weights
        ({0.2: 0.25}, 0.2, None, 0.05),
        ({0.2: 0.99}, 0.2, None, 0.1),  # never less than a factor of 2
        ({0.4: 0.5, 0.1: 2.0}, 0.4, 0.1, 0.2),
        ({0.4: 0.5, 0.1: 4.0}, 0.4, 0.1, 0.4 / 4 ** (1 / 3)),  # a third of the way, in logarithms
        ({0.4: math.nan, 0.1: math.nan}, 0.4, 0.1, 0.2),  # losses of 0.1 and 10 are assumed
        ({0.4: -3.0, 0.1: math.inf}, 0.4, 0.1, 0.2),
        ({0.4: 1.0, 0.1: 2.0}, 0.4, 0.1, 0.4 / 1.09),  # 1.09 from the good end
        ({0.4: 0.5, 0.1: 1.0}, 0.4, 0.1, 0.109),  # 1.09 from the bad end
        ({0.4: 1.0, 0.1: 1.0}, 0.4, 0.1, 0.2),
        ({0.15: 0.5, 0.13: 5.0}, 0.15, 0.13, math.sqrt(0.0195)),  # too narrow for 1.09 from both
        ({1.0: 0.0, 0.001: 1.1}, 1.0, 0.001, 0.25),  # no cut by more than a factor of 4
    ],
)
def test_interpolate_jumps_to_where_the_loss_meets_the_tolerance(losses, good, bad, expected):
    trials = [DENSE, *(Probe(density, loss) for density, loss in losses.items() if density < 1)]
    assert Interpolate().next_density(trials, good, bad) == pytest.approx(expected, rel=1e-12)


def test_interpolate_reads_the_mean_of_repeated_trainings():
    trials = [DENSE, Probe(0.4, 0.2), Probe(0.4, 0.8), Probe(0.1, 2.0)]
    assert Interpolate().next_density(trials, 0.4, 0.1) == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize("target", [Interpolate(), Bisect()], ids=str)
def test_next_density_is_strictly_inside_the_bracket(target):
    draw = random.Random(0)
    special = (math.nan, math.inf, -math.inf, 0.0, 1.0, -5.0, 1e9)
    for _ in range(2000):
        densities = sorted((10 ** draw.uniform(-6, 0) for _ in range(draw.randint(1, 6))), reverse=True)
        trials = [DENSE]
        trials += [Probe(d, draw.choice(special) if draw.random() < 0.3 else draw.gauss(1, 2)) for d in densities]
        good = draw.choice([1.0, *densities])
        below = [d for d in densities if d < good]
        bad = draw.choice([None, *below])
        found = target.next_density(trials, good, bad)
        assert (0 if bad is None else bad) < found < good


@pytest.mark.parametrize("target", [Interpolate(), Bisect()], ids=str)
def test_budget_of_densities_is_refused_without_a_search(target):
    with pytest.raises(TypeError, match="chooses densities from scores, which only a search has"):
        target([1.0, 2.0])


# Partly


@pytest.mark.parametrize(
    ("budget", "share", "cut"),
    [
        (pm.FixedRatio(0.5), 1, 50),
        (pm.FixedRatio(0.5), 0, 0),
        (pm.FixedRatio(0.5), 0.58, 29),
        (pm.FixedRatio(0.5), 1 / 3, 16),
        (Partly(pm.FixedRatio(0.5), 0.5), 0.5, 12),
    ],
)
def test_partly_cuts_the_floor_of_a_share(budget, share, cut):
    assert Partly(budget, share)([1.0] * 100).tolist() == [cut]


def test_partly_cuts_a_share_in_each_unit():
    rows = torch.tensor([[9.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0] * 6])
    whole = pm.Sap(p=1, q=2)(rows).tolist()
    assert Partly(pm.Sap(p=1, q=2), 0.5)(rows).tolist() == [cut // 2 for cut in whole]
    assert (Partly(pm.Sap(p=1, q=2), 0.5).p, Partly(pm.Sap(p=1, q=2), 0.5).q) == (1, 2)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, "half"])
def test_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match="share must be between 0 and 1, got share="):
        Partly(pm.Sap(), share)
