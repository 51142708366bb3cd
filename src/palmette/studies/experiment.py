"""What an experiment is: a value, checked when it is made, written as TOML or flags, and known by its id."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import math
import re
import tomllib
import unicodedata
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast, get_args

from palmette.measures.parameters import as_number, is_number
from palmette.pruning.budgets import OF_SAP, Budget, FixedRatio, Sap
from palmette.pruning.methods import Scope, check_scope
from palmette.pruning.stopping import AccuracyDrops, AtDensity, IndexTurnsUp, SmallCut, StopRule
from palmette.training.data import canonical
from palmette.training.data.split import usual_size
from palmette.training.models import MODELS
from palmette.training.recipe import OptimizerName, Precision, Recipe, Schedule
from palmette.training.rewinding import Rewind

Method = Literal["sap", "lottery-ticket", "one-shot"]
Rule: TypeAlias = StopRule | AccuracyDrops

OWN_DATA = "own data"
"""What `prune_and_retrain` calls the data of its user, of which it knows as little as of the recipe."""

# Settings that mean something for one value of another setting only.
BELONGS_TO = {
    **dict.fromkeys(OF_SAP, ("method", ("sap",))),
    "ratio": ("method", ("lottery-ticket", "one-shot")),
    **dict.fromkeys(("momentum", "nesterov"), ("optimizer", ("sgd",))),
}
# Name -> rule, how its number is read, an example of it. `AfterSteps` is what `rounds` says.
_RULES: dict[str, tuple[Callable[[Any], Rule], Callable[[str], float], str]] = {
    "index-turns-up": (IndexTurnsUp, int, "2"),
    "small-cut": (SmallCut, float, "0.01"),
    "density": (AtDensity, float, "0.05"),
    "accuracy-drops": (AccuracyDrops, float, "0.01"),
}
_WITH_DEFAULT = ("index-turns-up", "small-cut")
_KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    r"""One network, trained and pruned round by round. Two with the same `id` have the same results.

    Args:
        data: a named data set, or the path of a folder or ``.npz`` file.
        model: one of `MODELS`, or ``"module:function"``.
        method: "sap", "lottery-ticket" or "one-shot".
        p, q, eta, gamma, beta: of `Sap`, for "sap" only.
        ratio: :math:`P`, the fraction that goes in each round, for the other two only.
        scope: "neuron", "layer" or "global".
        rounds: :math:`T`; round 0 trains the dense network.
        seed: of the initial weights and of the order of the data.
        rewind: "init", "epoch:k", "learning-rate" or "fine-tune".
        stop: what may end it earlier, such as "index-turns-up:2, small-cut:0.01, density:0.05".
        validation: how many images are cut from the training set; see `validation_images`.
        epochs: this and all that follow are those of `Recipe`.

    >>> print(Experiment(q=2).to_toml(), end="")
    # digits-mlp-sap-p0.5-q2-s0-f39fb134
    q = 2.0

    Diao et al. 2023, Algorithm 1 and Section 4.1; the device is no part of it, precision and compile are.
    """

    data: str = "digits"
    model: str = "mlp"
    method: Method = "sap"
    p: float = Sap.p
    q: float = Sap.q
    eta: float = Sap.eta
    gamma: float = Sap.gamma
    beta: float = Sap.beta
    ratio: float = FixedRatio.ratio
    scope: Scope = "global"
    rounds: int = 30
    seed: int = 0
    rewind: str = "init"
    stop: str = ""
    validation: int = 0
    epochs: int = Recipe.epochs
    batch: int = Recipe.batch
    optimizer: OptimizerName = Recipe.optimizer
    learning_rate: float = Recipe.learning_rate
    momentum: float = Recipe.momentum
    nesterov: bool = Recipe.nesterov
    weight_decay: float = Recipe.weight_decay
    schedule: Schedule = Recipe.schedule
    warm_up: int = Recipe.warm_up
    clip: float | None = Recipe.clip
    label_smoothing: float = Recipe.label_smoothing
    precision: Precision = Recipe.precision
    compile: bool = Recipe.compile

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _typed(f, getattr(self, f.name)))
        if self.model not in MODELS and not re.fullmatch("[^:]+:[^:]+", self.model):
            raise ValueError(f"model must be one of {', '.join(MODELS)}, or module:function, got {self.model!r}")
        if not self.data.strip():
            raise ValueError(f"data must be the name of a data set or a path, got {self.data!r}")
        if self.method not in get_args(Method):
            raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        check_scope(self.scope)
        _ = self.budget
        self.rewinding.check(self.recipe)
        for name, (other, values) in BELONGS_TO.items():
            if name in self.differences() and getattr(self, other) not in values:
                raise ValueError(
                    f"{name} belongs to {other}={' or '.join(map(repr, values))}, "
                    f"got {name}={getattr(self, name)!r} with {other}={getattr(self, other)!r}"
                )
        # One spelling of each experiment, so that it has one id.
        object.__setattr__(self, "data", canonical(self.data) or self.data)
        object.__setattr__(self, "rewind", str(self.rewinding))
        object.__setattr__(self, "stop", ",".join(_read_rules(self.stop)))

    @property
    def recipe(self) -> Recipe:
        """How a round is trained."""
        return Recipe(**{f.name: getattr(self, f.name) for f in fields(Recipe)})

    @property
    def budget(self) -> Budget:
        """How many weights go in a round."""
        if self.method == "sap":
            return Sap(p=self.p, q=self.q, eta=self.eta, gamma=self.gamma, beta=self.beta)
        return FixedRatio(self.ratio)

    @property
    def rewinding(self) -> Rewind:
        """Where a round starts."""
        return Rewind.parse(self.rewind)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What may end the experiment before its last round."""
        return tuple(_read_rules(self.stop).values())

    def validation_images(self, total: int) -> int:
        """How many of `total` training images are held out; where a rule needs some, 5,000 or a tenth by default.

        >>> Experiment(stop="accuracy-drops:0.01").validation_images(1500), Experiment().validation_images(1500)
        (150, 0)
        """
        if not self.validation and any(isinstance(rule, AccuracyDrops) for rule in self.rules):
            return usual_size(total)
        return self.validation

    def differences(self) -> dict[str, Any]:
        """What is not default, in the order of the fields.

        >>> Experiment(seed=3, p=0.5).differences()
        {'seed': 3}
        """
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @functools.cached_property
    def id(self) -> str:
        """A prefix for eyes and a hash of the differences. It is short, and a safe file name everywhere."""
        numbers = f"p{self.p:g}-q{self.q:g}" if self.method == "sap" else f"r{self.ratio:g}"
        prefix = f"{slug(self.data)}-{slug(self.model)}-{self.method}-{numbers}-s{self.seed}"
        # A whole number is one, whether its field is an int or a float: a field may come to take fractions.
        changed = self.differences().items()
        plain = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in changed}
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def to_toml(self) -> str:
        """The differences, one a line, below a comment with the id."""
        # TOML has no null. Its strings are JSON's but for control characters, which no setting has.
        values = {k: "none" if v is None else v for k, v in self.differences().items()}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()]
        return "".join([f"# {self.id}\n", *lines])

    @classmethod
    def from_toml(cls, text_or_path: str | Path) -> Self:
        """Read what `to_toml` writes. A string is TOML, or a path if it is one line that ends in ``.toml``."""
        text, place = str(text_or_path), ""
        try:
            if isinstance(text_or_path, Path) or re.fullmatch(r".*\.toml", text):
                place = f"{text_or_path}: "
                if not Path(text_or_path).is_file():
                    raise FileNotFoundError(
                        f"no experiment at {text!r}: a TOML file with settings, such as `epochs = 20`"
                    )
                text = Path(text_or_path).read_text(encoding="utf-8-sig")  # some editors begin with a mark
            given, known = tomllib.loads(text), [f.name for f in fields(cls)]
            for name in [name for name in given if name not in known]:
                raise ValueError(f"there is no setting {name!r}, {nearest_setting(name)}")
            return cls(**given)
        except (TypeError, ValueError) as error:  # also of text that is no TOML, or no text
            raise placed(place, error) from error

    def flags(self) -> list[str]:
        """The differences as arguments of `palmette run`.

        >>> Experiment(learning_rate=0.05, nesterov=False).flags()
        ['--learning-rate', '0.05', '--no-nesterov']
        """
        flags: list[str] = []
        for name, value in self.differences().items():
            flag = name.replace("_", "-")
            on_or_off, text = f"--{'' if value else 'no-'}{flag}", "none" if value is None else str(value)
            flags += [on_or_off] if isinstance(value, bool) else [f"--{flag}", text]
        return flags


def placed(place: str, error: Exception) -> Exception:
    """An error of the same kind that says first where it was found.

    >>> placed("grid.toml: ", ValueError("p is missing"))
    ValueError('grid.toml: p is missing')
    """
    if isinstance(error, UnicodeDecodeError):
        return ValueError(f"{place}this file is no text in UTF-8; save it as UTF-8")
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{place}{error}")


def nearest_setting(name: str) -> str:
    """What may have been meant by a name that no setting has, in words: the nearest, or all where none is near.

    >>> nearest_setting("learning-rte"), nearest_setting("lr")[:27]
    ("the nearest is 'learning_rate'", 'there are data, model, meth')
    """
    known = [f.name for f in fields(Experiment)]
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f"the nearest is {near[0]!r}" if near else f"there are {', '.join(known)}"


def seeds(text: str) -> list[int]:
    """Seeds as written on the command line.

    >>> seeds("0..3,7")
    [0, 1, 2, 3, 7]
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,99})\s*(?:\.\.\s*([0-9]{1,99})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < 100_000:
            rule = "seeds must be numbers or rising ranges of up to 100,000, as 0..3,7"
            raise ValueError(f"{rule}, got {part!r} in {text!r}")
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def _typed(field: Field[Any], value: Any) -> object:
    """`value` as Python's own type of the field, if it is of that kind; "none" where None is allowed."""
    name, kind = field.name, cast(Any, type(field.default))
    if "None" in str(field.type) and (value is None or value == "none"):
        return None
    number = kind in (int, float) and not isinstance(value, bool) and is_number(value, whole=kind is int)
    if not (number or (kind in (bool, str) and isinstance(value, kind))):
        raise TypeError(f"{name} must be {_KINDS[kind]}, got {name}={value!r}")
    if kind is float and not math.isfinite(as_number(value)):
        raise ValueError(f"{name} must be finite, got {name}={value!r}")
    if kind is int and not 0 <= value < 2**63:  # what TOML promises to carry
        raise ValueError(f"{name} must be at least 0 and below 2**63, got {name}={value!r}")
    if kind is str and any(unicodedata.category(c) in ("Cc", "Cs") for c in value):
        raise ValueError(f"{name} must be text without control characters, got {name}={value!r}")
    return kind(value) + 0 if number else value  # + 0: -0.0 is 0.0


def _read_rules(text: str) -> dict[str, Rule]:
    """Rules by the text that stands for them: "index-turns-up" is read as "index-turns-up:2"."""
    found: dict[str, Rule] = {}
    for part in text.split(",") if text.strip() else ():
        name, colon, number = (s.strip() for s in part.partition(":"))
        if name not in _RULES:
            raise ValueError(f"stop must be made of {', '.join(_RULES)}, got {part.strip()!r} in stop={text!r}")
        rule, read, example = _RULES[name]
        try:
            value = read(number if colon or name not in _WITH_DEFAULT else example) + 0
            found[f"{name}:{value!r}"] = rule(value)
        except ValueError as error:
            raise ValueError(f"stop={text!r} needs a number such as {name}:{example}: {error}") from None
    return found


def slug(name: str) -> str:
    """The end of a name or path, in characters that are safe in file names."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()
    return re.sub("[^a-z0-9_]+", "-", last)[-24:].strip("-") or "own"
