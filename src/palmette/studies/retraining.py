"""Search for the limit of a user's network with the user's training function."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from palmette.measures.parameters import is_number
from palmette.pruning.budgets import Budget
from palmette.pruning.methods import METHODS, Method, Scope, alike, allocation_of, pattern_of, usual_budget
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, combined, magnitude
from palmette.pruning.stopping import StopRule, rule_text
from palmette.pruning.tolerance import Estimate, Tolerance
from palmette.pruning.weights import uncompiled
from palmette.studies.engine import RoundEngine
from palmette.studies.experiment import OwnExperiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer
from palmette.studies.record import records_of, value_of
from palmette.studies.search import DEFAULT_METHOD, Limit, attempts_of, shown_densities, shown_score
from palmette.studies.trainers.function_trainer import FunctionRun, FunctionTrainer
from palmette.studies.trainers.resuming import resumed

Model = TypeVar("Model", bound=nn.Module)


def prune_and_retrain(
    model: Model,
    train: Callable[[Model], object],
    evaluate: Callable[[Model], object] | None = None,
    *,
    tolerance: Tolerance | float | str | None = None,
    maximize: bool = True,
    method: Method | str | None = None,
    budget: Budget | None = None,
    scope: Scope = "global",
    saliency: Saliency | str = magnitude,
    rewind: str = "learning-rate",
    stop: StopRule | Sequence[StopRule] = (),
    rounds: int = 30,
    trained: bool = False,
    test: Callable[[Model], object] | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    masks: Mapping[str, Tensor] | None = None,
    inputs: Any = None,
    folder: str | Path | None = None,
    say: Callable[[str], None] | None = print,
) -> Limit:
    """Find out how far `model` can be pruned: cut, retrain and score until the bracket of densities is narrow.

    A network within `tolerance` of the dense one is cut further; otherwise the search returns to the last good one
    and cuts less. When the smallest good density is at most 1.1 times the largest bad one, both are
    trained once more, and their mean scores decide.

    Args:
        model: any module; used in place.
        train: trains the model in place, once per round, with a new optimizer and schedule in each call; pruned
            weights are zero after every step. Without `evaluate`, the number that it returns is the score.
        evaluate: returns a score of the model, or several, such as one per example, **on data held out of training
            that are not the test data**: it decides how far to prune.
        tolerance: largest loss of score compared with the dense network: 0.01 (points), ``"1%"`` (of the score) or
            ``"not-worse:0.95"`` (a confidence; `evaluate` must return several numbers). By default 0.01, or 0.02
            for the score of `train`; scores must then be in [0, 1].
        maximize: whether larger scores are better; False for a loss or a perplexity.
        method: a key of `METHODS` or a `Method`: its budget and, unless another is given, its saliency.
        budget: how many weights to prune before the first failure, such as ``Sap(p=1, q=2)`` or
            ``FixedRatio(0.5)``; by default the schedule `Interpolate()`, and ``Sap()`` without a search.
        scope, include, exclude, masks, inputs: as for `Pruner`.
        saliency: as for `Pruner`; "dense-magnitude" ranks by the trained dense network in every round.
        rewind: start of each round after the first. "learning-rate": weights of the network that was cut, and the
            full schedule (Renda et al. 2020). "init": initial weights and buffers of `model` (Frankle and Carbin
            2019). "fine-tune": weights of the network that was cut, and the learning rates of the last step of
            round 0 for every step (Han et al. 2015).
        stop: rules that end the search early, such as `AtDensity(0.1)`. Without any score they are required, and
            the last network is returned.
        rounds: maximum number of retrainings.
        trained: whether `model` is trained already, so that round 0 only scores and cuts it.
        test: returns a score that is only recorded, such as accuracy on test data. `palmette table` and `palmette
            report` need it.
        folder: receives the records of all rounds and `good.pt`, the returned model. Calling again resumes with
            the same random state: on a CPU the result equals that of an uninterrupted run bit for bit. State that
            `train` keeps between calls is not saved. More `rounds` extend a run that had used all; a finished run
            answers only for the weights that it started from.
        say: receives a line per round; None for silence.

    Returns:
        The `Limit`: the model, its density and score, the density that was too small, and all records.

    >>> import palmette as pm, torch
    >>> x, y = torch.eye(8), torch.arange(8) % 2
    >>> def train(model):
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    ...     for _ in range(20):
    ...         optimizer.zero_grad()
    ...         nn.functional.cross_entropy(model(x), y).backward()
    ...         optimizer.step()
    >>> def evaluate(model):
    ...     return (model(x).argmax(1) == y).float().mean()
    >>> model = torch.nn.Linear(8, 2)
    >>> limit = pm.prune_and_retrain(
    ...     model, train, evaluate, budget=pm.FixedRatio(0.25), rounds=1, say=None
    ... )
    >>> print(limit)
    within 0.01 of dense down to 75% of the weights; fewer were not tried; 1 retraining (all retrainings are used)
    >>> int((limit.model.weight == 0).sum())
    4

    Diao et al. 2023, Algorithm 1, for the loop without the search.
    """
    for name, function in (("train", train), ("evaluate", evaluate), ("test", test), ("say", say)):
        if not (callable(function) or (function is None and name != "train")):
            given = "a line" if name == "say" else "the model"
            raise TypeError(f"{name} must be a function that takes {given}, got {function!r}")
    if not (is_number(rounds, whole=True) and rounds >= 0):
        raise ValueError(f"rounds must be a whole number of at least 0, got rounds={rounds!r}")
    _check_rewind(rewind, trained)
    budget, saliency = combined(method, budget, saliency)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pruner = Pruner(
            model,
            budget=budget,
            scope=scope,
            stop=stop,
            saliency=saliency,
            include=include,
            exclude=exclude,
            masks=masks,
            inputs=inputs,
        )
    built = None
    if isinstance(saliency, str):  # before each cut, by the run
        built, pruner.saliency = Method(budget=pruner.budget, saliency=saliency), magnitude
    allowed = _tolerance(tolerance, maximize, evaluate is not None, pruner.rules, trained)
    if budget is None:
        searches = allowed is not None and pattern_of(scope) is None
        pruner.budget = METHODS[DEFAULT_METHOD].budget if searches else usual_budget(scope)
    most = int(min([rounds, *(getattr(rule, "steps", rounds) for rule in pruner.rules)]))
    more: dict[str, Any] = {"trained": bool(trained), "evaluate": evaluate is not None, "test": test is not None}
    maximize = maximize if allowed is None else allowed.maximize
    more |= {"tolerance": "" if allowed is None else str(allowed), "maximize": maximize}
    spec = _spec(pruner, built, rewind=rewind, rounds=most, **more)
    outcomes: list[str | Exception] = []
    lines = _Lines(say)
    with nullcontext() if folder is None else RunDir(folder).lock() as rundir:
        run = FunctionRun(spec, pruner, rules=pruner.rules, rundir=rundir, storage=torch.device("cpu"))
        run.method, run.default_tolerance = built, tolerance is None
        trainer = FunctionTrainer(run, train, evaluate, test)
        if not (rundir is not None and resumed(run, rundir, lines.say)):
            for warning in said:  # a model that is resumed with has its masks in the folder
                warnings.warn(warning.message, stacklevel=2)
            trainer.try_out()
        if run.stopped is not None:
            lines.say(f"already finished in {str(folder)!r}; nothing is trained")
        RoundEngine(trainer, observer=lines, end=lambda *ended: outcomes.append(ended[-1])).run([run])
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        run.put_back(run.snapshots.returned())
        trainer.set_modes()
        limit = _limit(run, model, lines.records if rundir is None else records_of(rundir))
    lines.end(limit)
    return limit


def _tolerance(
    given: Tolerance | float | str | None,
    maximize: bool,
    evaluated: bool,
    rules: Sequence[StopRule],
    trained: bool,
) -> Tolerance | None:
    """Tolerance of the search; None if only stop rules end the run."""
    if given is not None:
        return Tolerance.parse(given, maximize=maximize)
    if evaluated:
        return Tolerance(0.01, maximize=maximize)
    if rules:
        return None
    if trained:
        raise ValueError(
            "there is no score of the trained model: pass evaluate, or say when to stop, such as "
            "stop=AtDensity(0.1)"
        )
    return Tolerance(0.02, maximize=maximize)  # of the score that train returns


def _limit(run: FunctionRun, model: nn.Module, records: Sequence[Mapping[str, Any]]) -> Limit:
    """Answer of a finished run; without scores, the last network."""
    stopped, last = str(records[-1]["stopped"]), records[-1]
    if run.tolerance is None:
        density, round = last["retrained"]["density"], last["round"]
        found = Limit(density=density, retrainings=round, stopped=stopped, round=round)
    else:
        found = Limit.of(attempts_of(records), run.tolerance, stopped=stopped)
    test_score = value_of(records[found.round]["test"])
    return replace(found, model=model, test_score=test_score, records=tuple(records))


class _Lines(Observer):
    """Prints one line per round, and collects the records."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say or (lambda _: None)
        self.records: list[Mapping[str, Any]] = []

    def recorded(self, experiment: Any, record: Mapping[str, Any]) -> None:
        """Print the result of the round."""
        # With "init", training does not start from the network that was cut.
        cut = self.records[-1]["pruned"] if self.records and experiment.rewind != "init" else {}
        before = cut.get("validation")
        self.records.append(record)
        numbers, search = record["retrained"], record.get("search")
        line = f"round {record['round']}: {shown_densities(numbers['density'])[0]} of the weights"
        if search is not None:
            line += f", score {shown_score(search['score'])}"
            if before is not None:
                line += f" ({shown_score(value_of(before))} before retraining)"
            if record["round"]:
                again = "" if search["repeats"] is None else f" (round {search['repeats']} once more)"
                line += f"{again}: {'good' if record['good'] else 'too few'}"
        self._say(line)
        self._hint(experiment, record, before)

    def _hint(self, spec: Any, record: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Say if retraining made a network worse than the cut had left it."""
        after, tolerance = record["validation"], spec.allowed_loss
        if before is None or after is None or tolerance is None:
            return
        left, now = (Estimate(float(value_of(s) or 0), s.get("error")) for s in (before, after))
        if math.isfinite(left.value) and not tolerance.allows(now, dense=left):
            self._say(
                f"  retraining made it worse than the cut had left it ({shown_score(left.value)} to "
                f"{shown_score(now.value)}): is the learning rate too high to start from trained weights, or the "
                "training too short?"
            )

    def end(self, limit: Limit) -> None:
        """Print the answer, and how sure it is."""
        self.say(str(limit))
        if not math.isnan(limit.score.value):
            self.say(limit.precision)

    def say(self, text: str) -> None:
        """Print a message."""
        self._say(text)


def _check_rewind(rewind: str, trained: bool) -> None:
    rule = f"rewind must be 'init', 'learning-rate' or 'fine-tune', got {rewind!r}"
    if not isinstance(rewind, str):
        raise TypeError(rule)
    if rewind.startswith("epoch"):
        raise ValueError(
            f"{rule}: train runs all epochs in one call. Load the weights of that epoch into the "
            "model first, and use 'init'"
        )
    why_not_trained = {
        "init": "a trained model has no initial weights to rewind to",
        "fine-tune": "round 0 does not train, so there is no last learning rate; set it in train",
    }
    if rewind not in (*why_not_trained, "learning-rate"):
        raise ValueError(rule)
    if trained and rewind in why_not_trained:
        raise ValueError(f"trained=True needs rewind='learning-rate', got {rewind!r}: {why_not_trained[rewind]}")


def _spec(pruner: Pruner, method: Method | None, **more: Any) -> OwnExperiment:
    """Settings of the run, as written to its folder."""
    budget, own = pruner.budget, "" if pruner.saliency is magnitude else f"own:{_short(pruner.saliency)}"
    ranked_by = method.saliency if method else own
    inner, allocate = allocation_of(budget)
    name = next(iter(alike(Method(budget=inner))), None)
    parameters = {f.name: getattr(inner, f.name) for f in inner.parameters()} if name else {}
    texts = [(rule, rule_text(rule)) for rule in pruner.rules]
    return OwnExperiment(
        model=f"own:{type(uncompiled(pruner.model)).__name__}",
        method=name or f"own:{_short(inner)}",
        allocate=allocate,
        saliency=ranked_by,
        scope=pruner.scope,
        stop=",".join(text for _, text in texts if text is not None),
        own_rules=", ".join(_short(rule) for rule, text in texts if text is None),
        **parameters,
        **more,
    )


def _described(thing: object) -> str:
    """Description that is the same in every process."""
    name = getattr(thing, "__qualname__", None)
    return name if isinstance(name, str) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def _short(thing: object) -> str:
    """Description on one line; the end of a long one is replaced by a hash."""
    text = " ".join(_described(thing).split())
    return text if len(text) <= 100 else f"{text[:80]}… {hashlib.sha256(text.encode()).hexdigest()[:8]}"
