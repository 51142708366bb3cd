"""Zeros of a model that is already pruned stay pruned, and zeros that are not from pruning train."""

import pytest
import torch
from checkpoint_files import net
from click.testing import CliRunner
from torch import nn

import palmette as pm
from palmette.checkpoints.parts import measure_part, merge_parts
from palmette.cli import main

X, Y = torch.linspace(-1, 1, 60).reshape(10, 6).sin(), torch.arange(10) % 3


def pruned(density=0.5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 7))
    pm.Pruner(model, budget=pm.FixedRatio(1 - density)).step()
    return model


def nonzero(model):
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.dim() > 1)


def train(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


def test_a_new_pruner_of_a_pruned_model_keeps_its_zeros_and_says_so():
    model = pruned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"130 zeros \(0.weight, 2.weight\) count as pruned before and stay"):
        pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), hold=optimizer)
    train(model, optimizer)
    assert nonzero(model) == pruner.masks.kept == 130
    assert pruner.step().cut == 65


def test_layers_pruned_to_nothing_are_named():
    model = pruned()
    with torch.no_grad():
        model[2].weight.zero_()
    told = r" zeros \(0.weight\) count .*\. Nothing but zeros, and free to train: 2.weight; give masks"
    with pytest.warns(UserWarning, match=told):
        pruner = pm.Pruner(model)
    assert int(pruner.masks["2.weight"].sum()) == 140


def test_zeros_that_count_train():
    model = pruned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert pm.Pruner(model, hold=optimizer, zeros="count").density == 1
    train(model, optimizer)
    assert nonzero(model) == 260


@pytest.mark.parametrize(("zeros", "density"), [(10, 1.0), (11, 0.989), (1000, 1.0)])
def test_zeros_count_as_pruned_from_one_in_a_hundred_but_not_where_there_is_nothing_else(zeros, density):
    model = nn.Linear(50, 20)
    with torch.no_grad():
        model.weight.fill_(1).view(-1)[:zeros] = 0
    with pytest.warns(UserWarning, match="11 zeros") if density < 1 else torch.no_grad():
        pruner = pm.Pruner(model)
    assert pruner.density == density
    assert pm.how_compressible(model).whole.d == round(1000 * density)


def test_masks_that_are_given_decide_alone():
    model = pruned()
    assert pm.Pruner(model, masks=pm.Masks.ones_like(pm.prunable(model))).density == 1


def test_a_wrong_argument_is_refused_before_anything_changes():
    for call in (pm.Pruner, pm.how_compressible):
        with pytest.raises(ValueError, match="zeros must be 'pruned' or 'count', got 'keep'"):
            call(pruned(), zeros="keep")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_file_and_parts_are_measured_alike(tmp_path, dtype):
    model = pruned().to(dtype)
    torch.save(model.state_dict(), file := tmp_path / "a.pt")
    for zeros, d, cut, left in (("pruned", 130, 65, 65), ("count", 260, 130, 130)):
        found = pm.how_compressible(file, zeros=zeros)
        assert (found.whole.d, found.whole.zeros) == (d, d - 130)
        assert found.layers == pm.how_compressible(model, zeros=zeros).layers
        assert merge_parts([measure_part(file, i, 2, zeros=zeros) for i in (1, 2)]).layers == found.layers
        out = tmp_path / f"{zeros}.safetensors"
        command = ["prune", str(file), "-o", str(out), "--scope", "global", "--density", "0.5", "--zeros", zeros]
        said = CliRunner().invoke(main, command).output
        assert f"Cut {cut} of {d} weights" in said
        assert sum(int(t.count_nonzero()) for t in _matrices(out)) == left


def _matrices(file):
    from safetensors.torch import load_file

    return [t for t in load_file(file).values() if t.dim() > 1]


def test_measure_says_what_was_pruned_before(tmp_path):
    torch.save(pruned(0.75).state_dict(), file := tmp_path / "a.pt")
    run = CliRunner().invoke(main, ["measure", str(file)], env={"COLUMNS": "200"})
    assert (
        "65 of 260 weights were pruned before, according to a mask or their zeros, and do not count." in run.output
    )
    assert "They count as weights" in CliRunner().invoke(main, ["measure", str(file), "--zeros", "count"]).output


def test_the_largest_cut_without_retraining_starts_from_what_is_left():
    report = pm.how_compressible(pruned(), evaluate=nonzero, tolerance="50%", scopes=["global"])
    assert report.headroom[0].share == pytest.approx(0.5, abs=0.01)
    assert report.headroom[0].dense.density == 0.5


def test_a_model_of_no_zeros_says_nothing():
    assert pm.Pruner(net()).density == 1
