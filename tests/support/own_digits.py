"""A network and a training loop as users write them, on real digits; for tests of pruning around one's own."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import palmette as pm
from palmette.training.data import load

DIGITS = load("digits")
X, Y = DIGITS.train_images.flatten(1)[:1200] / 240, DIGITS.train_labels[:1200]
HELD_OUT = DIGITS.train_images.flatten(1)[1200:] / 240, DIGITS.train_labels[1200:]
TEST = DIGITS.test_images.flatten(1) / 240, DIGITS.test_labels


def network(seed=0):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


def train(model, epochs=2):
    """Draws from all three sources of random numbers, and leaves the model in eval mode, as people do."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(100):
            noise = 0.01 * (random.random() + float(np.random.random()))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[batch] + noise), Y[batch]).backward()
            optimizer.step()
        schedule.step()
    model.eval()


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean()


def evaluate(model):
    return accuracy(model, *HELD_OUT)


def test(model):
    return accuracy(model, *TEST)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.dim() > 1])


def quick(model, lr=0.1, optimizer=torch.optim.SGD):
    """One step, whatever it is good for."""
    made = optimizer(model.parameters(), lr=lr)
    nn.functional.cross_entropy(model(X[:50]), Y[:50]).backward()
    made.step()
    made.zero_grad()


def states_are_equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def assert_zero(pruner):
    for name, weight in pruner.weights.items():
        assert not bool(weight.tensor.detach()[~pruner.masks[name]].any()), name


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


OPTIONS = {"budget": pm.FixedRatio(0.5), "rounds": 3, "tolerance": 1.0, "say": None}
UNSCORED = {"budget": pm.FixedRatio(0.5), "rounds": 3, "stop": pm.AtDensity(0), "say": None}
