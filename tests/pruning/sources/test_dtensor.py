"""Pruner and Masks under DistributedDataParallel and fully_shard, with real processes that talk to each other.

The cases are in distributed_cases.py. They are run together: starting processes takes longer than most of them.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from distributed_cases import CASES

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
QUICK = [
    "five_steps_with_fully_shard_are_those_of_one_process",
    "five_steps_with_ddp_are_those_of_one_process",
    "ties_go_by_index_across_the_borders_of_parts",
    "pruned_before_or_after_it_is_cut_into_parts_the_result_is_the_same",
    "no_collective_gathers_a_weight",
    "a_nan_on_one_process_is_said_by_all",
    "weights_that_came_back_are_counted_over_all_processes",
    "one_process_alone_can_ask_where_the_pruner_stands",
    "a_cut_after_an_evaluation_finds_the_weights_spread_again",
    "a_saliency_ranks_weights_that_are_spread",
    "a_checkpoint_is_read_by_another_number_of_processes",
    "a_checkpoint_of_a_model_that_is_not_spread_has_masks_and_decisions",
    "a_checkpoint_of_many_processes_becomes_a_file_for_one",
]


def run(ranks, folder, *names, thorough=False):
    """What went wrong on each process, by case."""
    script = Path(__file__).parents[2] / "support" / "distributed_cases.py"
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PALMETTE_THOROUGH": "1" if thorough else "0"}
    command = [sys.executable, str(script), str(ranks), str(folder), *names]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600)
    files = [folder / f"{ranks}-{rank}.json" for rank in range(ranks)]
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(file.read_text()) for file in files]
    return {name: [result[name] for result in found] for name in found[0]}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    return run(2, tmp_path_factory.mktemp("two"), *QUICK)


@pytest.mark.parametrize("name", QUICK)
def test_on_two_processes(name, on_two):
    assert on_two[name] == ["", ""]


@pytest.fixture(scope="module")
def on_four_then_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    return {ranks: run(ranks, folder, thorough=True) for ranks in (4, 2)}  # two read what four have saved


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [4, 2])
def test_on_four_processes_and_on_two(ranks, name, on_four_then_two):
    assert on_four_then_two[ranks][name] == [""] * ranks


@pytest.mark.slow
def test_docs_script_resumes_with_another_number_of_processes(tmp_path):
    page = Path(__file__).parents[3] / "docs" / "distributed.md"
    script = re.search(r"^```py\n# (\S+)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / script[1]).write_text(script[2])
    densities = []
    for ranks in (2, 1):
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), script[1]]
        settings = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=settings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
        densities += [float(d) for pair in re.findall(r"(\d\.\d{4}) -> (\d\.\d{4})", done.stdout) for d in pair]
    assert densities[0] == 1.0
    assert densities[1:-1:2] == densities[2::2]  # each cut begins where the one before ended
    assert len(densities) == 12
    assert sorted(densities, reverse=True) == densities


ON_ONE_DEVICE = """
import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

import palmette as pm

device = sys.argv[1]
dist.init_process_group("gloo" if device == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh(device, (1,))
for policy in [OffloadPolicy()] + [CPUOffloadPolicy()] * (device != "cpu"):
    for scope in ("neuron", "layer", "global"):
        torch.manual_seed(0)
        one = nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Linear(13, 3))
        many = fully_shard(copy.deepcopy(one).to(device), mesh=mesh, offload_policy=policy)
        expected, pruner = (pm.Pruner(model, scope=scope) for model in (one, many))
        expected.step()
        pruner.step()
        optimizer = torch.optim.AdamW(many.parameters(), weight_decay=0.1)
        pruner.hold(optimizer)
        pruner.load_state_dict(pruner.state_dict())
        for _ in range(3):
            many(torch.randn(4, 6, device=device)).square().mean().backward()
            optimizer.step()
        for name, mask in pruner.masks.items():
            weight = pruner.weights[name].tensor.to_local()
            assert mask.to_local().device == weight.device
            assert torch.equal(mask.to_local().cpu(), expected.masks[name])
            assert not weight[~mask.to_local()].any()
        pruner.step()
        pruner.masks.apply_(pruner.weights)
dist.destroy_process_group()
os._exit(0)  # threads of torch may abort an interpreter that ends in the usual way, on a busy machine
"""


CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_sums_are_reduced_on_the_device_of_the_mesh(device):
    command = [sys.executable, "-c", ON_ONE_DEVICE, device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
