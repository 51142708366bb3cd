"""Settings that every run has: checked when created, written as TOML, and identified by a hash.

This module imports no torch, so that flags and help texts can be built from its fields.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, cast

from palmette.measures.parameters import setting
from palmette.pruning.budgets import ALLOCATIONS, Budget, FixedRatio
from palmette.pruning.methods import (
    METHODS,
    PARAMETERS,
    SALIENCIES,
    Method,
    Scope,
    alike,
    allocated,
    allocation_of,
    check_fits,
    check_method,
    check_saliency,
    check_scope,
    extras,
    method_named,
    parameters_of,
    pattern_of,
)
from palmette.pruning.stopping import StopRule, read_rules
from palmette.pruning.targets import target_of
from palmette.pruning.tolerance import Tolerance
from palmette.studies.disk import version1
from palmette.studies.settings import placed, slug, toml_at, typed
from palmette.training.rewinding import Rewind
from palmette.words import did_you_mean

ADDED: dict[int, dict[str, Any]] = {
    3: {"tolerance": "", "maximize": True, "label_noise": 0.0},
    4: {"clip_over": "kept", "densities": "0.5,0.2,0.1,0.05,0.02,0.01", "initial": ""},
    5: {"allocate": ""},
}
"""Version -> settings that it added, with the values that runs of earlier versions had."""
VERSION = max(ADDED)
"""Version of the settings in a run folder, which are all written; version 1 (`version1`) left out defaults."""

# Settings that apply only to some values of another setting.
BELONGS_TO: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: ("method", methods) for name, methods in PARAMETERS.items()},
    **dict.fromkeys(("momentum", "nesterov"), ("optimizer", ("sgd",))),
}
OF_METHOD = (*PARAMETERS, "allocate", "saliency")
"""Settings that are part of the method."""
NOT_REWOUND = {"lottery-ticket": "Fixed Ratio"}
"""Labels of methods that have another name where weights are not rewound."""
TRAINED, PRUNED = "What is trained", "How it is pruned"
_BY_METHOD = cast(float, None)  # the default is that of the method


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Settings that every run has: method, scope, rounds, rewind and stop rules."""

    data: str = setting("", "", TRAINED)
    model: str = setting("", "", TRAINED)
    method: str = setting(
        "sap", f"{', '.join(METHODS)}, your own as module:name, or several separated by commas.", PRUNED
    )
    p: float = setting(_BY_METHOD, "", PRUNED)
    q: float = setting(_BY_METHOD, "", PRUNED)
    eta: float = setting(_BY_METHOD, "", PRUNED)
    gamma: float = setting(_BY_METHOD, "", PRUNED)
    beta: float = setting(_BY_METHOD, "", PRUNED)
    ratio: float = setting(_BY_METHOD, "", PRUNED)
    densities: str = setting("", "", PRUNED)
    saliency: str = setting(
        "",
        f"Score that ranks the weights to prune: {', '.join(SALIENCIES)}, or your own as module:function.",
        PRUNED,
    )
    scope: Scope = setting(
        "global",
        "Unit within which weights are ranked: neuron, layer or global; n:m, such as 2:4: one cut leaves n of "
        "every m neighbours; or channel: whole channels are cut.",
        PRUNED,
    )
    allocate: str = setting(
        "",
        f"Share each cut between layers by {', '.join(ALLOCATIONS[:-1])} or {ALLOCATIONS[-1]}, for scope layer or "
        "neuron; index:0.1 sets the spread, 0.15 otherwise.",
        PRUNED,
    )
    rounds: int = setting(30, "Number of cuts; round 0 trains the dense network.", PRUNED)
    seed: int = setting(0, "", TRAINED)
    rewind: str = setting(
        "init",
        "Start of a round: init (the initial weights), epoch:k (the weights of round 0 after k epochs), "
        "learning-rate (keep the weights, restart the schedule) or fine-tune (keep the weights, and use the "
        "last, smallest learning rate of the schedule).",
        PRUNED,
    )
    stop: str = setting(
        "",
        "Rules that end a run early, such as auto (a loss of accuracy), accuracy-drops:0.01, density:0.05, "
        "small-cut:0.01 or index-turns-up:2.",
        PRUNED,
    )
    tolerance: str = setting(
        "",
        "Search for the smallest density within this loss of the dense score: 0.01 (points), 1% (of the score) or "
        "not-worse:0.95 (a confidence). Retrains at most --rounds times.",
        PRUNED,
    )
    own: str = setting("", "")  # what method="module:name" was when the spec was made, for the folder and the id

    def __post_init__(self) -> None:
        if isinstance(self.method, Method):
            self._set(**self._named(self.method))
        if self.tolerance != "":
            tolerance = Tolerance.parse(self.tolerance)
            if not tolerance.maximize:
                raise ValueError("a run compares accuracies, which are maximized, got a tolerance for a loss")
            self._set(tolerance=str(tolerance))
        self._set(**{f.name: typed(f, getattr(self, f.name)) for f in fields(self)})
        self._check_method()
        known = METHODS.get(self.method)
        for name, default in parameters_of(known).items():
            if getattr(self, name) in (None, ""):
                self._set(**{name: default})
        if known is not None:
            # Normalise, so that equal experiments have one id: Lottery Ticket by dense weights is One Shot.
            same = alike(known)
            ranked_by = self.saliency or known.saliency
            found = next((n for n in same if METHODS[n].saliency == ranked_by), None)
            self._set(method=found or same[0], saliency="" if found else self.saliency, own="")
            budget = allocation_of(self.budget)[0]
            check_fits(budget, self.scope)
            self._set(**{f.name: getattr(budget, f.name) for f in self._parameters()})
        elif not self.own.startswith(f"{self.method} "):
            self._set(own=self._described())
        check_scope(self.scope, also=("channel", "n:m"))
        if pattern_of(self.scope) is not None:
            self._set(rounds=min(self.rounds, 1))
        shares = allocated(FixedRatio(), self.allocate)
        if self.allocate:
            check_fits(shares, self.scope)
        self._set(allocate=allocation_of(shares)[1])
        differences = self.differences()
        for name, (other, values) in BELONGS_TO.items():
            if name in differences and getattr(self, other) not in values:
                raise ValueError(
                    f"{name} belongs to {other}={' or '.join(map(repr, values))}, "
                    f"got {name}={getattr(self, name)!r} with {other}={getattr(self, other)!r}"
                )
        self._set(rewind=str(self.rewinding), stop=",".join(read_rules(self.stop)))
        if known is not None:
            self._check_searches(known)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _named(self, method: Method) -> dict[str, object]:
        """Name, parameters and saliency of a `Method`."""
        budget, allocate = allocation_of(method.budget)
        if not (same := alike(replace(method, budget=budget))):
            what = " and ".join(extras(method)) or "budget"
            raise ValueError(
                f"a run folder stores its settings as text, so a custom {what} must be given as "
                f"method='module:name' of a Method, got {method!r}"
            )
        values = {f.name: getattr(budget, f.name) for f in budget.parameters()} | {"allocate": allocate}
        # A value that is default, as `dataclasses.replace` passes them, gives way to that of the method.
        usual = {**parameters_of(None), "saliency": "", "allocate": ""}
        for name in usual:
            if getattr(self, name) not in (None, "", usual[name], values.get(name)):
                raise ValueError(f"{name} is given twice, directly and by method={method!r}")
        unset = {f.name: f.default for f in fields(self) if f.name in PARAMETERS}
        return {"method": same[0], "saliency": method.saliency, **unset, **values}

    def _described(self) -> str:
        """Text that says what ``module:name`` is."""
        method = method_named(self.method)
        self._check_searches(method)
        check_fits(method.budget, self.scope)
        more = "".join(f", {name}={value!r}" for name, value in extras(method).items())
        return f"{self.method} {method.label or '-'}: {method.budget!r} by {method.saliency}{more}"

    def _check_searches(self, method: Method) -> None:
        if target_of(method.budget) and not self.tolerance:
            raise ValueError(f"method={self.method!r} needs a tolerance, such as 0.01, to search with")

    def _check_method(self) -> None:
        check_method(self.method)
        if self.saliency:
            check_saliency(self.saliency)

    @functools.cached_property
    def pruning(self) -> Method:
        """Method of the run; ``module:name`` is imported here."""
        known = method_named(self.method)
        own = {f.name: getattr(self, f.name) for f in self._parameters()}
        budget = allocated(type(known.budget)(**own) if own else known.budget, self.allocate)
        return replace(known, budget=budget, saliency=self.saliency or known.saliency)

    @property
    def budget(self) -> Budget:
        """Budget of the method."""
        return self.pruning.budget

    @property
    def rewinding(self) -> Rewind:
        """Rewind of the run."""
        return Rewind.parse(self.rewind)

    @property
    def allowed_loss(self) -> Tolerance | None:
        """Tolerance of the search; None without one."""
        return Tolerance.parse(self.tolerance) if self.tolerance else None

    @property
    def rules(self) -> tuple[StopRule, ...]:
        """Stop rules of the run."""
        return tuple(read_rules(self.stop).values())

    @property
    def label(self) -> str:
        """Name of the method in tables and figures; only rewound weights are a lottery ticket.

        >>> RunSpec(p=1, q=2).label, RunSpec(method="one-shot").label
        ('SAP (p=1, q=2)', 'One Shot')
        >>> RunSpec(method="lottery-ticket").label, RunSpec(method="lottery-ticket", rewind="learning-rate").label
        ('Lottery Ticket', 'Fixed Ratio')
        """
        if self.method not in METHODS:
            label = self.own.removeprefix(self.method).partition(": ")[0].strip(" -")
            return f"{label} ({self.method})" if label else self.method.removeprefix("own:")
        label = METHODS[self.method].label
        if not self.rewinding.goes_back:
            label = NOT_REWOUND.get(self.method, label)
        numbers = ", ".join(f"{name}={getattr(self, name):g}" for name in self.in_label)
        return f"{label} ({numbers})" if numbers else label

    @property
    def in_label(self) -> list[str]:
        """Parameters that `label` shows."""
        return [f.name for f in self._parameters() if f.metadata["in_label"]]

    def _parameters(self) -> list[Field[Any]]:
        """Parameters of a method of `METHODS`; none of a custom one."""
        return METHODS[self.method].budget.parameters() if self.method in METHODS else []

    def defaults(self) -> dict[str, Any]:
        """Default of every setting; those of parameters depend on the method."""
        own = parameters_of(METHODS.get(self.method)) | {"own": self.own}
        return {f.name: own.get(f.name, f.default) for f in fields(self)}

    def settings(self) -> dict[str, Any]:
        """All settings by name; the saliency is the method's if none was chosen."""
        known = METHODS.get(self.method)
        return asdict(self) | {"saliency": self.saliency or (known.saliency if known else "")}

    def differences(self) -> dict[str, Any]:
        """Settings that are not default, in the order of the fields.

        >>> RunSpec(seed=3, p=0.5).differences()
        {'seed': 3}
        """
        return {name: v for name, default in self.defaults().items() if (v := getattr(self, name)) != default}

    @functools.cached_property
    def id(self) -> str:
        """Readable prefix and hash of all settings; a safe file name on every platform."""
        return self._hashed(VERSION, self.settings())

    def _hashed(self, version: int, settings: Mapping[str, Any]) -> str:
        # Hash 1 and 1.0 alike, so that an int field can become a float field.
        plain = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in settings.items()}
        text = json.dumps({"version": version, **plain}, sort_keys=True, separators=(",", ":"))
        return f"{self._prefix()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def earlier_ids(self) -> list[str]:
        """Ids of the run in earlier versions that could run it."""
        settings, found = self.settings(), list[str]()
        for version in range(VERSION, 2, -1):
            for name, value in ADDED[version].items():
                if settings.pop(name, value) != value:
                    return found
            found.append(self._hashed(version - 1, settings))
        first = version1.id_of(settings, self._prefix())
        return found if first is None else [*found, first]

    def folder_in(self, out: str | Path) -> Path:
        """Folder of the run in `out`, named by its id, or by an id of an earlier version if that folder exists."""
        names = [self.id, *self.earlier_ids]
        return next((path for name in names if (path := Path(out) / name).exists()), Path(out) / self.id)

    def _prefix(self) -> str:
        return "-".join([slug(self.data), slug(self.model), self._method_slug(), f"s{self.seed}"])

    def _method_slug(self) -> str:
        shown = [f for f in self._parameters() if f.metadata["short"]]
        return "-".join([slug(self.method), *(f"{f.metadata['short']}{getattr(self, f.name):g}" for f in shown)])

    def to_toml(self) -> str:
        """All settings, one per line, below a comment with the id."""
        # TOML has no null. Its strings equal JSON's except for control characters, which no setting has.
        values = {"version": VERSION, **{k: "none" if v is None else v for k, v in self.settings().items()}}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()]
        return "".join([f"# {self.id}\n", *lines])

    @classmethod
    def from_toml(cls, text_or_path: str | Path) -> Self:
        """Read the result of `to_toml`, or a part of it. A string is TOML, or a path if it ends in ``.toml``.

        Missing settings of a text without a `version` have their current defaults.
        """
        place, given = toml_at(text_or_path)
        try:
            return cls(**cls.complete(given))
        except (TypeError, ValueError) as error:
            raise placed(place, error) from error

    @classmethod
    def complete(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Settings of a file, completed with the defaults of its version."""
        version, known = given.pop("version", None), [f.name for f in fields(cls)]
        for name in [name for name in given if name not in known]:
            grid = "; a file with tables is a grid, for `palmette sweep`" if isinstance(given[name], dict) else ""
            hint = grid or did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise ValueError(f"there is no setting {name!r}{hint}")
        if version is None:
            return given
        if type(version) is not int or not 1 <= version <= VERSION:
            raise ValueError(f"version must be 1 to {VERSION}, got {version!r}; a newer palmette may read it")
        for later in range(max(version, 2) + 1, VERSION + 1):
            # Not only what is missing: the tolerance of version 2 ended a run, and was no search.
            given |= {name: value for name, value in ADDED[later].items() if name in known}
        if version == 1:
            return version1.complete(given)
        if missing := [name for name in known if name not in given]:
            raise ValueError(f"it lacks {', '.join(missing)}, which every file of version {version} has")
        return given
