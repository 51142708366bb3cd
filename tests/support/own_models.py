"""Models as users write them, for tests of fleets."""

import torch
from torch import nn


class Net(nn.Module):
    """One layer; subclasses do something odd."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.a(x.flatten(1)).relu())


class Remembers(Net):
    """Assigns a buffer in its forward pass, and uses it when it is evaluated."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0).detach()
        return super().forward(x if self.training else x - 5 * self.mean)


class Scaled(Net):
    """Has a parameter that is a single number."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return super().forward(x) * self.scale


class Counts(Net):
    """Has a buffer that is no part of its state_dict."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.steps += 1
        return super().forward(x) / (1 + self.steps)


class Branches(Net):
    """Looks at its images to tell what to do, which several networks in one cannot."""

    def forward(self, x):
        return torch.cond(x.sum() > 0, super().forward, lambda x: self.head(self.a(x.flatten(1))), (x,))


def branches(*, shape, classes):
    return Branches()


def remembers(*, shape, classes):
    return Remembers()


def scaled(*, shape, classes):
    return Scaled()


def counts(*, shape, classes):
    return Counts()


def frozen(*, shape, classes):
    return Net().requires_grad_(False)
