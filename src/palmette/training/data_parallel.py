"""Data-parallel training: several processes share each batch of one network, and gradients are summed.

The first process leads: it owns the run, evaluates, prunes and saves. The other processes are its workers: they
receive the network when a training begins, train each epoch with it, and exit with the leader.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore

from palmette.errors import ProcessLost
from palmette.training.data.images import Images
from palmette.training.loop import Score, Training, autocast
from palmette.training.members import Member, Single
from palmette.training.random_streams import mix
from palmette.training.recipe import Recipe
from palmette.training.sync_batch_norm import synced

_Worker = tuple[subprocess.Popen[bytes], IO[bytes]]
_TIMEOUT = timedelta(days=7)  # workers wait while the leader evaluates; a dead process is noticed at once
_START = 120.0  # seconds for all workers to start
_STUCK = 30.0  # seconds between the death of a worker and the exit of a blocked leader
_RESUME = "The same command resumes from the last saved state"


class WorkerGroup:
    """Processes that train together, as seen by one of them; rank 0 is the leader, which started the `workers`."""

    def __init__(self, rank: int, size: int, device: str, store: Store, workers: Sequence[_Worker] = ()) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.in_epoch = False
        self._workers = workers
        self.images: Images | None = None  # that the workers have
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)

    def share(self, count: int) -> slice:
        """Share of this process of `count` images."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def sum_(self, values: Tensor) -> Tensor:
        """Sum `values` over all processes, in place."""
        with self._explain_errors():
            dist.all_reduce(values)
        return values

    def send(self, *message: Any) -> None:
        """Send a message to all workers."""
        if self.in_epoch:
            raise ProcessLost(f"an epoch was interrupted, and the processes are out of step. {_RESUME}")
        try:
            torch.save(message, buffer := io.BytesIO())
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ValueError(
                f"--nproc {self.size} sends the model to other processes, but this one cannot be: {error}. Its "
                "classes and functions must be at the top level of a module"
            ) from error
        data = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        with self._explain_errors():
            dist.broadcast(torch.tensor(len(data)), 0)
            dist.broadcast(data, 0)

    def receive(self) -> tuple[Any, ...]:
        """Receive a message of the leader."""
        dist.broadcast(size := torch.tensor(0), 0)
        dist.broadcast(data := torch.empty(int(size), dtype=torch.uint8), 0)
        buffer = io.BytesIO(data.numpy().tobytes())
        return tuple(torch.load(buffer, map_location=self.device, weights_only=False))

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ProcessLost(self._lost_worker() or f"the processes lost their connection: {error}") from error

    def _lost_worker(self) -> str:
        end = time.monotonic() + 5
        while self._workers and time.monotonic() < end:
            if lost := _lost(self._workers):
                return f"{lost}. {_RESUME}"
            time.sleep(0.1)
        return ""

    def close(self) -> None:
        """Stop the workers; kill them within an epoch."""
        try:
            if not self.in_epoch and not _lost(self._workers):
                self.send("end")
        except ProcessLost:
            self.in_epoch = True
        if self.in_epoch:
            for process, _ in self._workers:
                process.kill()
        dist.destroy_process_group()  # before waiting: NCCL needs all processes to do this at once
        for process, _ in self._workers:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)


@contextmanager
def worker_group(size: int, device: str) -> Iterator[WorkerGroup | None]:
    """Start a group of `size` processes, this one included, for the duration; None for a size of one."""
    if size == 1:
        yield None
        return
    threads = torch.get_num_threads()
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    workers = [_start(rank, size, device, store.port) for rank in range(1, size)]
    over = threading.Event()
    try:
        _wait_for(workers, store)
        torch.set_num_threads(max(1, threads // size))
        group = WorkerGroup(0, size, _device_of(0, device), store, workers)
        threading.Thread(target=_exit_if_stuck, args=(workers, over), daemon=True).start()
        try:
            yield group
        finally:
            group.close()
    finally:
        over.set()
        for process, output in workers:
            process.kill()
            process.communicate()
            output.close()
        torch.set_num_threads(threads)


def _exit_if_stuck(workers: Sequence[_Worker], over: threading.Event) -> None:
    """Exit if a worker dies and this process stays blocked: NCCL would block forever."""
    while not over.wait(1.0):
        if (lost := _lost(workers)) and not over.wait(_STUCK):
            os.write(2, f"palmette: {lost}. {_RESUME}\n".encode())
            os._exit(2)


def _device_of(rank: int, device: str) -> str:
    return "cpu" if device == "cpu" else f"cuda:{rank}"


def _start(rank: int, size: int, device: str, port: int) -> _Worker:
    output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    threads = max(1, torch.get_num_threads() // size)
    command = [sys.executable, "-m", __name__, *map(str, (rank, size, _device_of(rank, device), port, threads))]
    # A new session, so that Ctrl-C reaches the leader only; until it exists, SIGINT is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        ), output
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for(workers: Sequence[_Worker], store: Store) -> None:
    end = time.monotonic() + _START
    while store.add("ready", 0) < len(workers):
        if lost := _lost(workers):
            raise ProcessLost(lost)
        if time.monotonic() > end:
            raise ProcessLost(f"{len(workers) + 1} processes could not be started in {_START:.0f} seconds")
        time.sleep(0.05)


def _lost(workers: Sequence[_Worker]) -> str:
    """Worker that has exited, and how; empty if all are alive."""
    for rank, (process, output) in enumerate(workers, 1):
        if (code := process.poll()) is not None:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            why = f": {lines[-1]}" if lines else ""
            return f"process {rank + 1} of {len(workers) + 1} has ended {how}{why}"
    return ""


class DataParallelTraining(Training):
    """`Training` of one member by a group of processes, each of which constructs this and trains the same epochs.

    A step equals that of one process but for rounding: batch norm covers the whole batch, the loss is its mean,
    and every process takes the same step. Random layers such as dropout draw other numbers.
    """

    def __init__(self, member: Member, images: Images, recipe: Recipe, group: WorkerGroup) -> None:
        if group.rank == 0:
            if group.images is not images:
                group.send("images", images)
                group.images = images
            group.send("train", member, recipe)
        super().__init__([member], images, recipe)
        assert isinstance(self.network, Single)
        self.network.add_gradients = self._add_gradients
        self._group = group
        self._fused, self._is_captured = False, True  # kernels and graphs need whole batches

    def begin(self, number: int, *, learning_rate: float | None = None) -> int:
        """Prepare an epoch in all processes."""
        if self._group.rank == 0:
            self._group.send("epoch", number, learning_rate)
        self._group.in_epoch = True
        count = super().begin(number, learning_rate=learning_rate)
        if self._group.rank:
            torch.manual_seed(mix(torch.initial_seed() % 2**62, self._group.rank))
        return count

    def finish(self) -> list[Score]:
        """Mean score over all processes."""
        self._group.sum_(self._totals)
        self._group.in_epoch = False
        return super().finish()

    def _step(self, size: int) -> None:
        share = self._group.share(size)
        count = share.stop - share.start
        self._position += share.start
        pixels, answers = self._batch(count)
        with synced(self._group.sum_):
            with autocast(self.recipe.precision, self.device):
                scores = self.network.scores(pixels)
            self.network.learn(scores, self._loss_gradients(scores, answers) * (count / size))
        self._position += size - share.start

    def _add_gradients(self, gradients: Sequence[Tensor]) -> None:
        flat = self._group.sum_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def run_worker(rank: int, size: int, device: str, port: int, threads: int) -> None:
    """Main function of a worker."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the leader decides when to stop
        if kind := getattr(signal, name, None):  # Windows has no SIGHUP
            signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_exit_with_leader, daemon=True).start()
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.cuda.set_device(device)
    store = TCPStore("127.0.0.1", port, None, is_master=False)
    store.add("ready", 1)
    group = WorkerGroup(rank, size, device, store)
    images: Images
    training: DataParallelTraining
    while True:
        try:
            kind, *rest = group.receive()
        except RuntimeError:  # the leader is gone
            os._exit(1)
        if kind == "images":
            images = rest[0]
        elif kind == "train":
            training = DataParallelTraining(rest[0], images, rest[1], group)
        elif kind == "epoch":
            training.epoch(rest[0], learning_rate=rest[1])
        else:
            break
    dist.destroy_process_group()


def _exit_with_leader() -> None:
    os.read(0, 1)  # nothing is ever written: this returns when the leader has exited, for any reason
    os._exit(1)


if __name__ == "__main__":
    run_worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
