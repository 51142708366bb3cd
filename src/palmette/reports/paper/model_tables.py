"""Tables of the paper, computed from our models and settings, with the paper's value where it differs.

Diao et al. 2023, appendix, Tables 1 to 3.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from palmette.compression.flops import flops_per_image
from palmette.pruning.weights import evaluating, prunable
from palmette.reports.markup import latex, markdown
from palmette.studies.cost import SETS, shape_of
from palmette.studies.experiment import Experiment
from palmette.studies.paper import FIGURES, MODEL_NAMES, PaperFigure
from palmette.training.data.images import Images

PAPER = "in the paper"
"""Title of the column with the paper's value where it differs."""

# Layers in Tables 1 and 2, for n_c×H×W images (`pixels`, `channels`) of K `classes`.
_LAYERS = {
    "mlp": ("Linear({pixels}, 128)", "Linear(128, 256)", "Linear(256, {classes})"),
    "cnn": (
        "Conv2d({channels}, 64, 3, 1, 1)",
        "MaxPool2d(64, 2)",
        "Conv2d(64, 128, 3, 1, 1)",
        "MaxPool2d(128, 2)",
        "Conv2d(128, 256, 3, 1, 1)",
        "MaxPool2d(256, 2)",
        "Conv2d(256, 512, 3, 1, 1)",
        "MaxPool2d(512, 2)",
        "Global Average Pooling",
        "Linear(512, {classes})",
    ),
}
# Table 3: model size, FLOPS.
_STATISTICS = {
    ("FashionMNIST", "linear"): ("7.9 K", "3.9 M"),
    ("FashionMNIST", "mlp"): ("136.1 K", "67.8 M"),
    ("FashionMNIST", "cnn"): ("1.6 M", "20.1 G"),
    ("FashionMNIST", "resnet18"): ("11.2 M", "114.4 G"),
    ("CIFAR10", "linear"): ("30.7 K", "15.4 M"),
    ("CIFAR10", "mlp"): ("428.9 K", "214.2 M"),
    ("CIFAR10", "cnn"): ("1.6 M", "29.4 G"),
    ("CIFAR10", "resnet18"): ("11.2 M", "139.4 G"),
}
_LARGE = (("CIFAR100", "wresnet28x8"), ("TinyImageNet", "resnet50"))  # missing in its Table 3
_BATCH = 250  # images per FLOPS number of the paper


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Args:
        number, name: such as "Table 1" and its title; LaTeX adds its own number.
        columns, rows: titles and plain values.
        notes: sentences below it.
        shared: settings that all rows share.
        spare: columns to leave out of a narrow terminal.
    """

    number: str
    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    notes: tuple[str, ...] = ()
    shared: dict[str, Any] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Number and name.

        >>> table("table1").title
        'Table 1. Layers of the MLP'
        """
        return f"{self.number}. {self.name}"

    @property
    def texts(self) -> list[list[str]]:
        """Rows as texts."""
        return [
            ["" if v is None else f"{v:,}" if isinstance(v, int) else str(v) for v in row] for row in self.rows
        ]

    @property
    def words(self) -> tuple[str, ...]:
        """Columns that are not numbers."""
        numbers = [all(isinstance(row[i], int | None) for row in self.rows) for i in range(len(self.columns))]
        return tuple(c for c, number in zip(self.columns, numbers, strict=True) if not number)

    @property
    def note(self) -> str:
        """Shared settings and notes, shown below the table."""
        same = ", ".join(f"{name} {value}" for name, value in self.shared.items())
        return " ".join([*([f"All rows: {same}."] if same else []), *self.notes])

    def files(self) -> dict[str, str]:
        """The table as Markdown, CSV and LaTeX, by file suffix."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*self.columns, *self.shared])
        writer.writerows([*row, *self.shared.values()] for row in self.rows)
        caption = f"{self.name} ({self.number} of Diao et al. 2023). {self.note}"
        return {
            ".md": f"**{self.title}**\n\n{markdown(self.columns, self.texts, left=self.words, notes=self.note)}",
            ".csv": buffer.getvalue(),
            ".tex": latex(self.columns, self.texts, left=self.words, caption=caption),
        }


def table(name: str) -> PaperTable:
    """Compute one of the paper's tables.

    >>> [row[:3] for row in table("table1").rows if row[0] == "FashionMNIST"][:2]
    [('FashionMNIST', 'Linear(784, 128)', 100480), ('FashionMNIST', 'Linear(128, 256)', 33024)]
    """
    figure = FIGURES[name]
    if name == "table3":
        return _statistics(figure)
    return _architecture("mlp" if name == "table1" else "cnn", figure)


def _architecture(model: str, figure: PaperFigure) -> PaperTable:
    rows: list[tuple[Any, ...]] = []
    for data in ("FashionMNIST", "CIFAR10"):
        size = SETS[data]
        ours = layers(model, size)
        known = {"pixels": math.prod(size.shape), "channels": size.shape[0], "classes": size.classes}
        theirs = [text.format(**known) for text in _LAYERS[model]]
        match = difflib.SequenceMatcher(None, [text for text, _, _ in ours], theirs, autojunk=False)
        for kind, start, end, first, last in match.get_opcodes():
            paper = [None if kind == "equal" else "none"] * (end - start)
            rows += [(data, *layer, there) for layer, there in zip(ours[start:end], paper, strict=True)]
            rows += [(data, "none", None, None, text) for text in theirs[first:last] if kind != "equal"]
        parameters, flops = sum(count or 0 for _, count, _ in ours), sum(count or 0 for _, _, count in ours)
        rows.append((data, "together", parameters, flops, None))
    notes = ["A ReLU follows each layer but the last."]
    if model == "cnn":
        notes = [
            "Parameters of a convolution include those of its batch norm.",
            "The authors' code does not have a max-pool before the global mean either.",
            "Batch norm and ReLU follow a convolution.",
        ]
    notes.append("FLOPs are of one forward pass of one image: two per multiply-add.")
    columns: tuple[str, ...] = ("data set", "layer", "parameters", "FLOPs", PAPER)
    if all(row[-1] is None for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
        notes.append("The paper's table has the same layers.")
    return PaperTable(figure.number, figure.title, columns, rows, tuple(notes))


def layers(model: str, images: Images) -> list[tuple[str, int | None, int | None]]:
    """Layers as the paper writes them, with parameters (including those of the norm) and FLOPs."""
    network = shape_of(model, images)
    found: list[tuple[str, int | None, int | None]] = []
    channels = images.shape[0]

    def seen(module: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal channels
        count = sum(p.numel() for p in module.parameters())
        if isinstance(module, nn.BatchNorm2d):
            text, own, flops = found[-1]
            found[-1] = (text, (own or 0) + count, flops)
        elif isinstance(module, nn.Linear):
            text = f"Linear({module.in_features}, {module.out_features})"
            found.append((text, count, 2 * module.weight.numel()))
        elif isinstance(module, nn.Conv2d):
            size = f"{module.kernel_size[0]}, {module.stride[0]}, {module.padding[0]}"
            channels = module.out_channels
            text = f"Conv2d({module.in_channels}, {channels}, {size})"
            found.append((text, count, 2 * module.weight.numel() * output[0, 0].numel()))
        elif isinstance(module, nn.MaxPool2d):
            found.append((f"MaxPool2d({channels}, {module.kernel_size})", None, None))
        elif isinstance(module, nn.AdaptiveAvgPool2d):
            found.append(("Global Average Pooling", None, None))

    for module in network.modules():
        module.register_forward_hook(seen)
    with evaluating(network), torch.no_grad():
        network(torch.zeros(1, *images.shape, device="meta"))
    return found


def _statistics(figure: PaperFigure) -> PaperTable:
    rows: list[tuple[Any, ...]] = []
    for data, model in (*_STATISTICS, *_LARGE):
        shape = SETS[data].shape
        network = shape_of(model, SETS[data])
        size, flops = sum(p.numel() for p in network.parameters()), flops_per_image(network, shape=shape)
        weights = sum(weight.tensor.numel() for weight in prunable(network).values())
        first = PaperFigure("", "rounds", data, model).experiments(seeds=[0])[0]
        batch = flops * _BATCH
        numbers = (size, weights, flops, _short(batch), first.rounds, first.batch)
        rows.append((data, MODEL_NAMES[model], *numbers, _differing(data, model, size, batch)))
    columns = ("data set", "model", "parameters", "prunable", "FLOPs", f"FLOPs × {_BATCH}", "T", "batch", PAPER)
    notes = (
        "FLOPs are of one forward pass of one image: two per multiply-add, nothing else.",
        f"The paper gives them for {_BATCH} images and counts one per multiply-add for ResNet18.",
        "Its table lacks the last two rows and the largest gradient norm, which is from its code.",
    )
    return PaperTable(figure.number, figure.title, columns, rows, notes, _settings(), spare=("prunable", "FLOPs"))


def _settings() -> dict[str, Any]:
    """Settings that all experiments share."""
    sap, ticket = Experiment(), Experiment(method="lottery-ticket")
    names = {"sgd": "SGD", "cosine": "cosine annealing"}
    return {
        "epochs": sap.epochs,
        "optimizer": names.get(sap.optimizer, sap.optimizer),
        "learning rate": sap.learning_rate,
        "momentum": sap.momentum,
        "weight decay": sap.weight_decay,
        "Nesterov": "yes" if sap.nesterov else "no",
        "schedule": names.get(sap.schedule, sap.schedule),
        "gradient norm at most": sap.clip,
        "P": ticket.ratio,
        "beta": sap.beta,
    }


def _differing(data: str, model: str, size: int, flops: int) -> str | None:
    theirs = _STATISTICS.get((data, model))
    if theirs is None:
        return "no row"
    pairs = zip(("size", "FLOPS"), (_short(size), _short(flops)), theirs, strict=True)
    return ", ".join(f"{name} {there}" for name, here, there in pairs if here != there) or None


def _short(number: float) -> str:
    """Number as the paper writes it.

    >>> _short(7850), _short(136074), _short(20.1e9)
    ('7.9 K', '136.1 K', '20.1 G')
    """
    signs = {1e12: "T", 1e9: "G", 1e6: "M", 1e3: "K"}
    scale = next((scale for scale in signs if number >= scale), 1.0)
    return f"{number / scale + 1e-9:.1f} {signs.get(scale, '')}".strip()
