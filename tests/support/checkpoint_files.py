"""Checkpoint files in the layouts that training code writes."""

import json

import torch
from safetensors.torch import save_file
from torch import nn

import palmette as pm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 12, 3)
        self.norm = nn.BatchNorm1d(12)
        self.attention = nn.MultiheadAttention(12, 2)
        self.head = nn.Linear(12, 5)


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


NESTINGS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "model": lambda state: {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(3, 3)}}}},
    "model_state_dict": lambda state: {"model_state_dict": state, "args": {"lr": 0.1}},
    "DataParallel": lambda state: {"state_dict": {f"module.{n}": t for n, t in state.items()}, "best": 0.9},
    "compiled": lambda state: {f"_orig_mod.{n}": t for n, t in state.items()},
    "both": lambda state: {"model": {f"module._orig_mod.{n}": t for n, t in state.items()}},
    "random state": lambda state: {"model": state, "step": torch.tensor(3), "rng_state": torch.get_rng_state()},
    "any key": lambda state: {
        "m": state,
        "step": torch.tensor(3),
        "o": {"state": {0: {"exp_avg": torch.ones(3, 3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    },
    "a matrix beside": lambda state: {"model": state, "centres": torch.ones(3, 3)},
    "settings": lambda state: {"model": {"depth": 20}, "weights": state},
    "two levels": lambda state: {"checkpoint": {"network": state}},
    "tree": lambda state: tree(state),
    "half a tree": lambda state: {
        part: {n.split(".", 1)[1]: t for n, t in state.items() if n.startswith(f"{part}.")}
        for part in ("embedding", "conv", "norm", "attention", "head")
    },
}


def tree(state):
    """{"a.b": t} as {"a": {"b": t}}."""
    root = {}
    for name, tensor in state.items():
        *parents, last = name.split(".")
        place = root
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = tensor
    return root


def sharded(folder, model, kind):
    """Two shards and an index, as Transformers writes them."""
    state = list(model.state_dict().items())
    base = "model" if kind == "safetensors" else "pytorch_model"
    names = [f"{base}-0000{i}-of-00002.{kind}" for i in (1, 2)]
    for name, part in zip(names, (dict(state[:5]), dict(state[5:])), strict=True):
        save_file(part, folder / name) if kind == "safetensors" else torch.save(part, folder / name)
    where = {n: names[int(i >= 5)] for i, (n, _) in enumerate(state)}
    index = folder / f"{base}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


def values(stored):
    return torch.cat(list(stored.raw_parts()))


def assert_holds(checkpoint, model):
    """The weights in the file are those that `prunable` finds in the model, with the same values."""
    wanted = pm.prunable(model)
    assert sorted(w.name for w in checkpoint.weights) == sorted(wanted)
    for stored in checkpoint.weights:
        assert stored.shape == tuple(wanted[stored.name].shape)
        assert torch.equal(values(stored), wanted[stored.name].tensor)
    names = {w.name for w in checkpoint.weights} | {t.name for t in checkpoint.others}
    assert names == set(model.state_dict())
