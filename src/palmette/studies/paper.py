"""The figures and tables of the paper as lists of experiments.

Diao et al. 2023, "Pruning Deep Neural Networks from a Sparsity Perspective", Section 4 and appendix; figures are
numbered as they stand there, those of the appendix from 7 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from palmette.studies.config import Experiment

Kind = Literal["hypothesis", "rounds", "scopes", "p and q", "eta and gamma", "p-q map", "table"]

METHODS: tuple[dict[str, object], ...] = (
    {"method": "sap", "p": 0.5, "q": 1.0},
    {"method": "sap", "p": 1.0, "q": 2.0},
    {"method": "lottery-ticket"},
    {"method": "one-shot"},
)
PS, QS = (0.2, 0.4, 0.5, 0.6, 0.8), (1.2, 1.4, 1.6, 1.8, 2.0)  # at q = 1, at p = 1
ETAS, GAMMAS = (0.0, 0.001, 0.01, 0.1, 1.0), (1.0, 3.0, 5.0, 7.0, 9.0)  # at gamma = 1, at eta = 0
SEEDS = (0, 1, 2, 3)

_SAID = {
    "hypothesis": "the index falls, rises and falls again as a network is pruned",
    "rounds": "retrained and pruned networks, round by round, pruned globally",
    "scopes": "neuron, layer and global scope: trade-off, layers kept, index of layers",
    "p and q": "what p and q do, pruned globally",
    "eta and gamma": "what eta_r and gamma do, pruned globally",
    "p-q map": "the index over p and q",
}


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table: what it shows, and the runs that it takes.

    >>> figure = FIGURES["fig2"]
    >>> print(figure.title)
    FashionMNIST, MLP: retrained and pruned networks, round by round, pruned globally
    >>> len(figure.experiments()), len(figure.experiments(seeds=[0], rounds=5))
    (16, 4)
    """

    name: str
    kind: Kind
    data: str = ""
    model: str = ""
    said: str = ""

    @property
    def title(self) -> str:
        """What it shows."""
        where = {"mlp": "MLP", "cnn": "CNN", "resnet18": "ResNet18", "resnet50": "ResNet50", "linear": "Linear"}
        model = where.get(self.model, "WResNet28x8")
        return self.said or f"{self.data}, {model}: {_SAID[self.kind]}"

    def experiments(
        self, *, seeds: Sequence[int] = SEEDS, epochs: int | None = None, rounds: int | None = None
    ) -> list[Experiment]:
        """The runs behind it, those of one seed together; with fewer epochs or rounds than the paper's if asked.

        Figures share runs: an experiment that stands in two of them is the same value, and is run once.
        """
        if self.kind == "table":
            return []
        base = Experiment(data=self.data, model=self.model, rounds=rounds_of(self.model))
        if epochs is not None:
            base = replace(base, epochs=epochs)
        if rounds is not None:
            base = replace(base, rounds=rounds)
        found = [
            replace(base, seed=seed, **variant)  # type: ignore[arg-type]
            for seed in seeds
            for variant in _VARIANTS[self.kind]
        ]
        return list(dict.fromkeys(found))


def rounds_of(model: str) -> int:
    """T of the paper: 30, and 15 for ResNet18 and what is larger.

    >>> rounds_of("cnn"), rounds_of("wresnet28x8")
    (30, 15)
    """
    return 30 if model in ("linear", "mlp", "cnn") else 15


def model_epochs(experiments: Iterable[Experiment]) -> int:
    """How many epochs they train in all, if none ends early.

    >>> model_epochs(FIGURES["fig2"].experiments())
    99200
    """
    return sum(e.epochs * (e.rounds + 1) for e in experiments)


_SAP: dict[str, object] = {"method": "sap"}
_VARIANTS: dict[str, list[dict[str, object]]] = {
    "hypothesis": [{"method": "one-shot"}],
    "rounds": list(METHODS),
    "p-q map": list(METHODS),
    "scopes": [{**method, "scope": scope} for scope in ("neuron", "layer", "global") for method in METHODS],
    "p and q": [{**_SAP, "p": p, "q": 1.0} for p in PS] + [{**_SAP, "p": 1.0, "q": q} for q in QS],
    # At p = .5 and q = 1, as in Figure 4; the paper does not say at which.
    "eta and gamma": [{**_SAP, "eta": eta} for eta in ETAS] + [{**_SAP, "gamma": gamma} for gamma in GAMMAS],
}


def _figures() -> Iterable[PaperFigure]:
    yield PaperFigure("fig1", "hypothesis", "FashionMNIST", "mlp")
    yield PaperFigure("fig2", "rounds", "FashionMNIST", "mlp")
    yield PaperFigure("fig3", "rounds", "CIFAR10", "resnet18")
    yield PaperFigure("fig4", "scopes", "CIFAR10", "cnn")
    yield PaperFigure("fig5", "p and q", "CIFAR10", "cnn")
    yield PaperFigure("fig6", "eta and gamma", "CIFAR10", "cnn")
    large = (("CIFAR100", "wresnet28x8"), ("TinyImageNet", "resnet50"))
    fashion = [("FashionMNIST", model) for model in ("linear", "mlp", "cnn", "resnet18")]
    cifar = [("CIFAR10", model) for model in ("linear", "mlp", "cnn", "resnet18")]
    appendix: list[tuple[Kind, str, str]] = [
        *(("p-q map", *pair) for pair in (fashion[1], cifar[3], *large)),
        *(("rounds", *pair) for pair in (fashion[0], *fashion[2:], *cifar[:3], *large)),
        *(("scopes", *pair) for pair in (*fashion[1:], *cifar[1:], *large)),
        *(("p and q", *pair) for pair in (*cifar[:2], cifar[3])),
        *(("eta and gamma", *pair) for pair in (*cifar[:2], cifar[3])),
    ]
    for number, (kind, data, model) in enumerate(appendix, start=7):
        yield PaperFigure(f"fig{number}", kind, data, model)
    yield PaperFigure("table1", "table", said="the layers of the MLP")
    yield PaperFigure("table2", "table", said="the layers of the CNN")
    yield PaperFigure("table3", "table", said="sizes, FLOPs and settings of training and pruning")


FIGURES = {figure.name: figure for figure in _figures()}
