"""A model with a layer of each kind."""

import torch
from torch import nn


def mixed(seed=0):
    """Layers of all layouts: out first, in first, in groups, in half precision."""
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(40, 30),
            "conv": nn.Conv2d(6, 20, 3),
            "up": nn.ConvTranspose1d(6, 10, 3),
            "grouped": nn.ConvTranspose2d(8, 6, 3, groups=2),
            "narrow": nn.Linear(33, 17).to(torch.bfloat16),
        }
    )
    with torch.no_grad():
        model["linear"].weight[3] = 0
        model["conv"].weight[::2] *= 5
        model["linear"].weight[10:12] = 0.125  # ties, with the half precision too
    return model
