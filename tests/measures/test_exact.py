import math

import pytest
import torch

from palmette.measures.exact import ExactSums, bits_above, exact_power_sums, powers
from palmette.measures.pq import power_sums
from palmette.measures.rows import Rows
from palmette.pruning.budgets import Sap
from palmette.pruning.sources.memory import Memory


@pytest.mark.parametrize("spread", [0, 20, 200])
def test_sums_equal_fsum_in_any_order(spread):
    torch.manual_seed(0)
    terms = torch.rand(3, 1000, dtype=torch.float64) * torch.exp2(
        spread * torch.randn(3, 1000, dtype=torch.float64)
    )
    terms[2, 500:] = 0
    found = []
    for order in (torch.arange(1000), torch.randperm(1000)):
        sums = ExactSums(bits_above(terms.amax(1)))
        for part in terms[:, order].split(300, 1):
            sums.add(slice(0, 3), part.clone())
        found.append(sums.value())
    assert torch.equal(*found)
    expected = [math.fsum(row) for row in terms.tolist()]
    assert torch.allclose(found[0], torch.tensor(expected, dtype=torch.float64), rtol=3e-16, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("p", "q"), [(0.5, 1.0), (1.0, 2.0), (0.3, 3.0)])
def test_power_sums_without_rounding_are_near_those_with(dtype, p, q):
    torch.manual_seed(0)
    rows = Rows.of(torch.randn(4, 3000).to(dtype), torch.rand(4, 3000) < 0.7)
    exact, plain = (sums(rows, p=p, q=q) for sums in (exact_power_sums, power_sums))
    assert torch.equal(exact.d, plain.d)
    assert torch.equal(exact.scale, plain.scale)
    assert torch.allclose(exact.p_sum, plain.p_sum, rtol=1e-14)
    assert torch.allclose(exact.q_sum, plain.q_sum, rtol=1e-14)


def test_powers_do_not_depend_on_position():
    x = torch.rand(1003, dtype=torch.float64)
    alone = torch.stack([powers(v.clone().reshape(1), 0.3)[0] for v in x])
    assert torch.equal(powers(x.clone(), 0.3), alone)


def orders_that_change_a_count():
    """At how many settings SAP takes another number if the entries of a row come in another order."""
    torch.manual_seed(0)
    row = torch.randn(50_000).abs_()
    orders = [row, *(row[torch.randperm(len(row))] for _ in range(4))]
    d, r = len(row), float(Sap().plan(Memory.of(row[None])).retained)
    eps = torch.finfo(torch.float64).eps
    changed = 0
    for step in range(-8, 9):  # just below a whole number, where rounding up to it ends
        gamma = 10_000 / (d - r) * (1 - (16 * d / (d - r) + step) * eps)
        changed += len({int(Sap(gamma=gamma)(order)) for order in orders}) > 1
    return changed


def test_counts_do_not_depend_on_the_order_of_weights(monkeypatch):
    assert orders_that_change_a_count() == 0
    monkeypatch.setattr(Memory, "rounding", -8.0)  # nothing is in doubt, and sums round as they do
    assert orders_that_change_a_count() > 0
