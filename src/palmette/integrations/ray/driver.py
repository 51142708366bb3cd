"""Sweeps on a Ray cluster: a task trains a batch of runs, and its run folders are the result."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palmette.errors import (
    NotFinite,
    NotWritten,
    PalmetteError,
    RunBusy,
    RunDamaged,
    RunFailed,
    RunInterrupted,
    extra,
    first_line,
    in_words,
)
from palmette.integrations.ray.worker import Event, Mailbox, Report, WorkerContext, answer, train
from palmette.studies.cost import epoch_flops
from palmette.studies.experiment import Experiment
from palmette.studies.folder import RunDir
from palmette.studies.observer import Observer, Outcomes
from palmette.studies.scheduler import TRIES, Batch, Schedule, kind

PATIENCE = 120.0
"""Seconds to wait for a run in use elsewhere: a file system may keep the lock of a lost machine so long."""
# Messages of Ray about machines and workers, which would mix with output that programs read; the driver says them.
_OF_RAY = (
    "A worker died or was killed|The node with node id|killed due to memory pressure|cannot be scheduled|"
    "worker processes have been started"
)
_FINAL = (NotFinite, RunDamaged, MemoryError)  # errors of one run that a retry would repeat


class OnRay:
    """Engine of `palmette.studies.sweep.run` that splits fleets over the workers of a Ray cluster.

    On a CPU with one thread, records do not depend on which worker trains a run and with which others; elsewhere
    last digits may differ, unless `size` fixes how many are trained together. A lost worker costs the work since
    the last state, a round at most. A run that fails three times is set aside.

    Args:
        address: of the cluster, "auto" for the one of this machine; None starts one here and stops it at the end.

    >>> from palmette.studies import sweep
    >>> with OnRay() as engine:  # doctest: +SKIP
    ...     sweep.run(sweep.read("grid.toml"), "runs", engine=engine)
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self._started: list[bool] = []  # for each open `with`: whether it started Ray

    def __enter__(self) -> OnRay:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _OF_RAY)
        if "ray" not in sys.modules and (self.address is None or _has_token()):
            # As `ray start` does; `ray.init` does not, and would be refused. Ray reads it when imported.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        ray = _ray()
        if ray.is_initialized():
            self._started.append(False)
            return self
        options: dict[str, Any] = {"address": self.address or "local", "log_to_driver": False}
        options |= {"logging_level": "error", "configure_logging": False}
        if self.address is None:  # all workers see the run folders, so that the object store stays small
            options |= {"include_dashboard": False, "object_store_memory": 1 << 28}
        try:
            if self.address is not None:
                _check_address(self.address)
            ray.init(**options)
        except (RuntimeError, ValueError, OSError) as error:
            where = "Ray" if self.address is None else f"the Ray cluster at {self.address!r}"
            why = first_line(error).rstrip(".")
            raise PalmetteError(
                f"{where} cannot be used: {why}. `ray start --head` starts one, and "
                "`ray start --address HOST:PORT` adds a machine to it; this command must run on one of them."
            ) from error
        self._started.append(True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._started.pop():
            _ray().shutdown()

    def device(self, wanted: str | None) -> str:
        """The device to train on: `wanted`, or GPUs if the cluster has any."""
        has = self.workers("cuda") > 0
        if wanted not in (None, "cpu", "cuda"):
            raise ValueError(f"with --engine ray a device is cpu or cuda (each fleet gets one), got {wanted!r}")
        if wanted == "cuda" and not has:
            raise ValueError("the Ray cluster has no GPU; --device cpu trains without one")
        return wanted or ("cuda" if has else "cpu")

    def workers(self, device: str) -> int:
        """Batches that can be trained at once: one per GPU, or per as many cores as torch uses here."""
        machines = [machine["Resources"] for machine in _ray().nodes() if machine["Alive"]]
        needs = needs_of(device).items()
        return sum(min(int(has.get(name, 0) // count) for name, count in needs) for has in machines)

    def __call__(
        self,
        work: Sequence[Mapping[Path, Experiment]],
        *,
        data_folder: str | Path | None,
        device: torch.device | str,
        size: int | None,
        observer: Observer,
    ) -> Outcomes:
        """Train all fleets of `work`, runs by folder; return how each run ended."""
        names = {folder.resolve(): folder for fleet in work for folder in fleet}
        if not names:
            return {}
        data = data_folder or os.environ.get("PALMETTE_DATA")  # other machines do not have the variable
        with self:
            root = Path(os.path.commonpath([folder.parent for folder in names]))
            root.mkdir(parents=True, exist_ok=True)
            token = root / f".ray-{uuid.uuid4().hex[:8]}"
            token.touch()
            context = WorkerContext(
                token,
                os.getcwd(),
                None if data is None else str(Path(data).expanduser().resolve()),
                str(device),
                torch.get_num_threads(),
                max(1.0, self.workers(str(device)) / 200),  # a mailbox reads hundreds of reports per second
            )
            fleets = [{folder.resolve(): e for folder, e in fleet.items()} for fleet in work]
            try:
                return {names[at]: how for at, how in _Sweep(self, fleets, context, size, observer).run().items()}
            except _ray().exceptions.RayError as error:
                raise PalmetteError(
                    f"the Ray cluster was lost ({type(error).__name__}). What was recorded is on disk: the same "
                    "command resumes once there is a cluster again."
                ) from error
            finally:
                token.unlink(missing_ok=True)


def _check_address(address: str) -> None:
    """Raise at once if no cluster answers; Ray itself waits for minutes."""
    if address == "auto":
        address = _ray()._private.services.get_ray_address_from_environment("auto", None)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("an address is auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"nothing answers at {address} ({error})") from error


def _has_token() -> bool:
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(named) or Path("~/.ray/auth_token").expanduser().exists()


def needs_of(device: str) -> dict[str, float]:
    """Resources of a batch, by Ray's names."""
    if device.startswith("cuda"):
        return {"GPU": 1.0, "CPU": 1.0}
    return {"CPU": float(torch.get_num_threads())}


@dataclass
class _Sweep:
    """A sweep in progress, as the driver sees it."""

    engine: OnRay
    fleets: Sequence[Mapping[Path, Experiment]]
    context: WorkerContext
    size: int | None
    observer: Observer

    def __post_init__(self) -> None:
        ray = _ray()
        self.runs = {folder: e for fleet in self.fleets for folder, e in fleet.items()}
        self.company = {folder for fleet in self.fleets if len(fleet) > 1 for folder in fleet}
        self.outcomes: Outcomes = {}
        self.flying: dict[Any, Batch] = {}
        self.busy_since: dict[Path, float] = {}
        self.said: set[str] = set()
        self.workers, self._counted = self.engine.workers(self.context.device), time.monotonic()
        done = {folder: _rounds(folder) for folder in self.runs}
        guess = {kind(e): epoch_flops(e.data, e.model, self.context.data_folder) for e in self.runs.values()}
        self.schedule = Schedule(self.fleets, max(1, self.workers), self.size, done, guess)
        here = ray.get_runtime_context().get_node_id()
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        self.mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=pinned).remote()
        needs = needs_of(self.context.device)
        self.task = ray.remote(train).options(
            num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), max_retries=0, scheduling_strategy="SPREAD"
        )

    def run(self) -> Outcomes:
        """Run until no work is left, or the observer interrupts."""
        ray, ending = _ray(), False
        if not self.workers:
            needs = " and ".join(f"{count:g} {name}" for name, count in needs_of(self.context.device).items())
            raise PalmetteError(
                f"no machine of the Ray cluster has the {needs} that a fleet needs; `ray status` shows what they "
                "have, and OMP_NUM_THREADS=1 asks for one CPU"
            )
        while self.flying or (self.schedule and not ending):
            if not ending and self.observer.interrupts():
                ending = True
                ray.get(self.mailbox.ask.remote("end"))
            while not ending and len(self.flying) < self.workers:
                if (batch := self.schedule.next(time.monotonic())) is None:
                    break
                company = self.size != 1 and any(folder in self.company for folder in batch.runs)
                task = self.task.remote(batch.number, batch.runs, company, self.context, self.mailbox)
                self.flying[task] = batch
            if not ending:
                for batch in self.schedule.to_share(self._idle()):
                    self.mailbox.ask.remote("share", batch.number)
            landed: list[Any] = []
            if self.flying:
                landed, _ = ray.wait(list(self.flying), num_returns=len(self.flying), timeout=0.1)
            else:
                time.sleep(0.1)
            self._tell(ray.get(self.mailbox.take.remote()))
            for task in landed:
                self._land(task)
            self._count_workers()
        self._tell(ray.get(self.mailbox.take.remote()))
        if left := [folder for folder in self.runs if folder not in self.outcomes]:
            raise RunInterrupted(f"ended; {len(left)} of {len(self.runs)} runs are unfinished, and saved")
        return self.outcomes

    def _idle(self) -> int:
        return max(0, self.workers - len(self.flying))

    def _count_workers(self) -> None:
        """Count the workers again every two seconds: machines come and go."""
        if time.monotonic() - self._counted > 2:
            before, self._counted = self.workers, time.monotonic()
            self.workers = self.engine.workers(self.context.device)
            if before and not self.workers:
                self.observer.say("no machine is left that can train; `ray start --address HOST:PORT` adds one")

    def _tell(self, events: Sequence[Event]) -> None:
        for what, folder, more in events:
            if folder is None:
                if more not in self.said:  # a thousand workers may say the same
                    self.observer.say(more)
                self.said.add(more)
            elif what == "epoch":
                self.observer.epoch(self.runs[folder], more)
            elif what == "pace":
                self.schedule.seconds[kind(self.runs[folder])] = more
            else:
                self.schedule.reached(folder, more["round"] + 1)
                self.observer.recorded(self.runs[folder], more)

    def _land(self, task: Any) -> None:
        batch = self.flying.pop(task)
        try:
            report: Report = answer(task)
        except Exception as error:  # the worker or its machine is lost, or the task could not be sent
            report = Report(why=error)
        answer(self.mailbox.close.remote(batch.number))
        now, later, left = time.monotonic(), False, {}
        for folder, experiment in batch.runs.items():
            outcome = report.outcomes.get(folder)
            if isinstance(outcome, NotWritten):
                raise outcome
            if not isinstance(outcome, RunBusy):
                self.busy_since.pop(folder, None)
            if isinstance(outcome, RunBusy) and self._may_wait(folder, now):
                left[folder], later = experiment, True
            elif isinstance(outcome, (str, RunBusy, *_FINAL)):
                self._over(folder, outcome)
            else:
                left[folder] = experiment
                report.why = report.why or (outcome if isinstance(outcome, Exception) else None)
        if isinstance(report.why, NotWritten):
            raise report.why
        if report.why is None:
            self.schedule.given_back(batch, left, idle=self._idle(), at=now + 2 if later else 0.0)
            return
        why = _why(report.why)
        aside = self.schedule.failed(batch, left)
        for folder in aside:
            failure = RunFailed(f"{folder.name} failed {TRIES} times, the last time alone: {why}")
            RunDir(folder).note_failure(failure)
            self._over(folder, failure)
        if len(left) > len(aside):
            runs = "a run is" if len(left) == 1 else f"{len(left)} runs are"
            self.observer.say(f"{runs} tried again: {why}")

    def _may_wait(self, folder: Path, now: float) -> bool:
        """Whether to try a run in use again; a run of a lost machine is freed at once."""
        machines = _ray().nodes()
        alive = {machine["NodeManagerHostname"] for machine in machines if machine["Alive"]}
        lost = {machine["NodeManagerHostname"] for machine in machines} - alive
        RunDir(folder).free_from(lost)
        if not self.busy_since:
            owner = RunDir(folder).owner() or "another process"
            self.observer.say(f"runs are in use by {owner}; they are tried again for {PATIENCE:.0f} s")
        return now - self.busy_since.setdefault(folder, now) < PATIENCE

    def _over(self, folder: Path, outcome: str | Exception) -> None:
        self.outcomes[folder] = outcome
        self.observer.ended(self.runs[folder], outcome)


def _rounds(folder: Path) -> int:
    with suppress(RunDamaged):
        return len(RunDir(folder).records())
    return 0


def _why(error: Exception) -> str:
    errors = _ray().exceptions
    if isinstance(error, errors.RayError):
        kind = "its machine was lost" if isinstance(error, errors.NodeDiedError) else "its worker was lost"
        return f"{kind} ({type(error).__name__})"
    return in_words(error)


def _ray() -> Any:
    with extra("ray", "--engine ray needs Ray"):
        import ray
        import ray.util.scheduling_strategies
    return ray
