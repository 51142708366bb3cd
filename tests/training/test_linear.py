"""Linear layers of stacked members, fused with a ReLU or not, equal torch's."""

import pytest
import torch
from torch import nn

from palmette.training.data import load
from palmette.training.loop import Training
from palmette.training.members import Member
from palmette.training.recipe import Recipe


class Own(nn.Module):
    """Module of which only a part is a Sequential."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        return self.body(torch.tanh(self.first(x.flatten(1))))


def shared_relu():
    relu = nn.ReLU()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), relu, nn.Linear(16, 16), relu, nn.Linear(16, 10))


def hooked():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    model[1].register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def partly_frozen():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    model[1].weight.requires_grad_(False)
    return model


MODELS = {
    "in place": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(inplace=True), nn.Linear(16, 10)),
    "without bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16, bias=False), nn.ReLU(), nn.Linear(16, 10, bias=False)
    ),
    "a final ReLU": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU()),
    "another activation": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.LeakyReLU(), nn.Linear(16, 10)
    ),
    "nested": lambda: nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(64, 16), nn.ReLU()), nn.Sequential(nn.Linear(16, 10))
    ),
    "a Linear of sequences": lambda: nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 8), nn.ReLU(), nn.Flatten()),
    "a custom module": Own,
    "a shared ReLU": shared_relu,
    "a hook": hooked,
    "partly frozen": partly_frozen,
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_stacked_layers_equal_single_ones(make, precision):
    digits, recipe = load("digits"), Recipe(batch=500, precision=precision)
    sets = []
    for _ in range(2):
        members = []
        for seed in range(3):
            torch.manual_seed(seed)
            model = make()
            members.append(Member(model, recipe.make_optimizer(model.parameters()), seed))
        sets.append(members)
    together, alone = sets
    Training(together, digits, recipe).epoch(0)
    for member in alone:
        Training([member], digits, recipe).epoch(0)
    for one, other in zip(together, alone, strict=True):
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5 if precision == "float32" else 5e-3)
