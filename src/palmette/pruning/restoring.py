"""Load earlier weights into a model, checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from palmette.errors import MaskMismatch
from palmette.pruning.masks import check_match
from palmette.pruning.sources.sharding import local
from palmette.pruning.weights import uncompiled, wrappers


def load_earlier_(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load `state`, an earlier ``state_dict()`` of `model` or of the module that it wraps."""
    if not isinstance(state, Mapping):
        raise TypeError(f"rewind takes an earlier model.state_dict(), got {type(state).__name__}")
    model = next((m for m in wrappers(model) if m.state_dict().keys() == state.keys()), uncompiled(model))
    whole = model.state_dict()
    own = {n: v for n, v in whole.items() if isinstance(v, Tensor)}
    given = {n: v for n, v in state.items() if isinstance(v, Tensor)}
    check_match(given, {n: v.shape for n, v in own.items()}, "the weights to rewind to")
    if whole.keys() != state.keys():  # extra state that is not a tensor
        differ = sorted(whole.keys() ^ state.keys())
        raise MaskMismatch(f"the weights to rewind to belong to another model; {', '.join(differ)} differ")
    parts = [(local(v), local(given[n])) for n, v in own.items()]
    if any(v.numel() and v.data_ptr() == earlier.data_ptr() for v, earlier in parts):
        raise ValueError(
            "the state to rewind to is the model's own, not a copy, and has been trained along with it; "
            "take copy.deepcopy(model.state_dict()) before training"
        )
    model.load_state_dict(state)
