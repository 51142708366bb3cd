"""The rounds of a run whose training is the user's own: train, measure, cut, record; and what is good."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import NotFinite, ParameterGone, RunDamaged
from palmette.pruning.masks import Masks
from palmette.pruning.optimizers import Met
from palmette.pruning.pruner import Pruner
from palmette.pruning.stopping import AtDensity, IndexTurnsUp
from palmette.pruning.weights import evaluating, tensors_of, uncompiled
from palmette.studies.folder import RunDir
from palmette.studies.own_folder import Score, Wanted, claim, read_good, write_good
from palmette.studies.randomness import random_state, set_random_state
from palmette.studies.record import after_cut, index_maps, measured
from palmette.studies.status import all_done


class OwnRounds:
    """One such run. What a checkpoint must hold is what `_save` writes; all else follows from the arguments.

    Args:
        pruner: of the model; its rules are those about cuts.
        wanted: all else.
        rundir: the folder, which is locked; None to write nothing.
        say: is told a line per round.
    """

    def __init__(self, pruner: Pruner, wanted: Wanted, rundir: RunDir | None, say: Callable[[str], None]) -> None:
        self.pruner, self.wanted, self.rundir, self.say = pruner, wanted, rundir, say
        self.model = pruner.model
        self.met = Met(pruner)
        self.modes = {module: module.training for module in self.model.modules()}
        self.start = self._own_state() if wanted.rewind.goes_back else None
        self.rates: dict[str, float] | None = None  # of the last step of round 0, for "fine-tune"
        self.good: dict[str, Any] | None = None
        self.round, self.dense = 0, math.nan
        self.record: dict[str, Any] | None = None  # of the round before

    def run(self) -> None:
        """From the beginning, or from where the folder stands, to the end; the model is then the good one."""
        if not self._went_on():
            self._try_out()
            self._save()
        while self.record is None or self.record["stopped"] is None:
            self._one_round()
        good = self._back_to_good()
        self._set_modes()
        if self.rundir is not None:
            self.rundir.finish()
        of_good = "" if good["score"] is None else f", score {good['score']:.4f}"
        self.say(
            f"stopped after round {self.record['round']}: {self.record['stopped']}. The model is that of round "
            f"{good['round']}: {self.pruner.density:.1%} of the weights{of_good}"
        )

    def _one_round(self) -> None:
        began = time.monotonic()
        if self.round or not self.wanted.trained:
            self._train()
        weights, masks = self.pruner.weights, self.pruner.masks
        masks.apply_(weights)
        if not all(bool(torch.isfinite(w).all()) for w in tensors_of(weights).values()):
            self._diverged()
        score, tested = self._score(self.wanted.evaluate, "evaluate"), self._score(self.wanted.test, "test")
        if self.round == 0 and score is not None:
            if not math.isfinite(score):
                raise ValueError(f"evaluate must give a finite number for the dense network, got {score}")
            self.dense = score
            self._tolerated(score)
        (retrained,), (spectrum,) = measured([weights], [masks]), index_maps([weights], [masks])
        state, buffers = self._own_state()
        whole = {"state_dict": state, "buffers": buffers, "pruner": self.pruner.state_dict()}
        decision = self.pruner.step()
        good = self._is_good(score)
        if good:
            self.good = {"round": self.round, "score": score, **whole}
        stopped = self._why_stop(score, retrained["density"])
        layers = {name: int(mask.sum()) - int(self.pruner.masks[name].sum()) for name, mask in masks.items()}
        self.record = {
            "round": self.round,
            "train": _as_score(None),
            "test": _as_score(tested),
            "validation": None if score is None else _as_score(score),
            "retrained": retrained,
            "pruned": self._pruned(tested, retrained["pq_index"]),
            "cut": {"weights": decision.cut, "layers": layers},
            "index_map": spectrum,
            "good": good,
            "stopped": stopped,
        }
        self._tell(score, retrained, decision.cut)
        self._write(self.record, masks, time.monotonic() - began)

    def _pruned(self, tested: float | None, index: float | None) -> dict[str, Any]:
        """What is known of the network that was just cut, beside the accuracy and the index before."""
        (numbers,) = measured([self.pruner.weights], [self.pruner.masks])
        now = self._score(self.wanted.test, "test")
        difference = None if now is None or tested is None else now - tested
        return after_cut(numbers, _as_score(now), index=index, difference=difference)

    def _write(self, record: dict[str, Any], masks: Masks, seconds: float) -> None:
        """All of a round to the disk, and on to the beginning of the next."""
        if self.rundir is not None:
            self.rundir.save_masks(self.round, masks)
            if record["good"] and self.good is not None:
                write_good(self.rundir, self.good)
        if record["stopped"] is None:
            self.round += 1
            if self.start is not None:
                self._load(*self.start)
                self.pruner.masks.apply_(self.pruner.weights)
        self._save()
        if self.rundir is not None and self.rundir.append_record(record):
            of_round = {"round": record["round"], "seconds": seconds, "epochs": 0}
            self.rundir.append_timing({**of_round, "images_per_second": None, "members": 1})

    def _train(self) -> None:
        before = self._sums()
        self._set_modes()
        tunes = self.wanted.rewind.kind == "fine-tune"
        with self.met.round(self.rates if self.round else None, note=tunes and self.round == 0):
            returned = self.wanted.train(self.model)
        if isinstance(returned, nn.Module) and uncompiled(returned) is not uncompiled(self.model):
            raise ValueError(
                "train must train the model that it is given, in place, and not return another "
                f"({type(returned).__name__})"
            )
        try:
            after = self._sums()
        except ParameterGone as error:
            what = str(error).partition(";")[0]
            raise ParameterGone(
                f"{what}, by train. It must change the values of the model's parameters, not put others in their "
                "place: add or replace layers before prune_and_retrain is called"
            ) from None
        if before == after and self.round == self.wanted.trained:  # later it may have nothing left to learn
            raise ValueError(
                "train left every weight as it was. It must train the model that it is given, in place: does it "
                "train a copy, was its optimizer made for another model, or is the learning rate 0? If the model "
                "is trained already, say trained=True"
            )
        if self.round == 0:
            self.rates = self.met.rates

    def _sums(self) -> list[float]:
        """Of the weights and of their squares: what training does not leave as it is."""
        values = [weight.detach().double() for weight in tensors_of(self.pruner.weights).values()]
        return [float(sums) for v in values for sums in (v.sum(), v.square().sum())]

    def _try_out(self) -> None:
        """What cannot be used is better known before the first training than after it."""
        if not self.wanted.trained:
            self._score(self.wanted.test, "test")
            if (score := self._score(self.wanted.evaluate, "evaluate")) is not None:
                self._tolerated(score)

    def _tolerated(self, score: float) -> float:
        """How much a score of about this size may fall."""
        if self.wanted.tolerance is not None:
            return self.wanted.tolerance
        if not 0 <= score <= 1:
            raise ValueError(
                f"evaluate gave {score:g}, which is no accuracy in [0, 1]: say how much it may fall below that of "
                "the dense network, such as tolerance=1.0 for accuracy in percent. Larger must be better, so "
                "return minus the loss, not the loss"
            )
        return 0.01

    def _score(self, function: Score | None, name: str) -> float | None:
        if function is None:
            return None
        with evaluating(self.model):
            value: Any = function(self.model)
        try:
            return float(value.detach() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"{name} must return one number, larger is better, got {value!r}") from None

    def _is_good(self, score: float | None) -> bool:
        """Whether the network that was just measured, and cut, is good."""
        if score is not None:
            rounding = 1e-6 * max(1.0, abs(self.dense))  # of scores that were float32
            return self.round == 0 or score >= self.dense - self._tolerated(self.dense) - rounding
        rule = next((r for r in self.wanted.stop if isinstance(r, IndexTurnsUp)), IndexTurnsUp())
        decisions = self.pruner.decisions
        if any(rule(decisions[: n + 1]) for n in range(len(decisions))):
            return False
        return not any(a.index < b.index for a, b in itertools.pairwise(decisions[-2:]))

    def _why_stop(self, score: float | None, density: float) -> str | None:
        if score is not None and not self._is_good(score):
            return f"score {score:.4f} is more than {self._tolerated(self.dense):g} below {self.dense:.4f}"
        for rule in self.wanted.stop:
            if isinstance(rule, AtDensity) and (reason := rule.of(density)) is not None:
                return reason
        if self.pruner.stopped:
            return self.pruner.stopped
        return all_done(self.wanted.rounds) if self.round >= self.wanted.rounds else None

    def _tell(self, score: float | None, numbers: Mapping[str, Any], cut: int) -> None:
        index = "none" if numbers["pq_index"] is None else f"{numbers['pq_index']:.4f}"
        of_score = "" if score is None else f", score {score:.4f}"
        share = cut / numbers["kept"] if numbers["kept"] else 0.0
        self.say(
            f"round {self.round}: {numbers['density']:.1%} of the weights{of_score}, PQ Index {index}; "
            f"the cut takes {share:.1%} of them"
        )

    def _diverged(self) -> None:
        """The model goes back to what is good, and it is said why."""
        back = ""
        if self.round:
            back = f" The model is put back to that of round {self._back_to_good()['round']}."
        error = NotFinite(
            f"training diverged in round {self.round}: not all weights are finite. A smaller learning rate, "
            f"clipping or a warm-up may help.{back}"
        )
        if self.rundir is not None:
            self.rundir.note_failure(error)
        raise error

    def _back_to_good(self) -> dict[str, Any]:
        if self.good is None:
            assert self.rundir is not None  # round 0 is always good: it has one, and this process has resumed
            self.good = read_good(self.rundir)
        self._load(self.good["state_dict"], self.good["buffers"])
        self.pruner.load_state_dict(self.good["pruner"])
        return self.good

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Copies, on the CPU, of `state_dict` and of the buffers that are no part of it."""
        model = uncompiled(self.model)
        state = {n: _copy(v) for n, v in model.state_dict().items()}
        return state, {n: _copy(v) for n, v in model.named_buffers() if n not in state}

    def _load(self, state: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> None:
        model = uncompiled(self.model)
        model.load_state_dict(state)
        own = dict(model.named_buffers())
        for name, values in buffers.items():
            if name in own and own[name].shape == values.shape:  # else a cache, which the forward pass makes
                own[name].copy_(values)

    def _set_modes(self) -> None:
        for module, training in self.modes.items():
            module.training = training

    def _save(self) -> None:
        """The beginning of a round, and with it the record of the one before, which is written after it."""
        if self.rundir is None:
            return
        state, buffers = self._own_state()
        self.rundir.save_checkpoint(
            self.round + bool(self.record and self.record["stopped"] is not None),
            {
                "round": self.round,
                "state_dict": state,
                "buffers": buffers,
                "start": self.start,
                "pruner": self.pruner.state_dict(),
                "rates": self.rates,
                "dense": self.dense,
                "record": self.record,
                "random": random_state(),
            },
        )

    def _went_on(self) -> bool:
        """Whether the folder had something to go on from, and it was taken up."""
        if self.rundir is None:
            return False
        claim(self.rundir, self.pruner, self.wanted)
        self.rundir.failure.unlink(missing_ok=True)
        found = self.rundir.load_checkpoint()
        if found is None:
            records = self.rundir.records()
            if records and records[-1].get("stopped") is None:
                raise RunDamaged(
                    f"{str(self.rundir.path)!r} has records but no state to go on from; remove it to begin again"
                )
            self.record = records[-1] if records else None
            return bool(records)
        state = found[1]
        self._load(state["state_dict"], state["buffers"])
        self.pruner.load_state_dict(state["pruner"])
        self.round, self.start, self.rates = state["round"], state["start"], state["rates"]
        self.dense, self.record = state["dense"], state["record"]
        if self.record is not None:
            self.rundir.append_record(self.record)
        set_random_state(state["random"])
        return True


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


def _as_score(score: float | None) -> dict[str, float | None]:
    accuracy = score if score is not None and 0 <= score <= 1 else None
    return {"loss": None, "accuracy": accuracy, "score": score}
