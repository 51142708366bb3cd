"""Prune and retrain with the user's training function until a rule stops; return the last good model."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from palmette.errors import MaskMismatch, RunDamaged
from palmette.measures.parameters import is_number
from palmette.pruning.budgets import Budget, Sap
from palmette.pruning.masks import Masks, check_match
from palmette.pruning.methods import METHODS, Method, Scope
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency, magnitude
from palmette.pruning.stopping import DEFAULT_RULES, ScoreDrops, SmallCut, StopRule, rule_text
from palmette.pruning.weights import uncompiled
from palmette.studies.engine import Observer, RoundEngine
from palmette.studies.experiment import OwnExperiment
from palmette.studies.folder import RunDir
from palmette.studies.record import Record, experiment_of, run_of_version_1
from palmette.studies.trainers.function_trainer import FunctionRun, FunctionTrainer, read_good

Model = TypeVar("Model", bound=nn.Module)


def prune_and_retrain(
    model: Model,
    train: Callable[[Model], object],
    evaluate: Callable[[Model], float] | None = None,
    *,
    budget: Budget | None = None,
    scope: Scope = "global",
    saliency: Saliency | str = magnitude,
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
    """Train, cut and repeat; return `model` as it was in the last good round.

    `train` is called once per round, and must create a new optimizer and schedule in each call. Pruned weights are
    exactly zero after every step of that optimizer.

    Args:
        model: any module; used in place, and returned.
        train: trains the model in place.
        evaluate: returns a score of the model, larger is better, such as accuracy in [0, 1] or minus a loss,
            **on data held out of training that are not the test data**: it decides how far to prune.
        budget: how many weights to prune in a round; `Sap()` by default.
        scope, include, exclude, masks: as for `Pruner`.
        saliency: as for `Pruner`, or a name: "dense-magnitude" ranks by the trained dense network in every round.
        rewind: start of each round after the first. "learning-rate": weights of the last round, and the full
            schedule (Renda et al. 2020). "init": initial weights and buffers of `model` (Frankle and Carbin 2019).
            "fine-tune": weights of the last round, and the learning rates of the last step of round 0 for every
            step (Han et al. 2015).
        stop: rules that end the run. Default: a cut below 1 % and, without `evaluate`, a rising PQ Index. A round
            that is not good by `evaluate`, and a step that cuts nothing, always end it.
        rounds: maximum number of cuts; the model is trained after the last.
        tolerance: a round is good if its score is at most this far below that of the dense network; 0.01 by
            default, for scores in [0, 1]. Without `evaluate` a round is good if the PQ Index did not rise in it,
            and has not risen before as often in a row as `IndexTurnsUp` allows.
        trained: whether `model` is trained already, so that round 0 only measures and cuts it.
        test: returns a score that is only recorded, such as accuracy on test data. `palmette table` and `palmette
            report` need it.
        folder: receives the records of all rounds and `good.pt`, the returned model. Calling again resumes with
            the same random state: on a CPU the result equals that of an uninterrupted run bit for bit. State that
            `train` keeps between calls is not saved.
        say: receives a line per round; None for silence.

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

    Diao et al. 2023, Algorithm 1.
    """
    for name, function in (("train", train), ("evaluate", evaluate), ("test", test), ("say", say)):
        if not (callable(function) or (function is None and name != "train")):
            given = "a line" if name == "say" else "the model"
            raise TypeError(f"{name} must be a function that takes {given}, got {function!r}")
    if not (is_number(rounds, whole=True) and rounds >= 0):
        raise ValueError(f"rounds must be a whole number of at least 0, got rounds={rounds!r}")
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance < math.inf):
        raise ValueError(f"tolerance must be a number of at least 0, got tolerance={tolerance!r}")
    _check_rewind(rewind, trained)
    if stop is None:
        stop = DEFAULT_RULES if evaluate is None else [SmallCut()]
    method = _named_saliency(saliency) if isinstance(saliency, str) else None
    settings: dict[str, Any] = {"budget": budget, "scope": scope, "stop": stop}
    settings["saliency"] = magnitude if method else saliency
    pruner = Pruner(model, include=include, exclude=exclude, masks=masks, **settings)
    most = int(min([rounds, *(getattr(rule, "steps", rounds) for rule in pruner.rules)]))
    tolerance = None if tolerance is None else float(tolerance)
    drops = None if evaluate is None else ScoreDrops(0.01 if tolerance is None else tolerance)
    more = {"tolerance": tolerance, "trained": bool(trained), "test": test is not None}
    spec = _spec(pruner, method, drops, rewind=rewind, rounds=most, **more)
    rules: list[StopRule] = [*filter(None, [drops]), *pruner.rules]
    outcomes: list[str | Exception] = []
    lines = _Lines(say)
    with nullcontext() if folder is None else RunDir(folder).lock() as rundir:
        run = FunctionRun(spec, pruner, rules=rules, rundir=rundir, storage=torch.device("cpu"))
        run.method = method
        trainer = FunctionTrainer(run, train, evaluate, test, drops)
        if not (rundir is not None and _resumed(run, rundir)):
            trainer.try_out()
        RoundEngine(trainer, observer=lines, end=lambda *ended: outcomes.append(ended[-1])).run([run])
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        lines.end(run, trainer.put_back())
        trainer.set_modes()
    return model


class _Lines(Observer):
    """Prints one line per round."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say or (lambda _: None)

    def recorded(self, experiment: Any, record: Mapping[str, Any]) -> None:
        """Print the result of the round."""
        numbers, score = record["retrained"], record["validation"]
        index = "none" if numbers["pq_index"] is None else f"{numbers['pq_index']:.4f}"
        of_score = "" if score is None else f", score {score['score']:.4f}"
        share = record["cut"]["weights"] / numbers["kept"] if numbers["kept"] else 0.0
        self._say(
            f"round {record['round']}: {numbers['density']:.1%} of the weights{of_score}, PQ Index {index}; "
            f"the cut takes {share:.1%} of them"
        )

    def end(self, run: FunctionRun, good: Mapping[str, Any]) -> None:
        """Print why the run ended, and which model is returned."""
        assert run.record is not None
        of_good = "" if good["score"] is None else f", score {good['score']:.4f}"
        self._say(
            f"stopped after round {run.record.round}: {run.record.stopped}. The model is that of round "
            f"{good['round']}: {run.pruner.density:.1%} of the weights{of_good}"
        )


def _resumed(run: FunctionRun, rundir: RunDir) -> bool:
    """Restore the saved state, or a finished run, of the folder; return whether there was one."""
    _claim(rundir, run)
    rundir.failure.unlink(missing_ok=True)
    if (found := rundir.load_checkpoint()) is not None:
        state = found[1]
        weights = (
            {name: state["model"][name] for name in state["names"]} if "names" in state else state["state_dict"]
        )
        _check_fits(run, rundir, weights, state["pruner"])
        run.restore(state)
        return True
    records = rundir.records()
    if records and records[-1].get("stopped") is None:
        raise RunDamaged(f"{str(rundir.path)!r} has records but no state to resume from; remove it to start again")
    if records:
        good = read_good(rundir)
        _check_fits(run, rundir, good["state_dict"], good["pruner"])
        run.record = Record.from_json(records[-1])
    return bool(records)


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


def _named_saliency(name: str) -> Method:
    """Method with the saliency `name`."""
    method = Method(budget=Sap(), saliency=name)
    if method.of_inputs:
        raise ValueError(
            f"saliency={name!r} needs inputs of the network, which only train knows; pass "
            "weighted_by_inputs(input_norms(model, batches), model) of palmette.pruning.saliency"
        )
    return method


def _spec(pruner: Pruner, method: Method | None, drops: ScoreDrops | None, **more: Any) -> OwnExperiment:
    """Settings of the run, as written to its folder."""
    budget, own = pruner.budget, "" if pruner.saliency is magnitude else f"own:{_short(pruner.saliency)}"
    ranked_by = method.saliency if method else own
    name = next((n for n, method in METHODS.items() if type(method.budget) is type(budget)), None)
    parameters = {f.name: getattr(budget, f.name) for f in budget.parameters()} if name else {}
    texts = [(rule, rule_text(rule)) for rule in pruner.rules]
    stop = [text for _, text in texts if text is not None]
    if drops is not None and drops.by <= 1:
        stop.append(f"accuracy-drops:{drops.by}")
    return OwnExperiment(
        model=f"own:{type(uncompiled(pruner.model)).__name__}",
        method=name or f"own:{_short(budget)}",
        saliency=ranked_by,
        scope=pruner.scope,
        stop=",".join(stop),
        own_rules=", ".join(_short(rule) for rule, text in texts if text is None),
        evaluate=drops is not None,
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


def _claim(rundir: RunDir, run: FunctionRun) -> None:
    """Write the settings to a new folder, or check that an existing one has the same."""
    where = repr(str(rundir.path))
    if rundir.settings.exists():
        was, now, token = *_settings_of_version_1(rundir, run), run_of_version_1(rundir)
    elif rundir.experiment.exists() or rundir.records_file.exists():
        there = experiment_of(rundir) if rundir.experiment.exists() else None
        if not isinstance(there, OwnExperiment):
            raise RunDamaged(f"{where} holds another kind of run; give another folder")
        was, now, token = there.settings(), run.spec.settings(), there.run
    else:
        was, now, token = {}, {}, secrets.token_hex(4)
    # The class of a model may be renamed; its weights are checked later.
    if differ := [name for name in now if name not in ("run", "model") and was[name] != now[name]]:
        one, other = (", ".join(f"{name}={of[name]!r}" for name in differ) for of in (was, now))
        raise RunDamaged(
            f"{where} holds a run with {one}, not {other}; resume with the old settings, or give another folder"
        )
    run.spec = replace(run.spec, run=token)
    if not was or rundir.settings.exists():
        rundir.write_text(rundir.experiment.name, run.spec.to_toml())
        rundir.settings.unlink(missing_ok=True)


def _settings_of_version_1(rundir: RunDir, run: FunctionRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that version 1 wrote, and the same settings of this run."""
    names = ("scope", "rewind", "rounds", "evaluate", "tolerance", "trained", "test")
    now = {
        "budget": _described(run.pruner.budget),
        "saliency": run.method.saliency if run.method else _described(run.pruner.saliency),
        "stop": [_described(rule) for rule in run.pruner.rules],
        **{name: getattr(run.spec, name) for name in names},
    }
    try:
        was = json.loads(rundir.settings.read_text(encoding="utf-8"))["settings"]
        return {name: was[name] for name in now}, now
    except (ValueError, KeyError, TypeError) as error:
        raise RunDamaged(
            f"{str(rundir.settings)!r} is damaged: {error!r}; give another folder, or remove that one"
        ) from error


def _check_fits(run: FunctionRun, rundir: RunDir, saved: Mapping[str, Any], pruner: Mapping[str, Any]) -> None:
    """Raise unless a saved state belongs to this model and prunes the same weights."""
    where = repr(str(rundir.path))
    now = {name: value for name, value in run.model.state_dict().items() if isinstance(value, Tensor)}
    then = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
    try:
        check_match(then, {name: value.shape for name, value in now.items()}, f"the weights in {where}")
    except MaskMismatch as error:
        raise MaskMismatch(f"{error}. Pass the model that the run started with, or another folder") from None
    pruned, weights = list(Masks.from_state_dict(pruner["masks"])), list(run.weights)
    if pruned != weights:
        raise RunDamaged(
            f"{where} holds a run that prunes {_named(pruned)}, not {_named(weights)}; give the same include and "
            "exclude, or another folder"
        )


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"
