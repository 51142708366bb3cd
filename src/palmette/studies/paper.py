"""The figures and tables of the paper as lists of experiments.

Diao et al. 2023, "Pruning Deep Neural Networks from a Sparsity Perspective", Section 4 and appendix; figures are
numbered as in the paper, with the appendix starting at 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from palmette.studies.experiment import Experiment
from palmette.studies.status import epochs_before
from palmette.training.recipe import Precision

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
MODEL_NAMES = {
    "linear": "Linear",
    "mlp": "MLP",
    "cnn": "CNN",
    "resnet18": "ResNet18",
    "resnet50": "ResNet50",
    "wresnet28x8": "WResNet28x8",
}
"""Model names in the paper."""

_SAID = {
    "hypothesis": "the hypothesis, measured",
    "rounds": "retrained and pruned models, pruned globally",
    "scopes": "pruning scopes",
    "p and q": "effects of p and q",
    "eta and gamma": "effects of η_r and γ",
    "p-q map": "PQ Index over p and q",
}


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table, and the runs behind it.

    >>> figure = FIGURES["fig2"]
    >>> print(figure.title)
    FashionMNIST, MLP: retrained and pruned models, pruned globally
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
        """Contents of the figure, in words."""
        return self.said or f"{self.data}, {MODEL_NAMES.get(self.model, self.model)}: {_SAID[self.kind]}"

    @property
    def number(self) -> str:
        """Number in the paper.

        >>> FIGURES["fig2"].number, FIGURES["table3"].number
        ('Figure 2', 'Table 3')
        """
        return self.name.replace("fig", "Figure ").replace("table", "Table ")

    def scaled(self, data: str = "", models: Sequence[str] = ()) -> list[PaperFigure]:
        """The figure with other data, once for each of other models; a table stays as it is."""
        if self.kind == "table":
            return [self]
        return [replace(self, data=data or self.data, model=model) for model in models or (self.model,)]

    def experiments(
        self,
        *,
        seeds: Sequence[int] = SEEDS,
        epochs: int | None = None,
        rounds: int | None = None,
        precision: Precision = "float32",
        compile: bool = False,
    ) -> list[Experiment]:
        """Runs of the figure, grouped by seed; `epochs` and `rounds` override the paper's.

        Figures share runs: equal experiments of two figures run once.
        """
        if self.kind == "table":
            return []
        base = Experiment(
            data=self.data,
            model=self.model,
            rounds=rounds_of(self.model) if rounds is None else rounds,
            epochs=Experiment.epochs if epochs is None else epochs,
            # From the authors' code; the text has 250 everywhere, in a table without TinyImageNet.
            batch=500 if self.data == "TinyImageNet" else Experiment.batch,
            clip_over="all",  # from the authors' code, which clips gradients before it masks them
            precision=precision,
            compile=compile,
        )
        found = [
            replace(base, seed=seed, **variant)  # type: ignore[arg-type]
            for seed in seeds
            for variant in _VARIANTS[self.kind]
        ]
        return list(dict.fromkeys(found))


def rounds_of(model: str) -> int:
    """T of the paper: 30, or 15 for ResNet18 and larger models.

    >>> rounds_of("cnn"), rounds_of("wresnet28x8")
    (30, 15)
    """
    return 30 if model in ("linear", "mlp", "cnn") else 15


def model_epochs(experiments: Iterable[Experiment]) -> int:
    """Total number of epochs, if no run ends early.

    >>> model_epochs(FIGURES["fig2"].experiments())
    99200
    """
    return sum(epochs_before(e, e.rounds + 1) for e in experiments)


_VARIANTS: dict[str, Sequence[Mapping[str, object]]] = {
    "hypothesis": [{"method": "one-shot"}],
    "rounds": METHODS,
    "p-q map": METHODS,
    "scopes": [{**method, "scope": scope} for scope in ("neuron", "layer", "global") for method in METHODS],
    "p and q": [{"p": p, "q": 1.0} for p in PS] + [{"p": 1.0, "q": q} for q in QS],
    # At p = .5 and q = 1, as in the authors' code; the text does not say.
    "eta and gamma": [{"eta": eta} for eta in ETAS] + [{"gamma": gamma} for gamma in GAMMAS],
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
    yield PaperFigure("table1", "table", said="Layers of the MLP")
    yield PaperFigure("table2", "table", said="Layers of the CNN")
    yield PaperFigure("table3", "table", said="Models and settings")


FIGURES = {figure.name: figure for figure in _figures()}


def chosen(names: Iterable[str]) -> list[PaperFigure]:
    """Figures and tables by name, each once; "all" selects all of them.

    >>> [figure.name for figure in chosen(["3", "Figure 2", "table1", "fig3"])]
    ['fig3', 'fig2', 'table1']
    """
    found: dict[str, PaperFigure] = {}
    for given in names:
        name = given.lower().replace(" ", "").replace("figure", "fig")
        name = f"fig{name}" if name.isdecimal() else name
        if name == "all":
            found |= FIGURES
        elif name in FIGURES:
            found[name] = FIGURES[name]
        else:
            figures = [key for key in FIGURES if key.startswith("fig")]
            raise ValueError(
                f"the paper has {figures[0]} to {figures[-1]} and table1 to table3, got {given!r}; "
                "`palmette paper` lists them"
            )
    return list(found.values())
