"""A pruned model is an ordinary model: exporters accept it, and other runtimes run it."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import palmette as pm

PAGE = Path(__file__).parents[2] / "docs" / "smaller.md"


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()


def trained_with_masks_held():
    model = dense().train()
    optimizer = torch.optim.AdamW(model.parameters())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.8), scope="global")
    pruner.hold(optimizer)
    for _ in range(2):
        nn.functional.cross_entropy(model(torch.randn(16, 1, 8, 8)), torch.arange(16) % 10).backward()
        optimizer.step()
        pruner.step()
    return model.eval(), pruner


def calls(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_exported_program_has_no_masks_and_the_same_outputs(tmp_path):
    model, pruner = trained_with_masks_held()
    x = torch.randn(4, 1, 8, 8)
    program = torch.export.export(model, (x,))
    assert calls(program) == calls(torch.export.export(dense(), (x,)))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert torch.equal(loaded.module()(x), model(x))
    assert {n: int(loaded.state_dict[n].count_nonzero()) for n in pruner.masks} == {
        n: int(m.sum()) for n, m in pruner.masks.items()
    }


def run_by_onnxruntime(path, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter announces deprecations
@pytest.mark.parametrize("kind", ["held", "compacted", "channels", "torch"])
def test_onnxruntime_gives_the_same_outputs_without_masks(kind, tmp_path):
    import onnx

    x, path = torch.randn(4, 1, 8, 8), tmp_path / "model.onnx"
    model, _ = trained_with_masks_held()
    if kind == "compacted":
        model[0].weight.data[:3] = 0
        model, report = pm.compact(model, x)
        assert report.layers["0.weight"][1] == (5, 1, 3, 3)
    elif kind == "channels":
        model = dense()
        pm.Pruner(model, scope="channel", inputs=x, budget=pm.FixedRatio(0.5)).step()
        model, report = pm.compact(model, x)
        assert report.layers == {"0.weight": ((8, 1, 3, 3), (4, 1, 3, 3)), "4.weight": ((10, 288), (10, 144))}
    elif kind == "torch":
        prune.l1_unstructured(model[4], "weight", amount=0.9)
        pm.from_torch_prune(model)
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    with torch.no_grad():
        assert torch.allclose(run_by_onnxruntime(path, x), model(x), atol=1e-5)
    graph = onnx.load(path).graph
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    assert not any("mask" in name for name in weights)
    assert int((weights["4.weight"] != 0).sum()) == int(model[4].weight.count_nonzero())
    assert "Mul" not in {node.op_type for node in graph.node}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_recipe_in_the_docs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (recipe,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"torch": torch, "pm": pm, "model": trained_with_masks_held()[0], "inputs": torch.randn(4, 1, 8, 8)}
    exec(compile(recipe, PAGE.name, "exec"), names)
    assert {"model.onnx", "model.pt2"} <= {p.name for p in tmp_path.iterdir()}
