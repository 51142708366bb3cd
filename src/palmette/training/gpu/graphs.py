"""Steps of training as one CUDA graph: recorded once, replayed without work for the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from palmette.errors import first_line

_WARM_UP = 3  # steps, in which libraries choose their algorithms and allocate what they keep


def captured(
    step: Callable[[], None], state: Callable[[], Iterable[Tensor]], *, device: torch.device, repeats: int = 1
) -> tuple[Callable[[], None], int, str | None]:
    """`step` as a graph of the CUDA `device`, or as it is where it cannot be recorded.

    Args:
        step: reads and writes tensors in place; nothing in it waits for the device.
        state: all tensors that `step` changes; after recording they are what they were before. One that `step`
            itself has created, such as a momentum, becomes zero.
        repeats: how many steps one graph does: between two graphs the device rests for some microseconds.

    Returns:
        What to call; how many steps it does, one if it is no graph; why it is none, if so.
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
                with _no_waiting(number == _WARM_UP - 1):
                    step()
                restore()
            graph = _recorded(step, repeats)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        restore()
        return step, 1, first_line(error)
    finally:
        torch.cuda.current_stream(device).wait_stream(side)
    return graph.replay, repeats, None


@contextmanager
def _no_waiting(forbidden: bool) -> Iterator[None]:
    """Raise where the host would wait for the device: in a recording, that could not be mended."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error" if forbidden else before)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _recorded(step: Callable[[], None], times: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(times):
            step()
    return graph
