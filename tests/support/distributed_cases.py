"""What the processes of test_distributed.py do: `python distributed_cases.py RANKS FOLDER [CASE …]`.

Each process writes a file that says of every case what went wrong, or nothing. The processes are forked from one
that has imported torch already, which is faster than starting each anew.
"""

import copy
import itertools
import json
import os
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import palmette as pm
from palmette.errors import NotFinite, ParameterGone
from palmette.pruning.budgets import FixedRatio, Sap, TailMass
from palmette.pruning.cut import prune
from palmette.pruning.methods import SCOPES
from palmette.pruning.pruner import Pruner
from palmette.pruning.sources.sharding import indices_of
from palmette.pruning.weights import Weight, prunable

CASES = {}
THOROUGH = os.environ.get("PALMETTE_THOROUGH") == "1"
BUDGETS = [
    Sap(),
    Sap(p=1, q=2, beta=0.4),
    Sap(p=0.3, q=1.7, eta=0.01, gamma=0.7),
    FixedRatio(0.29),
    TailMass(p=0.5, eta=0.2),
    TailMass(p=0.7, eta=0.05),
]


def case(function):
    CASES[function.__name__] = function
    return function


def net(*widths):
    """Rows that no number of processes shares evenly, and fewer than four of them at the end."""
    a, b, c, d = widths or (6, 13, 7, 3)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


def choices(budgets, turn=0):
    """Every scope with every budget; or every scope, and the budgets in turn."""
    if THOROUGH:
        return list(itertools.product(SCOPES, budgets))
    return [(scope, budgets[(turn * len(SCOPES) + i) % len(budgets)]) for i, scope in enumerate(SCOPES)]


def part_of(whole, weight):
    """What this process has of a whole tensor, if it is spread as `weight` is."""
    for dimension, chosen in enumerate(indices_of(weight)):
        whole = whole.index_select(dimension, chosen)
    return whole


def check_parts(spread, whole):
    """Every part of `spread` is the part of `whole`, to the last bit."""
    assert spread.keys() == whole.keys()
    for name, tensor in spread.items():
        here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(here.detach(), part_of(whole[name].detach(), tensor)), name


def check_decision(found, expected):
    assert len(found.groups) == len(expected.groups)
    for ours, theirs in zip(found.groups, expected.groups, strict=True):
        assert (ours.name, ours.total) == (theirs.name, theirs.total)
        assert torch.equal(ours.d, theirs.d)
        assert torch.equal(ours.c, theirs.c)
        assert torch.allclose(ours.index, theirs.index, rtol=1e-13, atol=1e-14, equal_nan=True)
        assert torch.allclose(ours.r, theirs.r, rtol=1e-12, equal_nan=True)
    assert abs(found.index - expected.index) < 1e-13
    everywhere = [None] * dist.get_world_size()
    exact = [[g.d.tolist(), g.c.tolist(), g.index.tolist(), g.r.tolist()] for g in found.groups]
    dist.all_gather_object(everywhere, json.dumps([found.index, exact]))
    assert len(set(everywhere)) == 1


def refusal(kind, call):
    """What the error says that must come."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def inputs(model):
    return next(module.in_features for module in model.modules() if isinstance(module, nn.Linear))


def train(model, optimizer, steps):
    """The same batch for every process: the mean of equal gradients is each of them, to the last bit."""
    torch.manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(8, inputs(model)), torch.randint(3, (8,))
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def parameters(model):
    return {n.removeprefix("module."): p for n, p in model.named_parameters()}


def optimizer_of(model, kind):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def check_training(wrap, scope, budget, kind="sgd", widths=()):
    """Cut, five steps, cut, five steps: with one process and with many, the same to the last bit."""
    one, many = net(*widths), wrap(net(*widths))
    pruners = [Pruner(model, scope=scope, budget=budget) for model in (one, many)]
    optimizers = [optimizer_of(model, kind) for model in (one, many)]
    for _ in range(2):
        for pruner, optimizer in zip(pruners, optimizers, strict=True):
            pruner.hold(optimizer)
        expected, found = (pruner.step() for pruner in pruners)
        check_decision(found, expected)
        check_parts(pruners[1].masks, pruners[0].masks)
        for model, optimizer in zip((one, many), optimizers, strict=True):
            train(model, optimizer, 5)
        check_parts(parameters(many), parameters(one))
        assert pruners[0].density == pruners[1].density
        for name, mask in pruners[1].masks.items():
            weight = pruners[1].weights[name].tensor
            here = [t.to_local() if isinstance(t, DTensor) else t for t in (weight.detach(), mask)]
            assert not here[0][~here[1]].any()


def sharded(model, **options):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


@case
def five_steps_with_fully_shard_are_those_of_one_process():
    for turn, kind in enumerate(("sgd", "adamw")):
        for scope, budget in choices(BUDGETS, turn):
            check_training(sharded, scope, budget, kind)


@case
def five_steps_with_weights_cut_by_columns_are_those_of_one_process():
    def by_columns(model):
        return sharded(model, shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 else Shard(0))

    for scope in SCOPES:
        check_training(by_columns, scope, Sap(), widths=(8, 12, 4, 4))


@case
def five_steps_with_ddp_are_those_of_one_process():
    for scope in SCOPES:
        check_training(DistributedDataParallel, scope, Sap(), kind="adamw")
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    pruner = Pruner(model)
    assert list(pruner.masks) == ["0.weight", "2.weight", "4.weight"]
    for start in (model, model.module):
        state = copy.deepcopy(start.state_dict())
        pruner.step()
        pruner.rewind(state)


@case
def five_steps_on_a_mesh_of_two_dimensions_are_those_of_one_process():
    ranks = dist.get_world_size()
    replicas = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    for scope in SCOPES:
        check_training(lambda model: sharded(model, mesh=replicas), scope, Sap())


def places(ranks):
    """Meshes and the ways in which a tensor of two or more dimensions is spread over them."""
    line = init_device_mesh("cpu", (ranks,))
    yield line, [Shard(0)]
    yield line, [Shard(1)]
    yield line, [Replicate()]
    square = init_device_mesh("cpu", (2, ranks // 2))
    yield square, [Shard(0), Shard(1)]
    yield square, [Shard(1), Shard(1)]
    yield square, [Replicate(), Shard(0)]


def spread_over(weights, mesh, placements):
    return {
        n: Weight(
            distribute_tensor(w.tensor, mesh, placements, src_data_rank=None), w.transposed, w.groups, w.stacked
        )
        for n, w in weights.items()
    }


def check_cuts(weights, budget, scope, mesh, placements):
    spread = spread_over(weights, mesh, placements)
    (one, expected), (masks, found) = (prune(w, scope=scope, budget=budget) for w in (weights, spread))
    check_decision(found, expected)
    check_parts(masks, one)
    # And further, from there; masks of one process are cut into parts by each.
    further, expected = prune(weights, one, scope=scope, budget=budget)
    for so_far in (masks, one) if THOROUGH else (one,):
        again, found = prune(spread, so_far, scope=scope, budget=budget)
        check_decision(found, expected)
        check_parts(again, further)


def some_weights(dtype=torch.float32):
    torch.manual_seed(3)
    return {
        "linear": Weight(torch.randn(9, 5).to(dtype)),
        "conv": Weight(torch.randn(5, 3, 3, 3).to(dtype)),
        "gpt": Weight(torch.randn(6, 7).to(dtype), transposed=True),
        "grouped": Weight(torch.randn(6, 2, 3).to(dtype), transposed=True, groups=2),
        "few": Weight(torch.randn(2, 2).to(dtype)),
        "experts": Weight(torch.randn(3, 4, 5).to(dtype), stacked=True),
        "inputs first": Weight(torch.randn(3, 5, 4).to(dtype), transposed=True, stacked=True),
    }


@case
def cuts_are_those_of_one_process_however_weights_are_spread():
    for turn, (mesh, placements) in enumerate(places(dist.get_world_size())):
        for scope, budget in choices(BUDGETS, turn):
            check_cuts(some_weights(), budget, scope, mesh, placements)


@case
def cuts_are_those_of_one_process_in_every_dtype():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        for scope, budget in choices([BUDGETS[0], BUDGETS[2], BUDGETS[4]]):
            check_cuts(some_weights(dtype), budget, scope, mesh, [Shard(1)])
    mixed = some_weights() | {"half": Weight(torch.randn(4, 4, dtype=torch.float16))}
    check_cuts(mixed, Sap(), "global", mesh, [Shard(0)])


@case
def ties_go_by_index_across_the_borders_of_parts():
    torch.manual_seed(5)
    weights = {
        "ones": Weight(torch.ones(7, 6)),
        "few_values": Weight(torch.randint(-2, 3, (9, 5)).float()),
        "gpt": Weight(torch.randint(-1, 2, (5, 6)).float(), transposed=True),
        "zeros": Weight(torch.zeros(3, 4)),
    }
    budgets = [
        FixedRatio(0.37),
        TailMass(p=1, eta=0.5),
        TailMass(p=1, eta=0.0),
        TailMass(p=1, eta=1 / 3),
        Sap(p=1, q=2),
    ]
    for turn, (mesh, placements) in enumerate(places(dist.get_world_size())):
        for scope, budget in choices(budgets, turn):
            check_cuts(weights, budget, scope, mesh, placements)


@case
def weights_that_tensor_parallelism_and_fully_shard_have_both_cut():
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))

    def both(model):
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        model = parallelize_module(model, mesh["tensor"], plan)
        return fully_shard(model, mesh=mesh["data"])

    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 4))
    many = both(copy.deepcopy(one))
    for scope in SCOPES:
        pruners = [Pruner(model, scope=scope, zeros="count") for model in (one, many)]
        expected, found = (pruner.step() for pruner in pruners)
        check_decision(found, expected)
        check_parts(pruners[1].masks, pruners[0].masks)
        check_parts(dict(many.named_parameters()), dict(one.named_parameters()))


@case
def a_process_without_any_prunable_weight_takes_part():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(5, 1, bias=False), nn.Linear(1, 1, bias=False))
    many = fully_shard(copy.deepcopy(one))
    for scope, budget in choices(BUDGETS):
        (a, expected), (b, found) = (prune(prunable(m), scope=scope, budget=budget) for m in (one, many))
        check_decision(found, expected)
        check_parts(b, a)


@case
def pruned_before_or_after_it_is_cut_into_parts_the_result_is_the_same():
    for scope in SCOPES:
        before, after = net(), sharded(net())
        early = Pruner(before, scope=scope)
        early.step()
        before = sharded(before)
        refusal(ParameterGone, early.step)
        pruners = [Pruner(before, scope=scope, zeros="count"), Pruner(after, scope=scope)]
        pruners[0].load_state_dict(early.state_dict())
        pruners[1].step()
        assert pruners[0].masks == pruners[1].masks
        assert Pruner(before, scope=scope, masks=early.masks).masks == pruners[1].masks
        optimizers = [optimizer_of(model, "sgd") for model in (before, after)]
        for pruner, optimizer, model in zip(pruners, optimizers, (before, after), strict=True):
            pruner.hold(optimizer)
            train(model, optimizer, 5)
            pruner.step()
        assert pruners[0].masks == pruners[1].masks
        assert len(pruners[0].decisions) == len(pruners[1].decisions) == 2
        for ours, theirs in zip(before.parameters(), after.parameters(), strict=True):
            assert torch.equal(ours.to_local(), theirs.to_local())


class Collectives(TorchDispatchMode):
    """Notes what travels: the name of each collective, and the largest tensor in it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name()
        if "c10d" in name:
            tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            self.seen.append((name, max((t.numel() for t in tensors), default=0)))
        return function(*args, **(kwargs or {}))


@case
def no_collective_gathers_a_weight():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 40, bias=False), nn.Linear(40, 300, bias=False))
    model = fully_shard(model, shard_placement_fn=lambda p: Shard(1) if p.shape[0] == 40 else Shard(0))
    smallest = 300 * 40
    with Collectives() as noted:
        model(torch.ones(1, 300))
    assert max(size for _, size in noted.seen) >= smallest  # that is how a pass looks
    for scope, budget in itertools.product(SCOPES, [Sap(), FixedRatio(0.3), TailMass()]):
        pruner = Pruner(model, scope=scope, budget=budget, zeros="count")
        with Collectives() as noted:
            pruner.step()
            state = pruner.state_dict()
            pruner.load_state_dict(state)
        assert noted.seen
        assert {name.split(".")[0].split("::")[-1] for name, _ in noted.seen} == {"allreduce_"}
        # 256 counts for each unit at a time, and their masses in a few digits.
        if scope != "neuron":
            assert max(size for _, size in noted.seen) <= 256 * 6 < smallest
        elif isinstance(budget, FixedRatio | Sap):
            assert max(size for _, size in noted.seen) <= 256 * 40 < smallest


@case
def a_nan_on_one_process_is_said_by_all():
    model = net()
    fully_shard(model[0])
    fully_shard(model[2])
    pruner = Pruner(model, scope="global")
    for weight, said in [
        (model[4].weight, "'4.weight' of shape (3, 7)"),  # which each process has as a whole
        (model[0].weight, "'0.weight' of shape (13, 6)"),
    ]:
        here = weight.to_local() if isinstance(weight, DTensor) else weight
        with torch.no_grad():
            if dist.get_rank() == 0:
                here[0, 0] = float("nan")
        for _ in range(2):
            assert f"got 1 NaN or infinite in {said}" in refusal(NotFinite, pruner.step)


@case
def weights_without_values_are_refused():
    with torch.device("meta"):
        model = net()
    assert "got '0.weight' on the meta device" in refusal(ValueError, lambda: Pruner(sharded(model)))


@case
def weights_that_are_flattened_are_refused():
    model = FullyShardedDataParallel(net(), use_orig_params=True, device_id=torch.device("cpu"))
    assert "use fully_shard" in refusal(TypeError, lambda: Pruner(model))


@case
def what_is_for_models_in_one_process_says_so():
    model = sharded(net())
    for call in (
        lambda: pm.how_compressible(model),
        lambda: pm.save(Path(sys.argv[2]) / "small.safetensors", model),
        lambda: pm.compact(model, torch.ones(1, 6)),
    ):
        assert "takes an unsharded model, but '0.weight'" in refusal(TypeError, call)
    assert "w must be unsharded" in refusal(TypeError, lambda: pm.pq_index(model[0].weight))


@case
def weights_that_came_back_are_counted_over_all_processes():
    model = sharded(net())
    pruner = Pruner(model, budget=FixedRatio(0.5), scope="layer")
    pruner.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().fill_(1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pruner.step()
    assert str(caught[0].message).startswith(f"{39 + 45 + 10} pruned weights")


@case
def one_process_alone_can_ask_where_the_pruner_stands():
    model = sharded(net())
    pruner = Pruner(model)
    pruner.step()
    if dist.get_rank() == 0:
        assert 0 < pruner.density < 1
        assert "density" in repr(pruner.masks)
        assert "global" in repr(pruner.decisions[0])
        assert pruner.stopped == ""


@case
def a_cut_after_an_evaluation_finds_the_weights_spread_again():
    model = sharded(net())
    pruner = Pruner(model)
    with torch.no_grad():
        model(torch.ones(1, 6))  # the outermost module stays gathered after a pass
    pruner.step()
    with torch.no_grad():
        after = model(torch.ones(1, 6))
    one = net()
    Pruner(one).step()
    assert torch.equal(after, one(torch.ones(1, 6)).detach())


@case
def a_saliency_ranks_weights_that_are_spread():
    def inverse(name, weight):
        return 1 / (weight.abs() + 1)

    for scope in SCOPES:
        one, many = net(), sharded(net())
        pruners = [Pruner(m, scope=scope, saliency=inverse, budget=FixedRatio(0.3)) for m in (one, many)]
        check_decision(*[pruner.step() for pruner in reversed(pruners)])
        check_parts(pruners[1].masks, pruners[0].masks)


@case
def a_checkpoint_is_read_by_another_number_of_processes():
    """The first to come write, and others that come later read; all go on as one process does."""
    folder = Path(sys.argv[2]) / "checkpoint"
    one, many = net(), sharded(net())
    expected = Pruner(one, scope="global")
    expected.step()
    expected.hold(optimizer := optimizer_of(one, "adamw"))
    train(one, optimizer, 3)
    dist.barrier()
    if not folder.exists():
        dist.barrier()
        pruner = Pruner(many, scope="global")
        pruner.step()
        pruner.hold(optimizer := optimizer_of(many, "adamw"))
        train(many, optimizer, 3)
        dcp.save({"model": many, "pruner": pruner}, checkpoint_id=folder)
    with torch.no_grad():
        many = sharded(net())
        for parameter in many.parameters():
            parameter.to_local().zero_()
    pruner, optimizer = Pruner(many, scope="global"), optimizer_of(many, "adamw")
    dcp.load({"model": many, "pruner": pruner}, checkpoint_id=folder)
    check_parts(pruner.masks, expected.masks)
    check_parts(parameters(many), parameters(one))
    check_decision(pruner.decisions[0], expected.decisions[0])
    # And on from there.
    pruner.hold(optimizer)
    expected.hold(anew := optimizer_of(one, "adamw"))
    train(many, optimizer, 2)
    train(one, anew, 2)
    check_decision(pruner.step(), expected.step())
    check_parts(pruner.masks, expected.masks)
    check_parts(parameters(many), parameters(one))


@case
def a_checkpoint_of_a_model_that_is_not_spread_has_masks_and_decisions():
    folder = Path(sys.argv[2]) / f"plain-{dist.get_world_size()}"
    pruner, other = (Pruner(DistributedDataParallel(net())) for _ in range(2))
    pruner.step()
    pruner.step()
    dcp.save({"pruner": pruner}, checkpoint_id=folder)
    dcp.load({"pruner": other}, checkpoint_id=folder)
    assert other.masks == pruner.masks
    assert [str(d) for d in other.decisions] == [str(d) for d in pruner.decisions]


@case
def a_checkpoint_of_many_processes_becomes_a_file_for_one():
    folder = Path(sys.argv[2]) / f"for-one-{dist.get_world_size()}"
    many = sharded(net())
    pruner = Pruner(many)
    pruner.step()
    dcp.save({"model": many, "pruner": pruner}, checkpoint_id=folder)
    if dist.get_rank() == 0:
        dcp_to_torch_save(folder, folder / "whole.pt")
        state = torch.load(folder / "whole.pt", weights_only=True)
        model, expected = net(), net()
        Pruner(expected).step()
        model.load_state_dict(state["model"])
        alone = Pruner(model, zeros="count")
        alone.load_state_dict(state["pruner"])
        assert str(alone.decisions[0]) == str(pruner.decisions[0])
        assert alone.density == pruner.density
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def work(rank, ranks, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="torch")
    meeting, patience = f"file://{folder}/meeting-{ranks}", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=patience)
    results = {}
    chosen = sys.argv[3:] or CASES
    for name in chosen:
        torch.manual_seed(0)
        try:
            CASES[name]()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        wrong = [None] * ranks
        dist.all_gather_object(wrong, bool(results[name]))
        if any(wrong) and not results[name]:
            results[name] = "another process failed"
    (folder / f"{ranks}-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    ranks, folder = int(sys.argv[1]), Path(sys.argv[2])
    children = []
    for rank in range(ranks):
        if (child := os.fork()) == 0:
            code = 1
            try:
                work(rank, ranks, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
