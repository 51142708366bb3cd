"""One network trained by several processes: each takes a share of every batch, and gradients are added up.

The process that was started first leads: it keeps the run, evaluates, prunes and saves as it would alone. The
others follow. They get the network when a training begins, train each epoch along, and end when the leader does.
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

Follower = tuple[subprocess.Popen[bytes], IO[bytes]]
_TIMEOUT = timedelta(days=7)  # for a leader that evaluates; a process that is gone is noticed at once
_START = 120.0  # seconds
_STUCK = 30.0
_GO_ON = "The same command goes on from the last saved state"


class Team:
    """The processes that train together, seen from one of them.

    Args:
        rank: of this process; 0 leads.
        size: how many there are.
        device: of this process.
        store: through which they find each other.
        others: the processes that follow this one, and what they say.
    """

    def __init__(self, rank: int, size: int, device: str, store: Store, others: Sequence[Follower] = ()) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.in_epoch = False
        self._others = others
        self._images: Images | None = None
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)

    def share(self, count: int) -> slice:
        """Which of `count` images are this process's."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def add_(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        with self._together():
            dist.all_reduce(values)
        return values

    def send(self, *message: Any) -> None:
        """Tell the others what to do next."""
        if self.in_epoch:
            raise ProcessLost(f"an epoch was broken off, and the processes are no longer in step. {_GO_ON}")
        try:
            torch.save(message, buffer := io.BytesIO())
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ValueError(
                f"--nproc {self.size} sends the model to other processes, but this one cannot be: {error}. Its "
                "classes and functions must stand at the top of a module"
            ) from error
        data = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        with self._together():
            dist.broadcast(torch.tensor(len(data)), 0)
            dist.broadcast(data, 0)

    def receive(self) -> tuple[Any, ...]:
        """What the leader tells."""
        dist.broadcast(size := torch.tensor(0), 0)
        dist.broadcast(data := torch.empty(int(size), dtype=torch.uint8), 0)
        message: tuple[Any, ...] = torch.load(
            io.BytesIO(data.numpy().tobytes()), map_location=self.device, weights_only=False
        )
        return message

    def send_images(self, images: Images) -> None:
        """Give the others the data set, unless they have it."""
        if self._images is not images:
            self.send("images", images)
            self._images = images

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise ProcessLost(self._who_is_lost() or f"the processes have lost each other: {error}") from error

    def _who_is_lost(self) -> str:
        end = time.monotonic() + 5
        while self._others and time.monotonic() < end:
            if said := _lost(self._others):
                return f"{said}. {_GO_ON}"
            time.sleep(0.1)
        return ""

    def close(self) -> None:
        """Let the others end; at once, if they are in the middle of an epoch."""
        try:
            if not self.in_epoch and not _lost(self._others):
                self.send("end")
        except ProcessLost:
            self.in_epoch = True
        if self.in_epoch:
            for process, _ in self._others:
                process.kill()
        dist.destroy_process_group()  # before the others are waited for: NCCL wants it of all at once
        for process, _ in self._others:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)


@contextmanager
def team_of(size: int, device: str) -> Iterator[Team | None]:
    """A team of `size` processes, this one among them, for as long as it takes; None for a size of one."""
    if size == 1:
        yield None
        return
    threads = torch.get_num_threads()
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    others = [_start(rank, size, device, store.port) for rank in range(1, size)]
    over = threading.Event()
    try:
        _wait_for(others, store)
        torch.set_num_threads(max(1, threads // size))
        team = Team(0, size, _device_of(0, device), store, others)
        threading.Thread(target=_watch, args=(others, over), daemon=True).start()
        try:
            yield team
        finally:
            team.close()
    finally:
        over.set()
        _end(others)
        torch.set_num_threads(threads)


def _watch(others: Sequence[Follower], over: threading.Event) -> None:
    """End this process if another has ended and that goes unnoticed: on GPUs one waits for the lost for ever."""
    while not over.wait(1.0):
        if (said := _lost(others)) and not over.wait(_STUCK):
            os.write(2, f"palmette: {said}. {_GO_ON}\n".encode())
            os._exit(2)


def _device_of(rank: int, device: str) -> str:
    return "cpu" if device == "cpu" else f"cuda:{rank}"


def _start(rank: int, size: int, device: str, port: int) -> Follower:
    said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    threads = max(1, torch.get_num_threads() // size)
    command = [sys.executable, "-m", __name__, *map(str, (rank, size, _device_of(rank, device), port, threads))]
    # In a session of its own, so that Ctrl-C goes to the leader alone; until it has one, it does not hear it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
        ), said
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait_for(others: Sequence[Follower], store: Store) -> None:
    end = time.monotonic() + _START
    while store.add("ready", 0) < len(others):
        if said := _lost(others):
            raise ProcessLost(said)
        if time.monotonic() > end:
            raise ProcessLost(f"{len(others) + 1} processes could not be started in {_START:.0f} seconds")
        time.sleep(0.05)


def _lost(others: Sequence[Follower]) -> str:
    """Which process has ended, and how; empty if all are there."""
    for rank, (process, said) in enumerate(others, 1):
        if (code := process.poll()) is not None:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            return f"process {rank + 1} of {len(others) + 1} has ended {how}" + (f": {lines[-1]}" if lines else "")
    return ""


def _end(others: Sequence[Follower]) -> None:
    for process, said in others:
        process.kill()
        process.communicate()
        said.close()


class SharedTraining(Training):
    """`Training` of one member by a team. All of the team make one, and train the same epochs.

    A step is that of one process but for rounding: normalisation is over the whole batch, the loss is its mean,
    and every process takes the same step. A model that draws numbers itself, as for dropout, draws others.
    """

    def __init__(self, member: Member, images: Images, recipe: Recipe, team: Team) -> None:
        if team.rank == 0:
            team.send_images(images)
            team.send("train", member, recipe)
        super().__init__([member], images, recipe)
        assert isinstance(self.network, Single)
        self.network.add_gradients = self._add_gradients
        self._team = team
        self._fused, self._is_captured = False, True  # kernels and graphs are for whole batches

    def begin(self, number: int, *, learning_rate: float | None = None) -> int:
        """Make ready for an epoch, all together."""
        if self._team.rank == 0:
            self._team.send("epoch", number, learning_rate)
        self._team.in_epoch = True
        count = super().begin(number, learning_rate=learning_rate)
        if self._team.rank:
            torch.manual_seed(mix(torch.initial_seed() % 2**62, self._team.rank))
        return count

    def finish(self) -> list[Score]:
        """The mean of the scores of all."""
        self._team.add_(self._totals)
        self._team.in_epoch = False
        return super().finish()

    def _step(self, size: int) -> None:
        share = self._team.share(size)
        count = share.stop - share.start
        self._position += share.start
        pixels, answers = self._batch(count)
        with synced(self._team.add_):
            with autocast(self.recipe.precision, self.device):
                scores = self.network.scores(pixels)
            self.network.learn(scores, self._loss_gradients(scores, answers) * (count / size))
        self._position += size - share.start

    def _add_gradients(self, gradients: Sequence[Tensor]) -> None:
        flat = self._team.add_(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def follow(rank: int, size: int, device: str, port: int, threads: int) -> None:
    """What a process does that does not lead."""
    for kind in (signal.SIGINT, signal.SIGTERM):  # the leader says when it is over
        signal.signal(kind, signal.SIG_IGN)
    threading.Thread(target=_end_with_leader, daemon=True).start()
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.cuda.set_device(device)
    store = TCPStore("127.0.0.1", port, None, is_master=False)
    store.add("ready", 1)
    team = Team(rank, size, device, store)
    images: Images | None = None
    training: SharedTraining | None = None
    while True:
        try:
            kind, *rest = team.receive()
        except RuntimeError:  # the leader is gone
            os._exit(1)
        if kind == "images":
            images = rest[0]
        elif kind == "train":
            assert images is not None
            training = SharedTraining(rest[0], images, rest[1], team)
        elif kind == "epoch":
            assert training is not None
            training.epoch(rest[0], learning_rate=rest[1])
        else:
            break
    dist.destroy_process_group()


def _end_with_leader() -> None:
    os.read(0, 1)  # there is nothing to read, ever, but the end: when the leader is gone, whatever became of it
    os._exit(1)


if __name__ == "__main__":
    follow(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
