"""Settings of a run: an `Experiment`, or an `OwnExperiment` with the user's network and training function.

This module imports no torch, so that flags and help texts can be built from its fields.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from palmette.measures.parameters import setting
from palmette.pruning.methods import PARAMETER_FIELDS, Method, check_unrepaired, method_named
from palmette.pruning.tolerance import Tolerance
from palmette.studies.disk import version1
from palmette.studies.settings import placed, slug, toml_at
from palmette.studies.spec import TRAINED, RunSpec
from palmette.training.data import canonical
from palmette.training.models import MODELS
from palmette.training.recipe import Recipe
from palmette.words import did_you_mean

SEALED = "# sealed "
"""Beginning of the last line of the settings of an `OwnExperiment`, before their checksum."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Recipe, RunSpec):
    r"""One network, trained and pruned round by round. Experiments with the same `id` have the same results.

    Args:
        data: a named data set, or the path of a folder or ``.npz`` file.
        model: one of `MODELS`, or ``"module:function"``.
        method: a key of `METHODS`, a `Method`, or ``"module:name"`` of a `Method`.
        p, q, eta, gamma, beta, ratio: parameters of the budget; the method's by default.
        allocate: how layers share each cut, as `by` of `Allocated`: "index", or "index:0.1" with a spread.
        saliency: a key of `SALIENCIES`, or ``"module:function"``; the method's by default.
        scope: "neuron", "layer", "global", "channel" or "n:m", see `Pruner`.
        rounds: :math:`T`; round 0 trains the dense network.
        seed: seed of the initial weights and the data order.
        rewind: "init", "epoch:k", "learning-rate" or "fine-tune".
        stop: rules that end the run early, such as "auto, small-cut:0.01, density:0.05".
        tolerance: if set, search for the smallest density within this loss of the dense network's accuracy on
            held-out images: 0.01 (points), "1%" (of the accuracy) or "not-worse:0.95" (a confidence).
        validation: number of training images to hold out; see `validation_images`.
        label_noise: fraction of training labels to replace by a random other class; held-out labels stay.
        epochs: this and all following settings as in `Recipe`.

    >>> import palmette as pm
    >>> print(*pm.Experiment(q=2).to_toml().splitlines()[2:6], sep="\n")
    data = "digits"
    model = "mlp"
    method = "sap"
    p = 0.5

    Diao et al. 2023, Algorithm 1 and Section 4.1. Precision and compile are settings, the device is not.
    """

    data: str = setting(
        "digits",
        "A data set (`palmette data` lists them), a folder of images, an .npz file, or module:name of two PyTorch "
        "data sets, for training and test, or of a function that returns them.",
        TRAINED,
    )
    model: str = setting(
        "mlp",
        f"{', '.join(MODELS)}, or your own as module:function, called with shape=(channels, height, width) "
        "and classes=number.",
        TRAINED,
    )
    seed: int = setting(
        0,
        "Seeds of the initial weights and data order, such as 0..3,7 (numbers, not a count). Each method runs "
        "once per seed.",
        TRAINED,
    )
    validation: int = setting(0, "Number of training images to hold out for validation.", TRAINED)
    label_noise: float = setting(
        0.0, "Fraction of the training labels to replace by a random other class; held-out labels stay.", TRAINED
    )

    def __post_init__(self) -> None:
        if isinstance(self.method, Method):
            check_unrepaired(self.method)
        RunSpec.__post_init__(self)
        Recipe.__post_init__(self)
        if self.model not in MODELS and not re.fullmatch("[^:]+:[^:]+", self.model):
            known, hint = ", ".join(MODELS), did_you_mean(self.model, MODELS)
            raise ValueError(f"model must be one of {known}, or module:function, got {self.model!r}{hint}")
        if not self.data.strip():
            raise ValueError(f"data must be the name of a data set or a path, got {self.data!r}")
        if not 0 <= self.label_noise <= 1:
            raise ValueError(f"label_noise must be between 0 and 1, got label_noise={self.label_noise!r}")
        self.rewinding.check(self.recipe)
        self._set(data=canonical(self.data) or self.data)

    def _described(self) -> str:
        check_unrepaired(method_named(self.method))
        return super()._described()

    @property
    def recipe(self) -> Recipe:
        """Training of a round."""
        return Recipe(**{f.name: getattr(self, f.name) for f in fields(Recipe)})

    def validation_images(self, total: int) -> int:
        """Number of held-out images of `total`; if a rule or a search needs them, 5,000 or a tenth by default.

        >>> Experiment(stop="accuracy-drops:0.01").validation_images(1500), Experiment().validation_images(1500)
        (150, 0)
        """
        from palmette.training.data.split import usual_size

        needed = self.tolerance or any(getattr(rule, "needs_validation", False) for rule in self.rules)
        if not self.validation and needed:
            return usual_size(total)
        return self.validation

    def flags(self) -> list[str]:
        """Non-default settings as arguments of `palmette run`.

        >>> Experiment(learning_rate=0.05, nesterov=False).flags()
        ['--learning-rate', '0.05', '--no-nesterov']
        """
        flags: list[str] = []
        for name, value in self.differences().items():
            flag = name.replace("_", "-")
            on_or_off, text = f"--{'' if value else 'no-'}{flag}", "none" if value is None else str(value)
            flags += [on_or_off] if isinstance(value, bool) else [f"--{flag}", text]
        return flags


@dataclass(frozen=True, kw_only=True)
class OwnExperiment(RunSpec):
    """Settings of a run of `prune_and_retrain`, with the user's network and training function.

    Args:
        model: "own:" and the class of the network.
        run: a random token of the run; copies of a folder share it.
        method: a key of `METHODS`, or "own:" and the repr of a custom budget.
        trained: whether the network was trained already, so that round 0 only measures and cuts it.
        evaluate, test: whether these functions were given.
        maximize: whether larger scores are better.
        own_rules: repr of custom stop rules.
        initial: hash of the weights that the run started from; empty if it is unknown.

    >>> OwnExperiment(model="own:Net", run="5f2a9c01", p=1, q=2).id
    'net-sap-p1-q2-5f2a9c01'
    """

    data: str = version1.OWN_DATA
    rewind: str = "learning-rate"
    run: str = ""
    trained: bool = False
    evaluate: bool = False
    test: bool = False
    maximize: bool = True
    own_rules: str = ""
    initial: str = ""
    epochs: ClassVar[int] = 0
    validation: ClassVar[int] = 0

    def _described(self) -> str:
        return ""  # `method` has it

    def _check_method(self) -> None:
        if not self.method.startswith("own:"):
            super()._check_method()

    @property
    def allowed_loss(self) -> Tolerance | None:
        """Tolerance of the search; None without one."""
        return Tolerance.parse(self.tolerance, maximize=self.maximize) if self.tolerance else None

    @functools.cached_property
    def id(self) -> str:
        """Network, method and token of the run."""
        return "-".join([slug(self.model.removeprefix("own:")), self._method_slug(), self.run])

    def to_toml(self) -> str:
        """All settings, one per line, and their checksum, which the id does not contain."""
        return with_checksum(super().to_toml())


def with_checksum(settings: str) -> str:
    """Settings with their checksum below."""
    return f"{settings}{SEALED}{hashlib.sha256(settings.encode()).hexdigest()[:16]}\n"


def read_spec(file: str | Path) -> Experiment | OwnExperiment:
    """Read the ``experiment.toml`` of a run folder; a file without a version has version 1."""
    place, given = toml_at(file)
    kind: type[Experiment | OwnExperiment] = OwnExperiment if "run" in given else Experiment
    try:
        if given.setdefault("version", 1) == 1 and given.get("data") == version1.OWN_DATA:
            known = {f.name for f in fields(OwnExperiment)}
            own = {name: value for name, value in version1.complete(given).items() if name in known}
            return OwnExperiment(**own)
        return kind(**kind.complete(given))
    except (TypeError, ValueError) as error:
        raise placed(place, error) from error


def setting_fields() -> list[Field[Any]]:
    """Fields of `Experiment`; parameters of budgets have the default and help of their budget."""
    return [PARAMETER_FIELDS.get(f.name, f) for f in fields(Experiment) if f.metadata["group"]]
