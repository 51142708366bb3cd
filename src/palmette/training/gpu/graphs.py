"""Training steps as one CUDA graph: captured once, replayed with little work for the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from palmette.errors import first_line

_WARM_UP = 3  # steps, in which libraries choose algorithms and allocate workspace


def captured(
    step: Callable[[], None], state: Callable[[], Iterable[Tensor]], *, device: torch.device, repeats: int = 1
) -> tuple[Callable[[], None], int, str | None]:
    """Capture `repeats` steps as a graph of the CUDA `device`, which pauses some microseconds between two graphs.

    `step` reads and writes tensors in place, without synchronisation. `state` gives all tensors that it changes;
    they are restored after the capture, and tensors that `step` creates, such as momentum, become zero.

    Returns:
        The function to call, `step` itself if the capture failed, the steps it takes per call, and why there is no
        graph, or None.
    """
    before = {id(tensor): tensor.detach().clone() for tensor in state()}

    def restore() -> None:
        with torch.no_grad():
            for tensor in state():
                if id(tensor) in before:
                    tensor.copy_(before[id(tensor)])
                else:
                    tensor.zero_()

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            for number in range(_WARM_UP):
                with _no_synchronisation(number == _WARM_UP - 1):
                    step()
                restore()
            graph = _graph_of(step, repeats)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        restore()
        return step, 1, first_line(error)
    finally:
        torch.cuda.current_stream(device).wait_stream(side)
    return graph.replay, repeats, None


@contextmanager
def _no_synchronisation(forbidden: bool) -> Iterator[None]:
    """Raise if the host would wait for the device, since a failed capture cannot be undone."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error" if forbidden else before)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _graph_of(step: Callable[[], None], times: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(times):
            step()
    return graph
