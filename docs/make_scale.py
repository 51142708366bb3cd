"""Simulate a sweep of 10^5 runs on 1,000 GPUs; write the tables and the picture of `docs/scale.md`.

`simulation.py` has the GPUs, made up from what was measured.
`python docs/make_scale.py` takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import numpy as np
import torch
from marks import renewed
from matplotlib.figure import Figure
from simulation import GPUS, KINDS, SEED, SHAPES, Kind, Result, simulated

from palmette.files import write_whole
from palmette.integrations.ray.worker import SECONDS_BETWEEN_SAVES
from palmette.reports.figures import LINES, STYLE, as_file
from palmette.studies import in_step
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir, find_runs
from palmette.studies.in_step import Observer, Progress
from palmette.studies.rounds import run_together
from palmette.training.data import load
from palmette.training.models import build

PAGE = Path(__file__).with_name("scale.md")
RESULTS = PAGE.parent.parent / "results"


@dataclass(frozen=True)
class Sizes:
    """Bytes on disk of what a round leaves, measured."""

    within: int  # a state within a round: weights and momentum
    weights: int  # of these, the weights, which a state between rounds had too
    border: int  # a state between two rounds: masks, decisions, the last record
    mask: int
    record: int


class Look(Observer):
    """How large the states of a run are, while it has them."""

    def __init__(self, rundir: RunDir) -> None:
        self.rundir, self.within, self.border = rundir, 0, 0

    def epoch(self, experiment: Experiment, progress: Progress) -> None:
        """Within a round."""
        self.within = self._newest()

    def recorded(self, experiment: Experiment, record: Mapping[str, Any]) -> None:
        """Between two rounds."""
        if record["stopped"] is None:
            self.border = self._newest()

    def _newest(self) -> int:
        return self.rundir.checkpoint(self.rundir.checkpoint_numbers()[-1]).stat().st_size


def sizes(k: Kind) -> Sizes:
    """Two rounds on images that say nothing, and what they leave."""
    torch.manual_seed(SEED)
    pixels = torch.randint(256, (20, *SHAPES[k.data]), dtype=torch.uint8)
    labels, images, channels = torch.arange(20) % 10, load("digits"), SHAPES[k.data][0]
    parts = {"train_images": pixels, "test_images": pixels, "train_labels": labels, "test_labels": labels}
    images = replace(images, mean=images.mean * channels, sd=images.sd * channels, **parts)
    with TemporaryDirectory() as folder:
        look = Look(RunDir(folder))
        experiment = Experiment(data=k.data, model=k.model, rounds=1, epochs=2)
        run_together({Path(folder): experiment}, images=images, save_every=1, observer=look)
        record = look.rundir.records_file.stat().st_size // 2
        mask = look.rundir.mask(1).stat().st_size
    weights = build(k.model, shape=SHAPES[k.data], classes=10).parameters()
    return Sizes(look.within, 4 * sum(p.numel() for p in weights), look.border, mask, record)


def rounds_of_real_runs() -> list[int]:
    """How many rounds the runs of results/ had before nothing was left to cut."""
    runs = find_runs(RESULTS / "fashionmnist-mlp", RESULTS / "fashionmnist-mlp-ablations")
    return [len(run.records()) for run in runs]


def written(s: Result, found: dict[str, Sizes], *, seconds: float, weights: bool) -> str:
    """Of rounds: mask, state, record and timing of each network; and states within rounds, every `seconds`.

    In all, and in the fullest ten minutes (or minute, of a short sweep).
    """
    window = 600.0 if s.now > 3600 else 60.0
    count = int(s.now // window) + 1
    size, files = np.zeros(count), np.zeros(count)
    for when, model, members, length in s.rounds_written:
        of = found[model]
        within = int(length // seconds)
        each = of.mask + of.border + (of.weights if weights else 0) + of.record + 110 + within * of.within
        size[int(when // window)] += members * each
        files[int(when // window)] += members * (4 + within)
    at_most = f"{size.max() / window / 1e9:.2f} GB/s | {files.max() / window:,.0f} /s"
    return f"{size.sum() / 1e12:.1f} TB | {at_most}"


POLICIES = ("a fleet is a task", "split", "split and shared")


def page() -> str:
    """The page with its tables made anew; the picture beside it."""
    rounds = rounds_of_real_runs()
    found = {k.model: sizes(k) for k in KINDS}
    mlps = tuple(replace(k, fleets=100) for k in KINDS if k.model == "mlp")
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as processes:
        tasks = [processes.submit(simulated, KINDS, policy, rounds, True) for policy in POLICIES]
        tasks += [processes.submit(simulated, KINDS, POLICIES[-1], rounds, False)]
        tasks += [processes.submit(simulated, mlps, POLICIES[-1], rounds, True)]
        *shares, calm, quick = [task.result() for task in tasks]
    mixed = dict(zip(POLICIES, shares, strict=True))
    lines = _schedule_table(mixed, calm, quick) + _bytes_table(mixed[POLICIES[-1]], quick, found)
    write_whole(PAGE.with_suffix(".png"), as_file(picture(mixed), "png"))
    return renewed(PAGE.read_text(encoding="utf-8"), "tables", "\n".join(lines), "make_scale.py")


def _schedule_table(mixed: dict[str, Result], calm: Result, quick: Result) -> list[str]:
    lines = [
        "| 10^5 runs on 1,000 GPUs | length | ideal | ratio | GPUs busy | failures | GPU hours lost |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [(f"four models: {policy}", s) for policy, s in mixed.items()]
    rows += [("four models: split and shared, nothing fails", calm), ("MLPs alone: split and shared", quick)]
    for name, s in rows:
        best, hours = s.ideal, s.now / 3600
        length = f"{hours:.1f} h" if hours > 1 else f"{hours * 60:.1f} min"
        least = f"{best / 3600:.1f} h" if hours > 1 else f"{best / 60:.1f} min"
        lost = f"{s.failed} | {s.lost / 3600:.0f}"
        busy = (s.busy + s.lost) / (s.now * GPUS)
        lines.append(f"| {name} | {length} | {least} | {s.now / best:.2f} | {busy:.0%} | {lost} |")
    return [*lines, ""]


def _bytes_table(mixed: Result, quick: Result, found: dict[str, Sizes]) -> list[str]:
    lines = ["| bytes of | state within a round | between rounds, before | between rounds, now | masks | record |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for model, of in found.items():
        cells = (of.within, of.border + of.weights, of.border, of.mask, of.record)
        lines.append(f"| {model} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    lines += ["", "| written | in all | at most | files at most |", "| --- | ---: | ---: | ---: |"]
    often, now = in_step.SECONDS_BETWEEN_SAVES, SECONDS_BETWEEN_SAVES
    for name, s in (("four models", mixed), ("MLPs alone", quick)):
        for how, seconds, weights in (
            (f"a state every {often:.0f} s, with weights between rounds", often, True),
            (f"a state every {now:.0f} s, with weights between rounds", now, True),
            (f"a state every {now:.0f} s, without", now, False),
        ):
            lines.append(f"| {name}: {how} | {written(s, found, seconds=seconds, weights=weights)} |")
    return lines


def picture(mixed: dict[str, Result]) -> Figure:
    """How many GPUs are at work, over the hours, for each way to share it out."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        axis = figure.subplots()
        for (policy, s), line in zip(mixed.items(), LINES, strict=False):
            times = np.linspace(0, s.now, 600)
            when, busy = np.array(s.samples).T
            busy = busy[np.clip(np.searchsorted(when, times, side="right") - 1, 0, None)]
            style = {name: value for name, value in line.items() if name != "marker"}
            axis.plot(times / 3600, busy, label=f"{policy}, {s.now / 3600:.1f} h", **style)
        axis.axvline(mixed[POLICIES[-1]].ideal / 3600, color="#666666", linewidth=1)
        axis.annotate(
            "ideal", (mixed[POLICIES[-1]].ideal / 3600, 30), xytext=(-4, 0), textcoords="offset points", ha="right"
        )
        axis.set(xscale="log", xlabel="hours, logarithmic", title=f"GPUs at work, of {GPUS:,}", ylim=(0, None))
        figure.legend(loc="outside upper center", ncols=3, handlelength=3.2)
    return figure


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
