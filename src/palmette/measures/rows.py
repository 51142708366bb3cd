"""Lists, arrays and tensors as rows: the shape that every measure works on.

A row is a set of entries measured together: a vector, a slice, a neuron, a layer, a network. Rows of one kind are
the rows of a matrix, and a row that spans several tensors is a sequence of matrices with the same number of rows.
Nothing is concatenated or widened as a whole: measures read tiles of bounded size.
"""

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from palmette.measures.parameters import is_number

TILE = 1 << 18  # entries widened to float64 at a time: 2 MB, which stays in a core's cache
CUDA_TILE = 1 << 24
INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a float -> integer dtype of the same size."""

Tiles = Iterable[tuple[slice | Tensor, Tensor]]
"""Slice of rows, and their magnitudes in float64, 0 where an entry does not count. A tile may be overwritten."""


class Summable(Protocol):
    """Rows whose numbers add up over tiles, in memory, in a file or across processes."""

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def width(self) -> int:
        """Entries of a row, including entries that do not count."""

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest float dtype that holds all values."""

    def counts(self) -> Tensor:
        """Entries of each row that count (`d`), int64."""

    def largest(self) -> Tensor:
        """Largest magnitude of each row, float64; 0 for an empty one."""

    def totals(self, of: Callable[[Tiles], list[Tensor]]) -> list[Tensor]:
        """Whole numbers that `of` finds in tiles, in digits along the first axis, added up over all tiles."""


@dataclass(frozen=True)
class Rows:
    """`n` rows: row `i` is the `i`-th row of all segments, one after another."""

    segments: tuple[Tensor, ...]
    kept: tuple[Tensor | None, ...]  # for each segment the entries that count, or None where all do

    @classmethod
    def of(cls, matrix: Tensor, kept: Tensor | None = None) -> Self:
        """One row for each row of `matrix`."""
        return cls((matrix,), (kept,))

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.segments[0].shape[0]

    @property
    def width(self) -> int:
        """Entries of a row, including entries that do not count."""
        return sum(segment.shape[1] for segment in self.segments)

    @property
    def device(self) -> torch.device:
        """Device of the first segment."""
        return self.segments[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest float dtype that holds the values of all segments."""
        if not all(segment.is_floating_point() for segment in self.segments):
            return torch.float64
        return reduce(torch.promote_types, (segment.dtype for segment in self.segments))

    def counts(self) -> Tensor:
        """Entries of each row that count (`d`), int64, on the CPU like every number about a whole row."""
        d = torch.zeros(self.n, dtype=torch.int64)
        for segment, kept in zip(self.segments, self.kept, strict=True):
            if kept is None:
                d += segment.shape[1]
                continue
            for rows, columns in cut_into_tiles(kept):  # a sum of booleans widens all of them to int64 first
                d[rows] += kept[rows, columns].sum(1).cpu()
        return d

    def take(self, which: slice | Tensor) -> Self:
        """Some rows: a slice, without a copy, or those that a boolean vector marks."""
        if isinstance(which, Tensor) and bool(which.all()):
            return self
        return type(self)(
            tuple(s[which] for s in self.segments), tuple(None if k is None else k[which] for k in self.kept)
        )

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """All entries: (which rows, their magnitudes in float64, 0 where an entry does not count).

        A tile is scratch memory: valid until the next tile, and may be overwritten.
        """
        for segment, kept in zip(self.segments, self.kept, strict=True):
            scratch = torch.empty(0, dtype=torch.float64, device=segment.device)
            for rows, columns in cut_into_tiles(segment):
                part = segment[rows, columns]
                if scratch.shape != part.shape:
                    scratch = torch.empty(part.shape, dtype=torch.float64, device=segment.device)
                tile = scratch.copy_(part).abs_()
                if kept is not None:
                    tile.masked_fill_(~kept[rows, columns], 0.0)
                yield rows, tile

    def totals(self, of: Callable[[Tiles], list[Tensor]]) -> list[Tensor]:
        """Whole numbers that `of` finds in the tiles."""
        return of(self.tiles())

    def largest(self) -> Tensor:
        """Largest magnitude of each row, float64; 0 for an empty one."""
        largest = torch.zeros(self.n, dtype=torch.float64)
        for rows, tile in self.tiles():
            torch.maximum(largest[rows], tile.amax(1).cpu(), out=largest[rows])
        return largest


def cut_into_tiles(matrix: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of tiles of bounded size that cover `matrix`, in index order for a single row."""
    n, width = matrix.shape
    if n == 0 or width == 0:
        return
    tile = CUDA_TILE if matrix.is_cuda else TILE
    tall, wide = max(1, tile // width), min(width, tile)
    for i in range(0, n, tall):
        for j in range(0, width, wide):
            yield slice(i, i + tall), slice(j, j + wide)


def as_rows(
    w: Any, *, dim: int | None = None, kept: Any = None, name: str = "w"
) -> tuple[Rows, Callable[[Tensor], Any]]:
    """Rows of `w` along `dim`, by default all entries as one, and a function that converts a result to its type.

    `kept` marks the entries that count, and `name` stands for `w` in error messages.
    """
    values = as_tensor(w, name)
    shape = values.shape
    if dim is not None and not (is_number(dim, whole=True) and -values.dim() <= dim < values.dim()):
        raise ValueError(f"dim must name one of the {values.dim()} dimensions of {name}, got dim={dim!r}")
    mask = None if kept is None else _mask(kept, shape, name).to(values.device)
    matrix = _flat(values, dim)
    rows = Rows.of(matrix, None if mask is None else _flat(mask, dim))
    left = () if dim is None else tuple(s for i, s in enumerate(shape) if i != dim % len(shape))

    def give_back(result: Tensor) -> Any:
        return in_the_kind_of(w, result.reshape(left))

    return rows, give_back


def measured(w: Any, dim: int | None, kept: Any, core: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Result of `core` for each slice, from its float64 magnitudes (0 if not kept) and which entries are kept."""
    rows, give_back = as_rows(w, dim=dim, kept=kept)
    matrix, mask = rows.segments[0], rows.kept[0]
    if mask is None:
        mask = torch.ones_like(matrix, dtype=torch.bool)
    c = matrix.to(torch.float64).abs().masked_fill(~mask, 0.0)
    if c.shape[1] == 0:
        return give_back(c.new_full((len(c),), math.nan))
    defined = mask.any(1) & c.isfinite().all(1)
    # + 0.0: the negative of an empty sum is 0, not -0.
    return give_back(core(c, mask).masked_fill(~defined, math.nan) + 0.0)


def scaled(c: Tensor) -> Tensor:
    """Each row divided by its largest magnitude, so that no power overflows; a row of zeros becomes NaN."""
    return c / c.amax(1, keepdim=True)


def as_tensor(values: Any, name: str) -> Tensor:
    """`values` as a dense tensor of real numbers without a gradient, without a copy where possible."""
    tensor = _any_tensor(values, name)
    narrow = tensor.dtype in (torch.bool, torch.float4_e2m1fn_x2)
    if narrow or tensor.is_complex() or tensor.is_quantized or tensor.layout != torch.strided:
        raise TypeError(f"{name} must hold real numbers in a dense layout, got {_describe(tensor)}")
    return tensor


def in_the_kind_of(w: Any, result: Tensor) -> Any:
    """`result` as a tensor for a tensor, numpy for numpy, and floats in lists for anything else."""
    if isinstance(w, Tensor):
        return result if w.device.type == "mps" else result.to(w.device)
    array = result.cpu().numpy()
    return array[()] if isinstance(w, np.ndarray | np.generic) else array.tolist()


def _flat(values: Tensor, dim: int | None) -> Tensor:
    if dim is None:
        return values.reshape(1, -1)
    values = values.movedim(dim, -1)
    return values.reshape(math.prod(values.shape[:-1]), values.shape[-1])


def _mask(kept: Any, shape: torch.Size, of: str) -> Tensor:
    mask = _any_tensor(kept, "kept", "booleans")
    if mask.dtype != torch.bool and not (mask.numel() == 0 and isinstance(kept, list | tuple)):
        raise TypeError(f"kept must be a boolean mask, got {_describe(mask)}")
    if mask.shape != shape:
        got = f"got a mask of shape {tuple(mask.shape)}"
        raise ValueError(f"kept must have the shape of {of}, {tuple(shape)}, {got}")
    return mask.to(torch.bool)


def _any_tensor(values: Any, name: str, holds: str = "real numbers") -> Tensor:
    if isinstance(values, Tensor):
        if hasattr(values, "device_mesh"):  # a DTensor
            raise TypeError(f"{name} must be unsharded, got a tensor that is sharded over processes")
        tensor: Tensor = values.detach()
        return tensor.cpu() if tensor.device.type == "mps" else tensor  # MPS has no float64
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a plain array, got a masked one: pass its data and kept=~mask")
    array = np.asarray(values) if isinstance(values, np.ndarray | np.generic) else _listed(values, name, holds)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold {holds}, got an array of dtype {array.dtype}")
    if array.dtype.itemsize > 8 or not array.dtype.isnative:
        with np.errstate(over="ignore"):  # beyond float64 is an infinity
            array = array.astype(np.float64)
    if not array.flags.aligned or any(s < 0 or s % array.itemsize for s in array.strides):
        array = array.copy()  # a reversed array, a field of a record
    with warnings.catch_warnings():
        # A read-only array (a memory-mapped file) is only read here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _listed(values: Any, name: str, holds: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":  # integers beyond 64 bits, fractions, decimals
            array = np.array([float(v) for v in array.flat]).reshape(array.shape)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(
            f"{name} must be {holds} in one rectangular list, got {reprlib.repr(values)}: {error}"
        ) from error
    return array


def _describe(values: Tensor) -> str:
    layout = "" if values.layout == torch.strided else f", {values.layout}"
    return f"a tensor of shape {tuple(values.shape)}, {values.dtype}{layout}"
