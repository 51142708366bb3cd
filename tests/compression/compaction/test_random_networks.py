"""Random networks with random zeros: compaction changes no output."""

import pytest
import torch
from random_networks import Drawn

from palmette.compression.compaction.rebuild import rebuild
from palmette.pruning.channels.graph import plan_removal
from palmette.pruning.channels.tracing import traced


@pytest.mark.slow
@torch.no_grad()
def test_compaction_changes_no_output():
    smaller = 0
    for seed in range(120):
        model, x = Drawn(seed).double().eval(), torch.randn(2, 4, 8, 8).double()
        walk, why = traced(model, x)
        assert walk is not None, why
        plan = plan_removal(walk)
        small = rebuild(model, plan, plan.gone, torch.zeros_like(plan.gone))  # without the check of `compact`
        wanted, found = model(3 * x), small(3 * x)
        assert torch.allclose(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max())), seed
        smaller += bool(plan.gone.any())
    assert smaller > 60
