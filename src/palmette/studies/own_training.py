"""Prune, call the user's own training, and so on; stop by rule, and give back the last model that is good."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from palmette.measures.parameters import is_number
from palmette.pruning.budgets import Budget
from palmette.pruning.methods import Scope
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, magnitude
from palmette.pruning.stopping import DEFAULT_RULES, AfterSteps, AtDensity, SmallCut, StopRule
from palmette.studies.folder import RunDir
from palmette.studies.own_folder import Wanted
from palmette.studies.own_rounds import OwnRounds
from palmette.training.rewinding import Rewind

Model = TypeVar("Model", bound=nn.Module)


def prune_and_retrain(
    model: Model,
    train: Callable[[Model], object],
    evaluate: Callable[[Model], float] | None = None,
    *,
    budget: Budget | None = None,
    scope: Scope = "global",
    saliency: Saliency = magnitude,
    rewind: str = "learning-rate",
    stop: StopRule | Sequence[StopRule] | None = None,
    rounds: int = 30,
    tolerance: float | None = None,
    trained: bool = False,
    test: Callable[[Model], float] | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    folder: str | Path | None = None,
    say: Callable[[str], None] | None = print,
) -> Model:
    """Train, cut, train again, …: `model` as it was in the last round that was still good.

    `train` is called once in each round. Pruned weights are exactly zero after every step of whatever optimizer it
    makes. It makes the optimizer and its schedule itself, anew in each call, and changes the model in place.

    Args:
        model: any module; it is used in place, and given back.
        train: trains the model that it is given.
        evaluate: how good the model is, larger is better, such as accuracy in [0, 1] or minus a loss; **on data
            that were held out of training, and that are not the test data**: it decides how far is too far.
        budget: how many weights go in a round; `Sap()` by default.
        scope: as for `Pruner`, but "global" by default: weights compete in the whole network.
        saliency, include, exclude, masks: as for `Pruner`; `masks` are of weights that are pruned already.
        rewind: where a round after the first starts. "learning-rate": where the last one ended, `train` as it is,
            its schedule from the beginning (Renda et al. 2020). "init": from the weights and buffers that `model`
            came with (Frankle and Carbin 2019). "fine-tune": where the last one ended, every step at the learning
            rates of the last step of round 0 (Han et al. 2015).
        stop: rules that end it. By default a cut of under 1 %, and without `evaluate` the PQ Index turning up. A
            round that is not good by `evaluate`, and a step that cuts nothing, always end it.
        rounds: how often to cut at most; with this, and with `AtDensity`, the last network is a trained one.
        tolerance: a round is good if it is at most so much below round 0, the dense network, in what `evaluate`
            gives; 0.01 by default, if that is in [0, 1]. Without `evaluate` a round is good if the PQ Index did
            not rise in it, and none is after the index rose as often in a row as `IndexTurnsUp` allows.
        trained: `model` is trained already, and round 0 only measures and cuts it.
        test: recorded beside `evaluate`, such as the accuracy on test data; nothing is decided by it.
        folder: where every round is recorded, for `read_runs` and `palmette show`; where the budget is `Sap` or
            `FixedRatio` and `test` is given, for `palmette table` and `report` too. `good.pt` is the model that is
            given back. Calling again, also after a kill, goes on with the round that was under way and with its
            random numbers, so that on a CPU it ends bit for bit like a run that was not interrupted. What `train`
            itself remembers from call to call is not known here.
        say: is told a line per round; None for silence.

    >>> import torch
    >>> from palmette import FixedRatio
    >>> x, y = torch.eye(8), torch.arange(8) % 2
    >>> def train(model):
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    ...     for _ in range(20):
    ...         optimizer.zero_grad()
    ...         nn.functional.cross_entropy(model(x), y).backward()
    ...         optimizer.step()
    >>> def evaluate(model):
    ...     return (model(x).argmax(1) == y).float().mean()
    >>> model = prune_and_retrain(nn.Linear(8, 2), train, evaluate, budget=FixedRatio(0.25), rounds=1, say=None)
    >>> int((model.weight == 0).sum())
    4

    Diao et al. 2023, Algorithm 1, around a training loop of one's own.
    """
    for name, function in (("train", train), ("evaluate", evaluate), ("test", test), ("say", say)):
        if not (callable(function) or (function is None and name != "train")):
            given = "a line" if name == "say" else "the model"
            raise TypeError(f"{name} must be a function that is given {given}, got {function!r}")
    if not (is_number(rounds, whole=True) and rounds >= 0):
        raise ValueError(f"rounds must be a whole number of at least 0, got rounds={rounds!r}")
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance < math.inf):
        raise ValueError(f"tolerance must be a number of at least 0, got tolerance={tolerance!r}")
    rewinding = _checked(rewind, trained)
    if stop is None:
        stop = DEFAULT_RULES if evaluate is None else [SmallCut()]
    pruner = Pruner(
        model,
        budget=budget,
        scope=scope,
        saliency=saliency,
        include=include,
        exclude=exclude,
        masks=masks,
        stop=stop,
    )
    rules = pruner.rules
    # These are about networks that are trained, and `Pruner` knows of cuts only.
    pruner.rules = tuple(rule for rule in rules if not isinstance(rule, AtDensity | AfterSteps))
    most = int(min([rounds, *(rule.steps for rule in rules if isinstance(rule, AfterSteps))]))
    tolerance = None if tolerance is None else float(tolerance)
    wanted = Wanted(train, evaluate, test, rewinding, rules, most, tolerance, bool(trained))
    with nullcontext() if folder is None else RunDir(folder).lock() as rundir:
        OwnRounds(pruner, wanted, rundir, say or (lambda _: None)).run()
    return model


def _checked(rewind: str, trained: bool) -> Rewind:
    rule = f"rewind must be 'init', 'learning-rate' or 'fine-tune', got {rewind!r}"
    if not isinstance(rewind, str):
        raise TypeError(rule)
    if rewind.startswith("epoch"):
        raise ValueError(
            f"{rule}: train is called whole, and its epochs are its own. Put the weights of that epoch into the "
            "model first, and say 'init'"
        )
    if rewind not in ("init", "learning-rate", "fine-tune"):
        raise ValueError(rule)
    parsed = Rewind.parse(rewind)
    if trained and parsed.kind != "learning-rate":
        why = {
            "init": "a model that is trained already has no initial weights to go back to",
            "fine-tune": "round 0 does not train, so that there is no last learning rate; train may set its own",
        }
        raise ValueError(f"trained=True needs rewind='learning-rate', got {rewind!r}: {why[parsed.kind]}")
    return parsed
