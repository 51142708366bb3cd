"""Random networks to compact, of convolutions, norms, sums, products, slices and gates of 8×8 images."""

import random

import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS = [F.relu, F.gelu, F.silu, F.hardswish, torch.tanh, torch.sigmoid]
POOLS = [
    lambda x: F.max_pool2d(x, 3, 1, 1),
    lambda x: F.avg_pool2d(x, 3, 1, 1),
    lambda x: F.interpolate(x, (8, 8)),
]


class Drawn(nn.Module):
    """A graph of layers, each on one or two of the four values before it, all images of 8×8."""

    def __init__(self, seed, *, zeros=True):
        super().__init__()
        self.draw = random.Random(seed)
        torch.manual_seed(seed)
        self.layers, self.widths, self.steps = nn.ModuleList(), [4], []
        kinds = [
            "conv",
            "conv",
            "conv",
            "norm",
            "activation",
            "pool",
            "add",
            "mul",
            "cat",
            "grouped",
            "scale",
            "squeeze",
            "part",
            "gate",
        ]
        for _ in range(self.draw.randint(6, 14)):
            getattr(self, self.draw.choice(kinds))(
                self.draw.randrange(max(0, len(self.widths) - 4), len(self.widths))
            )
        self.head = nn.Linear(self.widths[-1], 3)
        for layer in [*self.layers, self.head] if zeros else ():
            self.sprinkle_zeros_(layer)
        needed = {len(self.steps)}  # unused values are not in the trace
        for number, (_, used, _) in reversed(list(enumerate(self.steps, 1))):
            needed |= set(used) if number in needed else set()
        self.needed = needed

    def sprinkle_zeros_(self, layer):
        weight = layer.weight.data
        weight[torch.rand_like(weight) < 0.3] = 0
        if layer is not self.head:
            weight[torch.rand(len(weight)) < 0.35] = 0
        if weight.dim() > 1:
            weight[:, torch.rand(weight.shape[1]) < 0.25] = 0
        if getattr(layer, "bias", None) is not None:
            layer.bias.data[torch.rand(len(layer.bias)) < 0.4] = 0

    def step(self, function, used, width, layers=()):
        numbers = range(len(self.layers), len(self.layers) + len(layers))
        self.layers.extend(layers)
        self.steps.append((function, used, numbers))
        self.widths.append(width)

    def conv(self, i):
        kernel, width = self.draw.choice([(1, 0), (3, 1)]), self.draw.randint(1, 8)
        made = self.draw.choice([nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d])
        layer = made(self.widths[i], width, kernel[0], padding=kernel[1], bias=self.draw.random() < 0.5)
        self.step(lambda x, layer: layer(x), [i], width, [layer])

    def grouped(self, i):
        width = self.widths[i]
        groups = self.draw.choice([g for g in (width, width // 2) if g and width % g == 0])
        layer = nn.Conv2d(width, groups * self.draw.randint(1, 2), 3, padding=1, groups=groups)
        self.step(lambda x, layer: layer(x), [i], layer.out_channels, [layer])

    def norm(self, i):
        layer = nn.BatchNorm2d(self.widths[i])
        for values in (layer.running_mean, layer.weight.data, layer.bias.data):
            values.normal_()
        self.step(lambda x, layer: layer(x), [i], self.widths[i], [layer])

    def scale(self, i):
        layer = nn.PReLU(self.widths[i])  # for its vector of weights
        self.step(lambda x, layer: x * layer.weight[:, None, None], [i], self.widths[i], [layer])

    def squeeze(self, i):
        down, up = nn.Conv2d(self.widths[i], 3, 1), nn.Conv2d(3, self.widths[i], 1)
        gate = lambda x, down, up: x * up(down(x.mean((2, 3), keepdim=True)).relu()).sigmoid()  # noqa: E731
        self.step(gate, [i], self.widths[i], [down, up])

    def activation(self, i):
        self.step(self.draw.choice(ACTIVATIONS), [i], self.widths[i])

    def pool(self, i):
        self.step(self.draw.choice(POOLS), [i], self.widths[i])

    def add(self, i):
        other = self.draw.choice([j for j, width in enumerate(self.widths) if width == self.widths[i]])
        self.step(self.draw.choice([torch.add, torch.sub]), [i, other], self.widths[i])

    def mul(self, i):
        other = self.draw.choice([j for j, width in enumerate(self.widths) if width == self.widths[i]])
        self.step(torch.mul, [i, other], self.widths[i])

    def cat(self, i):
        other = self.draw.randrange(len(self.widths))
        self.step(lambda x, y: torch.cat([x, y], 1), [i, other], self.widths[i] + self.widths[other])

    def part(self, i):
        width = self.widths[i]
        first, last = self.draw.randrange(width), self.draw.randrange(width)
        part = slice(
            self.draw.choice([None, first, first - width]), self.draw.choice([None, last + 1, last - width])
        )
        if size := len(range(width)[part]):
            self.step(lambda x: x[:, part], [i], size)

    def gate(self, i):
        if self.widths[i] % 2 == 0:
            self.step(lambda x: torch.mul(*x.chunk(2, 1)), [i], self.widths[i] // 2)

    def forward(self, x):
        values = [x]
        for number, (function, used, layers) in enumerate(self.steps, 1):
            given = [values[i] for i in used]
            values.append(function(*given, *(self.layers[n] for n in layers)) if number in self.needed else None)
        return self.head(values[-1].mean((2, 3)))
