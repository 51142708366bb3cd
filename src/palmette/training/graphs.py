"""A step of training as one CUDA graph: recorded once, replayed without work for the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

_WARM_UP = 3  # steps, in which libraries choose their algorithms and allocate what they keep


def captured(
    step: Callable[[], None], state: Callable[[], Iterable[Tensor]], *, device: torch.device
) -> Callable[[], None]:
    """`step` as a graph of the CUDA `device`, or as it is, with a warning, where it cannot be recorded.

    Args:
        step: reads and writes tensors in place; nothing in it waits for the device.
        state: all tensors that `step` changes; after recording they are what they were before. One that `step`
            itself has created, such as a momentum, becomes zero.
    """
    before = {id(tensor): tensor.detach().clone() for tensor in state()}

    def restore() -> None:
        with torch.no_grad():
            for tensor in state():
                if id(tensor) in before:
                    tensor.copy_(before[id(tensor)])
                else:
                    tensor.zero_()

    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                step()
                restore()
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        first = str(error).strip().split("\n")[0]
        message = (
            f"a step of this model cannot be recorded as a CUDA graph, and is launched anew each time: {first}"
        )
        warnings.warn(message, stacklevel=2)
        restore()
        return step
    return graph.replay
