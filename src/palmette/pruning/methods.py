"""Pruning methods by name: a budget (how many weights to prune) and a saliency (which).

This module imports no torch, so that settings, ids, labels and flags can be built from it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast

from palmette.errors import in_full
from palmette.pruning.budgets import (
    ALLOCATIONS,
    Allocated,
    Budget,
    By,
    Densities,
    FixedRatio,
    Sap,
    TailMass,
    check_budget,
)
from palmette.pruning.targets import Bisect, Interpolate
from palmette.words import did_you_mean

if TYPE_CHECKING:
    from palmette.pruning.saliency import Saliency, Subject

Scope = Literal["neuron", "layer", "global", "channel"] | str
"""Unit within which weights are ranked; "n:m", such as "2:4", keeps n of every m neighbours along the inputs."""
Zeros = Literal["pruned", "count"]
"""Zeros of a weight that has been pruned before: pruned, or weights like others."""
SCOPES: tuple[Scope, ...] = ("neuron", "layer", "global")


def pattern_of(scope: object) -> tuple[int, int] | None:
    """n and m of a scope "n:m", in which n of every m neighbours remain; None for other scopes.

    >>> pattern_of("2:4"), pattern_of("layer")
    ((2, 4), None)
    """
    if not (isinstance(scope, str) and (found := re.fullmatch(r"([1-9]\d*):([1-9]\d*)", scope))):
        return None
    n, m = int(found[1]), int(found[2])
    if n >= m:
        raise ValueError(f"scope n:m keeps n of every m neighbours, so n must be below m, got {scope!r}")
    return n, m


def usual_budget(scope: str) -> Budget:
    """Budget by default: `Sap()`, or the density of a scope "n:m"."""
    pattern = pattern_of(scope)
    return Sap() if pattern is None else Densities([pattern[0] / pattern[1]])


def check_scope(scope: str, *, also: Collection[str] = ()) -> None:
    """Raise unless `scope` is one of `SCOPES` or in `also`, in which "n:m" stands for all patterns."""
    if "n:m" in also and pattern_of(scope) is not None:
        return
    if scope == "channel" and scope not in also:
        raise ValueError(
            "scope 'channel' needs the graph of a model: use pm.Pruner(model, scope=\"channel\", inputs=example)"
        )
    if scope not in (*SCOPES, *also):
        known = (*SCOPES, *also)
        hint = did_you_mean(str(scope), known)
        raise ValueError(f"scope must be one of {', '.join(map(repr, known))}, got {scope!r}{hint}")


def check_fits(budget: Budget, scope: str) -> None:
    """Raise where `Allocated` shares a cut between layers ranked together, or a scope "n:m" has another budget."""
    if pattern := pattern_of(scope):
        n, m = pattern
        if not (isinstance(budget, Densities) and [round(m * rho) for rho in budget.values()] == [n]):
            raise ValueError(
                f"scope {scope!r} keeps {n} of every {m} weights, so its budget is Densities([{n / m:.4g}]), or "
                f"--method densities --densities {n / m:.4g} in palmette run; got {budget!r}"
            )
    if isinstance(budget, Allocated) and scope in ("global", "channel"):
        raise ValueError(
            f"{budget!r} shares a cut between layers, but scope {scope!r} ranks them together; use scope "
            "'layer' or 'neuron'"
        )


def allocated(budget: Budget, text: str) -> Budget:
    """`budget` shared between layers as `text` says: a value of `by`, and the spread after a colon.

    >>> allocated(FixedRatio(0.5), "index:0.1")
    Allocated(budget=FixedRatio(ratio=0.5), by='index', spread=0.1)
    """
    if not text:
        return budget
    by, colon, spread = text.partition(":")
    try:
        return Allocated(budget, cast(By, by), **({"spread": float(spread)} if colon else {}))
    except ValueError as error:
        raise ValueError(
            f"allocate must be one of {', '.join(ALLOCATIONS)}, or with a spread up to 0.5 such as index:0.1, "
            f"got {text!r}"
        ) from error


def allocation_of(budget: Budget) -> tuple[Budget, str]:
    """Inverse of `allocated`; empty text for a budget that is not shared.

    >>> allocation_of(Allocated(FixedRatio(0.5), by="erk"))
    (FixedRatio(ratio=0.5), 'erk')
    """
    if not isinstance(budget, Allocated):
        return budget, ""
    return budget.budget, budget.by if budget.spread == Allocated.spread else f"{budget.by}:{budget.spread!r}"


SALIENCIES = (
    *("magnitude", "dense-magnitude", "lamp", "input-weighted"),
    *("taylor", "fisher", "snip", "grasp", "synflow"),
)
"""Magnitude after the round's training, in the trained dense network, relative to the larger weights of its layer
(LAMP), or times the norm of its input (Wanda).

By gradients: Taylor and Fisher of the trained network; SNIP, GraSP and SynFlow of the network as the next round
starts, which is at initialisation if rounds are rewound to it.
"""


def check_saliency(name: str) -> None:
    """Raise unless `name` is one of `SALIENCIES` or has the form ``module:function``."""
    if not isinstance(name, str) or not (name in SALIENCIES or ":" in name.strip(":")):
        raise ValueError(
            f"saliency must be one of {', '.join(SALIENCIES)}, or your own as module:function, got {name!r}"
            f"{did_you_mean(str(name), SALIENCIES)}"
        )


REPAIRS = ("least-squares", "admm", "admm-gradual", "gradual", "sparsegpt")
"""Ways to update the remaining weights after a cut, see `palmette.pruning.repair.solving.repaired`."""


def check_repair(name: str) -> None:
    """Raise unless `name` is one of `REPAIRS`."""
    if name not in REPAIRS:
        raise ValueError(f"repair must be one of {', '.join(REPAIRS)}, got {name!r}")


@dataclass(frozen=True, kw_only=True)
class Method:
    """Pruning method: how many weights to prune in a round, and which.

    Args:
        budget: how many weights to prune, such as `Sap(p=1, q=2)` or a custom `Budget`.
        saliency: which weights to prune first: one of `SALIENCIES`, or ``"module:function"`` of a `Saliency`.
        repair: how to update the remaining weights after a cut without training: one of `REPAIRS`, or empty.
        label: the name in tables and figures.

    >>> import palmette as pm
    >>> pm.Method(budget=pm.FixedRatio(0.5), saliency="dense-magnitude", label="Halving").of_dense
    True
    >>> pm.METHODS["one-shot"].budget
    FixedRatio(ratio=0.2)
    """

    budget: Budget
    saliency: str = "magnitude"
    repair: str = ""
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_budget(self.budget)
        check_saliency(self.saliency)
        if self.repair:
            check_repair(self.repair)

    @property
    def of_dense(self) -> bool:
        """Whether every round ranks weights by the trained dense network."""
        return self.saliency == "dense-magnitude"

    @property
    def of_inputs(self) -> bool:
        """Whether the ranking needs inputs of the network."""
        return self.saliency == "input-weighted"

    def build_saliency(self, subject: Subject) -> Saliency:
        """Saliency for a cut of `subject`."""
        from palmette.pruning.saliency import BUILDERS, ranking

        return BUILDERS[self.saliency](subject) if self.saliency in BUILDERS else ranking(self.saliency)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "sap": Method(label="SAP", budget=Sap()),
        "lottery-ticket": Method(label="Lottery Ticket", budget=FixedRatio()),
        "one-shot": Method(label="One Shot", budget=FixedRatio(), saliency="dense-magnitude"),
        "tail-mass": Method(label="Tail Mass", budget=TailMass()),
        "densities": Method(label="Densities", budget=Densities()),
        "interpolate": Method(label="Interpolate", budget=Interpolate()),
        "bisect": Method(label="Bisect", budget=Bisect()),
    }
)
"""Methods by name. The first three are the paper's; the last two choose densities in a search."""


PARAMETERS: dict[str, tuple[str, ...]] = {}
"""Parameter of a budget -> methods that have it."""
PARAMETER_FIELDS: dict[str, Field[Any]] = {}
for _name, _method in METHODS.items():
    for _field in _method.budget.parameters():
        PARAMETERS[_field.name] = (*PARAMETERS.get(_field.name, ()), _name)
        PARAMETER_FIELDS.setdefault(_field.name, _field)


def parameters_of(method: Method | None) -> dict[str, Any]:
    """Defaults of the parameters of all budgets, from `method` or else the first method that has the parameter."""
    own = {f.name: f.default for f in method.budget.parameters()} if method else {}
    return {name: own.get(name, f.default) for name, f in PARAMETER_FIELDS.items()}


def extras(method: Method) -> dict[str, Any]:
    """Fields of a method, or of a subclass, that are not default: all but budget, saliency and label."""
    others = [f for f in fields(method) if f.name not in ("budget", "saliency", "label")]
    return {f.name: getattr(method, f.name) for f in others if getattr(method, f.name) != f.default}


def check_unrepaired(method: Method) -> None:
    """Raise if `method` repairs, where training follows or nothing is known of the inputs."""
    if method.repair:
        raise ValueError(
            f"repair={method.repair!r} updates the remaining weights on sentences, in cuts without training: "
            f"palmette prune --calibrate TEXT --repair {method.repair}; leave it out here"
        )


def check_used(method: Method) -> None:
    """Raise if `method` has more than a budget and a saliency, where nothing else is used."""
    check_unrepaired(method)
    if found := extras(method):
        raise ValueError(
            f"only budget and saliency of a method are used here, got {', '.join(found)} of {method!r}"
        )


def alike(method: Method) -> list[str]:
    """Methods of `METHODS` that differ only in saliency and in parameters of the budget."""
    same = (type(method.budget), extras(method))
    return [name for name, m in METHODS.items() if (type(m.budget), extras(m)) == same]


def rank_of(name: str) -> int:
    """Position of a method in `METHODS`, the order of tables and colours; custom methods come last."""
    return list(METHODS).index(name) if name in METHODS else len(METHODS)


def check_method(name: str) -> None:
    """Raise unless `name` is a key of `METHODS` or has the form ``module:name``."""
    if name not in METHODS and not re.fullmatch("[^:]+:[^:]+", name):
        known, hint = ", ".join(METHODS), did_you_mean(name, METHODS)
        raise ValueError(f"method must be one of {known}, or your own as module:name, got {name!r}{hint}")


def method_named(name: str) -> Method:
    """Method with the key `name` in `METHODS`, or the `Method` at ``"module:name"``.

    >>> method_named("sap").label
    'SAP'
    """
    check_method(name)
    if name in METHODS:
        return METHODS[name]
    found = imported(name, "method")
    if not isinstance(found, Method):
        raise TypeError(f"method {name!r} must be a palmette.Method, got {found!r}")
    return found


def imported(path: str, what: str) -> Any:
    """Import the object at ``"module:name"``; `what` describes it in error messages."""
    module, _, name = path.partition(":")
    if not module or not name:
        kind = "name" if what == "method" else "function"
        raise ValueError(f"a custom {what} must be given as 'module:{kind}', got {path!r}")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # importing user code may raise anything
        raise ValueError(
            f"{what} {path!r}: module {module!r} cannot be imported ({in_full(error)}); "
            "add the folder of the file to PYTHONPATH"
        ) from error
    try:
        return attrgetter(name)(found)
    except AttributeError as error:
        raise ValueError(f"{what} {path!r}: module {module!r} was imported, but has no {name!r}") from error
