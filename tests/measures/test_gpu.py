"""On a CUDA device the kernels give what the CPU gives; skipped where there is none."""

import pytest
import torch

import palmette as pm
from palmette.measures import cuda_sums as fused
from palmette.measures.pq import power_sums
from palmette.measures.rows import Rows
from palmette.pruning.sources import cuda as fused_selection
from palmette.pruning.sources.memory import Memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture(params=[True, False], ids=["triton", "plain torch"])
def _kernels(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(fused, "usable", lambda matrix: False)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("p", "q"), [(0.5, 1), (1, 2), (0.3, 1.7)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 1_000_003), (64, 27), (30, 4608)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_index_is_that_of_the_cpu(dtype, p, q, shape, masked):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(shape, generator=generator).to(dtype)
    kept = torch.rand(shape, generator=generator) < 0.6 if masked else None
    here = pm.pq_index(w, p=p, q=q, dim=1, kept=kept)
    there = pm.pq_index(w.cuda(), p=p, q=q, dim=1, kept=None if kept is None else kept.cuda())
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), here, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("p", "q"), [(0.5, 1), (1, 2)])
@pytest.mark.parametrize("pattern", [False, True])
def test_many_16_bit_values_are_summed_to_what_is_stated(dtype, p, q, pattern):
    w = torch.randn(3_000_017, generator=torch.Generator().manual_seed(0))
    if pattern:  # the worst: large and small ones that always meet in the same sum
        w = torch.where(torch.arange(len(w)) // 1024 % 4 == 0, 3.0, w * 1e-3)
    w = w.to(dtype)
    there = pm.pq_index(w.cuda(), p=p, q=q).cpu()
    torch.testing.assert_close(there, pm.pq_index(w, p=p, q=q), rtol=1e-6 if pattern else 1e-10, atol=0)


def test_a_layer_with_pruned_and_tiny_neurons_is_measured_right():
    w = torch.randn(40, 500, generator=torch.Generator().manual_seed(0))
    w[3] = 0
    w[7] *= 1e-38
    torch.testing.assert_close(
        pm.pq_index(w.cuda(), dim=1).cpu(), pm.pq_index(w, dim=1), rtol=1e-12, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("value", [0.1, 0.3, 1e-30, 1e30, 7e-31])
def test_a_root_that_float32_rounds_always_the_same_way_is_summed_right(value):
    w = torch.full((4 * 10**7,), value, device="cuda")
    w[::2] *= 3
    x = w[:2].double().cpu()
    sums = power_sums(Rows.of(w[None]), p=0.5, q=1)
    torch.testing.assert_close(sums.p_sum, x.sqrt().sum()[None] * 2e7, rtol=1e-11, atol=0)
    torch.testing.assert_close(sums.q_sum, x.sum()[None] * 2e7, rtol=1e-11, atol=0)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["gaussian", "ties", "equal", "sparse"])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_same_entries_remain_as_on_the_cpu(dtype, masked, kind, share):
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(3_000_017, generator=generator)
    if kind == "ties":
        w = (w * 4).round() / 4
    elif kind == "equal":
        w = w.sign()
    elif kind == "sparse":
        w = w * (torch.rand(w.shape, generator=generator) < 0.3)
    w = w.to(dtype)
    kept = torch.rand(w.shape, generator=generator) < 0.7 if masked else None
    cut = torch.tensor([int(share * (int(kept.sum()) if masked else len(w)))])

    def remaining(device):
        parts = w.to(device)[None].split((1_000_001, 0, 2_000_016), 1)
        marks = (None,) * 3 if kept is None else kept.to(device)[None].split((1_000_001, 0, 2_000_016), 1)
        return torch.cat(Memory(tuple(parts), tuple(marks)).select(cut.to(device)), 1).cpu()

    assert torch.equal(remaining("cuda"), remaining("cpu"))


def test_the_kernels_are_used_where_they_can_be():
    row = Rows.of(torch.randn(1, 10, device="cuda"))
    assert fused.usable(row.segments[0])
    assert fused_selection.usable(row)
    assert Memory.of(torch.tensor([[3.0, -1.0, 2.0]], device="cuda")).threshold(2) == 2.0


@pytest.mark.parametrize("scope", ["neuron", "layer", "global"])
@pytest.mark.parametrize(
    "budget", [pm.Sap(), pm.Sap(p=1, q=2), pm.FixedRatio(0.2), pm.TailMass(p=1, eta=0.1)], ids=str
)
def test_a_cut_is_that_of_the_cpu(scope, budget):
    generator = torch.Generator().manual_seed(2)
    weights = {
        "a": torch.randn(64, 3, 3, 3, generator=generator),
        "b": torch.randn(200, 1000, generator=generator),
    }
    here = there = None
    for _ in range(3):
        here, _ = pm.prune(weights, here, scope=scope, budget=budget)
        there, _ = pm.prune({n: w.cuda() for n, w in weights.items()}, there, scope=scope, budget=budget)
        assert there.to("cpu") == here


@pytest.mark.parametrize("fused_update", [False, True])
def test_masks_hold_on_the_device_with_amp_clipping_and_a_move(fused_update):
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5))
    pruner.step()
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused_update)
    pruner.hold(optimizer)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(12):
        if step == 6:
            pruner.step()
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(8, 20, device="cuda")).square().mean()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        for name, mask in pruner.masks.items():
            assert int(model.get_parameter(name)[~mask.cuda()].count_nonzero()) == 0
    assert pruner.density < 0.27


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_compiled_model_keeps_its_masks():
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3)).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    pruner = pm.Pruner(compiled, budget=pm.FixedRatio(0.5))
    pruner.hold(optimizer)
    for _ in range(3):
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.randn(8, 20, device="cuda")).square().mean().backward()
            optimizer.step()
        pruner.step()
    assert set(pruner.masks) == {"0.weight", "2.weight"}
    for name, mask in pruner.masks.items():
        assert int(model.get_parameter(name)[~mask].count_nonzero()) == 0
