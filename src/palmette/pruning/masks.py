"""Masks: a mapping from parameter name to boolean tensor, True where a weight is kept."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from palmette.errors import MaskMismatch
from palmette.files import write_beside
from palmette.pruning.choosing.names import gain_of
from palmette.pruning.sources.sharding import added, is_sharded, local, placed_like
from palmette.pruning.weights import Weight, alive, tensors_of

MASKS_FORMAT = "palmette-masks-1"
"""Format of a state of masks, and of files without a seal, which earlier versions wrote."""
SEALED_FORMAT = "palmette-masks-2"
"""Value of the metadata key "format" in a file of masks; "sha256" seals the shapes and the bits."""
WEIGHTS_SEAL = "palmette-seal"
"""Metadata key of a cut file of weights: its seal, which its masks have under "weights"."""
MASKS_SUFFIX = ".masks.safetensors"
"""End of the name of a file of masks, next to the weights that end in .safetensors."""
MOST_AXES = 64
"""Largest number of axes of a tensor, as in NumPy and torch."""
_SHARDED = "palmette-masks-sharded-1"


class Masks(Mapping[str, Tensor]):
    """Boolean tensors by parameter name, True where a weight is kept.

    Masks are immutable values: `&` returns new, narrower masks, so a pruned weight never comes back. Do not write
    to their tensors.

    >>> import palmette as pm
    >>> masks = pm.Masks({"w": torch.tensor([True, True, True, False])})
    >>> masks.density
    0.75
    >>> (masks & {"w": torch.tensor([False, True, True, True])})["w"]
    tensor([False,  True,  True, False])
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        if not isinstance(masks, Mapping):
            raise TypeError(f"masks must be boolean tensors by name, got {type(masks).__name__}")
        for name, mask in masks.items():
            if not (isinstance(mask, Tensor) and mask.dtype == torch.bool):
                got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise TypeError(f"a mask must be a boolean tensor, got {got} for {name!r}")
        self._masks = dict(masks)

    @staticmethod
    def ones_like(weights: Mapping[str, Tensor | Weight]) -> Masks:
        """Masks that keep every weight."""
        tensors = tensors_of(weights)
        masks = Masks({n: torch.ones_like(w.detach(), dtype=torch.bool) for n, w in tensors.items()})
        masks.counts = {n: m.numel() for n, m in masks.items()}  # no collective needed
        return masks

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __and__(self, other: Mapping[str, Tensor]) -> Masks:
        """Intersection of two masks."""
        other = Masks(other)
        check_match(other, {n: m.shape for n, m in self.items()}, "the masks to narrow with")
        return Masks({n: m & placed_like(other[n], m, n) for n, m in self.items()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masks):
            return NotImplemented
        if self.keys() != other.keys() or any(m.shape != other[n].shape for n, m in self.items()):
            return False
        return not any(_counts({n: m ^ placed_like(other[n], m, n) for n, m in self.items()}).values())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Masks({len(self)} weights, {self.kept:,} of {self.total:,} kept, density {self.density:.4f})"

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """Number of kept entries of each weight, on all processes together."""
        return _counts(self._masks)

    @property
    def kept(self) -> int:
        """Number of kept weights."""
        return sum(self.counts.values())

    @property
    def total(self) -> int:
        """Number of weights, including pruned ones."""
        return sum(m.numel() for m in self.values())

    @property
    def density(self) -> float:
        """Fraction of weights that are kept."""
        return self.kept / self.total if self.total else 1.0

    def to(self, device: torch.device | str) -> Masks:
        """The same masks on another device."""
        return Masks({n: m.to(device) for n, m in self.items()})

    @torch.no_grad()
    def apply_(self, weights: Mapping[str, Tensor | Weight]) -> None:
        """Set every pruned entry of `weights` to zero, in place; tensors without a mask are not changed.

        Use it for copies that no Pruner holds, such as averaged weights:
        ``masks.apply_(dict(averaged.module.named_parameters()))``.
        """
        there = {n: w for n, w in weights.items() if n in self} if isinstance(weights, Mapping) else weights
        check_match(tensors_of(there), {n: m.shape for n, m in self.items()}, "the weights")
        parameters, masks = self.of_parameters(weights)
        for name, mask in masks.items():
            weight = parameters[name]
            spread = is_sharded(weight) or is_sharded(mask)
            kept = local(placed_like(mask, weight, name)) if spread else mask.to(weight.device)
            local(weight).masked_fill_(~kept, 0)

    def of_parameters(self, weights: Mapping[str, Tensor | Weight]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters of `weights` and their masks; under weight norm, those of the gains g of w = g · v/‖v‖ too.

        Where nothing of a v is kept, its g becomes zero in its place: a v of zeros would make w NaN.
        """
        parameters, masks = {n: w for n, w in tensors_of(weights).items() if n in self}, dict(self._masks)
        for name, weight in ((n, weights[n]) for n in self):
            gain = weight.gain if isinstance(weight, Weight) else tensors_of(weights).get(gain_of(name))
            if gain is not None:
                mask = masks[name].to(gain.device)
                some = alive(mask, gain)
                parameters[gain_of(name)], masks[gain_of(name)], masks[name] = gain, some, mask | ~some
        return parameters, masks

    def state_dict(self) -> dict[str, Any]:
        """One bit per weight, in tensors and plain values for `torch.save` and `torch.load`.

        Sharded masks are returned as they are, one byte per weight, for `torch.distributed.checkpoint`, which can
        load them into any other sharding.
        """
        if any(map(is_sharded, self.values())):
            return {"format": _SHARDED, "kept": {n: m.clone() for n, m in self.items()}}
        return {
            "format": MASKS_FORMAT,
            "shapes": {n: list(m.shape) for n, m in self.items()},
            "bits": {n: _packed(m) for n, m in self.items()},
        }

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> Masks:
        """Masks from a `state_dict`, on the CPU."""
        if not isinstance(state, Mapping):
            raise TypeError(f"from_state_dict takes the result of state_dict, got {type(state).__name__}")
        if state.get("format") == _SHARDED and isinstance(kept := state.get("kept"), Mapping):
            return Masks({n: m.to(torch.bool) if isinstance(m, Tensor) else m for n, m in kept.items()})
        if state.get("format") != MASKS_FORMAT:
            got = state.get("format")
            raise MaskMismatch(f"these are not masks of format {MASKS_FORMAT!r}, got format {got!r}")
        shapes, bits = state.get("shapes", {}), state.get("bits", {})
        if not (isinstance(shapes, Mapping) and isinstance(bits, Mapping)):
            raise MaskMismatch("the masks are damaged: shapes and bits are not by name")
        if shapes.keys() != bits.keys():
            raise MaskMismatch(f"the masks are damaged: shapes of {list(shapes)}, but bits of {list(bits)}")
        return Masks({n: _unpacked(bits[n], shapes[n], n) for n in shapes})

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the shapes and the bits, which names the content of a file of masks."""
        state = self.state_dict()
        return seal_of(json.dumps(state["shapes"]), (bits.numpy() for bits in state["bits"].values())).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with one bit per weight, atomically; equal masks give equal files."""
        if any(map(is_sharded, self.values())):
            raise TypeError(
                "these masks are sharded; save the Pruner with torch.distributed.checkpoint, next to the model"
            )
        state, end = self.state_dict(), 0
        shapes, data = json.dumps(state["shapes"]), [bits.numpy() for bits in state["bits"].values()]
        self.digest = seal_of(shapes, data).hexdigest()
        header: dict[str, Any] = {}
        for name, bits in state["bits"].items():
            header[name] = {"dtype": "U8", "shape": [len(bits)], "data_offsets": [end, end := end + len(bits)]}
        metadata = {"format": SEALED_FORMAT, "shapes": shapes, "sha256": self.digest}
        text = json.dumps({"__metadata__": metadata, **header}).encode()
        text += b" " * (-len(text) % 8)
        content = [len(text).to_bytes(8, "little"), text, *data]
        write_beside(Path(path), lambda partial: partial.write_bytes(b"".join(content)))

    @staticmethod
    def load(path: str | Path, like: Mapping[str, Tensor | Weight] | None = None) -> Masks:
        """Read masks written by `save`, or by `palmette prune`; a damaged file raises `MaskMismatch`.

        Args:
            path: the file.
            like: weights that the masks must fit, such as `prunable(model)`; the error lists what differs.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"no mask file at {str(path)!r}")
        try:
            metadata = check_masks_file(Path(path))
            kind = metadata.get("format", "")
            with safe_open(path, "pt") as file:
                ours = kind in (MASKS_FORMAT, SEALED_FORMAT)  # otherwise it may be a large model
                bits = {name: file.get_tensor(name) for name in file.keys() if ours}  # noqa: SIM118
            state = {"format": MASKS_FORMAT if ours else kind, "shapes": shapes_in(metadata), "bits": bits}
        except MaskMismatch as error:
            raise MaskMismatch(f"{str(path)!r} {error}") from error
        except SafetensorError as error:
            raise MaskMismatch(f"{str(path)!r} is not a complete mask file: {error}") from error
        try:
            masks = Masks.from_state_dict(state)
        except MaskMismatch as error:
            raise MaskMismatch(f"{str(path)!r} is not a complete mask file: {error}") from error
        if like is not None:
            check_match(masks, {n: w.shape for n, w in like.items()}, f"the masks in {str(path)!r}")
        return masks


def seal_of(shapes: str, bits: Iterable[Any]) -> hashlib._Hash:
    """SHA-256 of masks: their shapes as JSON, then their bits."""
    found = hashlib.sha256(shapes.encode())
    for part in bits:
        found.update(part)
    return found


def shapes_in(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Shapes in the metadata of a file of masks, by name; not yet checked."""
    try:
        found = json.loads(metadata.get("shapes", "{}"))
    except (ValueError, RecursionError) as error:
        raise MaskMismatch("is not a complete mask file: its shapes are not JSON") from error
    if not isinstance(found, dict):
        raise MaskMismatch("is not a complete mask file: its shapes are not by name")
    return found


def check_masks_file(path: Path) -> dict[str, str]:
    """Metadata of a file; raise `MaskMismatch` if masks in it are damaged, or not of the weights beside it.

    Earlier versions wrote files without a seal, which are not checked.
    """
    with safe_open(path, "np") as file:
        metadata: dict[str, str] = file.metadata() or {}
        names = set(file.keys())
    sealed, kind = metadata.get("sha256"), metadata.get("format", "")
    ours = {"shapes", "sha256", "weights"} & metadata.keys()
    if (kind == SEALED_FORMAT) != (sealed is not None) and ours:
        raise MaskMismatch("is damaged: it lacks its seal or its format")
    if kind == SEALED_FORMAT:
        with path.open("rb") as opened:
            opened.seek(8 + int.from_bytes(opened.read(8), "little"))
            found = hashlib.file_digest(opened, lambda: seal_of(metadata.get("shapes", ""), ()))
        if found.hexdigest() != sealed or shapes_in(metadata).keys() != names:
            raise MaskMismatch("is damaged: its content does not fit its seal")
    weights = path.with_name(path.name.removesuffix(MASKS_SUFFIX) + ".safetensors")
    if kind in (MASKS_FORMAT, SEALED_FORMAT) and weights != path and weights.is_file():
        with suppress(SafetensorError), safe_open(weights, "np") as file:
            theirs = (file.metadata() or {}).get(WEIGHTS_SEAL)
            if theirs is not None and theirs != metadata.get("weights"):
                raise MaskMismatch(
                    f"has masks of other weights than {weights.name} next to it has: one of the two was replaced "
                    "alone; cut again, or remove the masks to continue without"
                )
    return metadata


def check_match(masks: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], what: str) -> None:
    """Raise `MaskMismatch`, listing the names and shapes that differ, unless `masks` has exactly `shapes`."""
    other = {n: s for n, s in shapes.items() if n in masks and masks[n].shape != s}
    differ = {
        "missing": [n for n in shapes if n not in masks],
        "not in this model": [n for n in masks if n not in shapes],
        "of another shape": [f"{n} ({tuple(masks[n].shape)} instead of {tuple(s)})" for n, s in other.items()],
    }
    faults = [
        f"{how}: {', '.join(names[:6])}{', …' if len(names) > 6 else ''}" for how, names in differ.items() if names
    ]
    if faults:
        raise MaskMismatch(f"{what} belong to another model; {'; '.join(faults)}")


def _counts(marked: Mapping[str, Tensor]) -> dict[str, int]:
    """Number of marked entries by name, on all processes together."""
    return added({n: local(m).sum() for n, m in marked.items()}, marked)


def _packed(mask: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(mask.cpu().contiguous().numpy().reshape(-1), bitorder="little"))


def _unpacked(bits: Any, shape: Any, name: str) -> Tensor:
    known = (
        isinstance(shape, list | tuple)
        and len(shape) <= MOST_AXES
        and all(type(n) is int and n >= 0 for n in shape)
    )
    if not (known and isinstance(bits, Tensor) and bits.dtype == torch.uint8):
        raise MaskMismatch(f"the mask of {name!r} is damaged: it has no shape or no bits")
    size = math.prod(shape)
    if bits.numel() != (size + 7) // 8 or math.prod(n or 1 for n in shape) >= 1 << 60:
        raise MaskMismatch(f"the mask of {name!r} is damaged: {bits.numel()} bytes for shape {tuple(shape)}")
    flat = np.unpackbits(bits.cpu().numpy(), count=size, bitorder="little").astype(bool)
    return torch.from_numpy(flat).reshape(shape)
