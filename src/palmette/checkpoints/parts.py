"""One checkpoint measured by several processes: each writes what it found to a small file, and these add up.

The format is described in docs/checkpoints.md.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.checkpoints.compressibility import Compressibility, LeftOut
from palmette.checkpoints.measuring import Findings, Layer, conclude, look
from palmette.checkpoints.open import open_checkpoint, readable
from palmette.checkpoints.report import as_sap
from palmette.measures.parameters import is_number
from palmette.measures.pq import PowerSums
from palmette.measures.spectrum import Counts, Spectrum
from palmette.pruning.budgets import OF_SAP, Sap
from palmette.pruning.sources.file import MEMORY, StoredWeight, unreadable, within

FORMAT = "palmette-part-1"
_KEYS = {"path", "checkpoint", "part", "of", *OF_SAP, "layers", "wide", "left_out"}
_PLAIN = ("name", "dtype", "coding", "neurons", "bytes", "measures", "cuts", "dead")
_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def measure_part(
    path: str | Path,
    part: int,
    of: int,
    *,
    budget: Sap | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    memory: int = MEMORY,
) -> dict[str, Any]:
    """Measure one of `of` parts of a checkpoint; plain values, for `merge_parts`, here or on another machine.

    Args:
        path: the file or folder; of other parts no more than the names and shapes are read.
        part: which of them, from 1.
        of: how many there are: runs of neighbouring tensors of about as many weights each.
        budget, include, exclude, memory: as for `palmette.how_compressible`, the same for all parts.

    >>> import palmette
    >>> path = Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors"
    >>> parts = [measure_part(path, part, 2) for part in (1, 2)]  # each on a machine of its own
    >>> [[layer["name"] for layer in part["layers"]] for part in parts]
    [['head.weight', 'layer1.weight'], ['layer2.weight']]
    >>> merge_parts(parts) == palmette.how_compressible(path)
    True
    """
    if not (is_number(part, whole=True) and is_number(of, whole=True) and 1 <= part <= of):
        raise ValueError(f"a part is one of 1 to as many as there are, such as 2/4, got {part}/{of}")
    budget = as_sap(budget)
    checkpoint = open_checkpoint(path, include=include, exclude=exclude)
    with within(memory) as chunk, readable(checkpoint.path):
        found = look(_share(checkpoint.weights, part, of), budget=budget, chunk=chunk)
        fingerprint = _fingerprint(checkpoint.weights)
    return {
        "format": FORMAT,
        "path": str(checkpoint.path.resolve()),
        "checkpoint": fingerprint,
        "part": part,
        "of": of,
        **{key: getattr(budget, key) for key in OF_SAP},
        "layers": [_layer_out(layer) for layer in found.layers],
        "wide": _wide_out(found.wide),
        "left_out": [asdict(tensor) for tensor in checkpoint.left_out],
    }


def merge_parts(parts: Sequence[Mapping[str, Any] | str | Path], *, memory: int = MEMORY) -> Compressibility:
    """The report on the whole checkpoint, equal to that of `palmette.how_compressible`.

    Weights of more than 16 bits are read once more, for what each layer loses in scope "global".

    Args:
        parts: what `measure_part` gave for each part, or the files that hold it, in any order.
        memory: as for `palmette.how_compressible`.

    >>> import palmette
    >>> path = Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors"
    >>> parts = [measure_part(path, part, 2) for part in (2, 1)]
    >>> merge_parts(parts) == palmette.how_compressible(path)
    True
    """
    found = sorted((_opened(part) for part in parts), key=lambda part: int(part["part"]))
    if not found:
        raise ValueError("parts must hold all parts of a measurement, got none")
    first, many = found[0], found[0]["of"]
    for part in found:
        if part["checkpoint"] != first["checkpoint"]:
            raise ValueError(
                f"part {part['part']} is of other weights than part {first['part']}; measure both again"
            )
        for key in ("of", *OF_SAP):
            if part[key] != first[key]:
                raise ValueError(
                    f"parts of one measurement agree in {key!r}, got {first[key]!r} of part {first['part']} and "
                    f"{part[key]!r} of part {part['part']}"
                )
    numbers = [part["part"] for part in found]
    if missing := [n for n in range(1, many + 1) if n not in numbers]:
        raise ValueError(f"part {missing[0]} of {many} is missing; there are {', '.join(map(str, numbers))}")
    if len(numbers) > many:
        twice = next(n for n in numbers if numbers.count(n) > 1)
        raise ValueError(f"part {twice} of {many} was given twice")
    budget = Sap(**{key: first[key] for key in OF_SAP})
    looked = [_found_in(part) for part in found]
    left_out = [LeftOut(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in first["left_out"]]
    path = Path(first["path"])
    names = [layer.name for part in looked for layer in part.layers]
    known = all(layer.counts is not None for part in looked for layer in part.layers)
    weights = (
        [unreadable(name, (), 0, "is known") for name in names]  # it need not be read again
        if known
        else _weights(path, names, first["checkpoint"])
    )
    with within(memory) as chunk, readable(path):
        return conclude(looked, weights, budget=budget, left_out=left_out, title=path.name, chunk=chunk)


def _opened(part: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    if isinstance(part, Mapping):
        return part
    if not Path(part).is_file():
        raise FileNotFoundError(f"no file at {str(part)!r}")
    try:
        found = json.loads(Path(part).read_bytes())
    except ValueError:
        found = None
    if not (isinstance(found, dict) and found.get("format") == FORMAT and found.keys() >= _KEYS):
        raise ValueError(f"{str(part)!r} is no part of a measurement, as `palmette measure --part` writes them")
    return found


def _found_in(part: Mapping[str, Any]) -> Findings:
    try:
        return Findings(tuple(map(_layer_in, part["layers"])), _wide_in(part["wide"]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"part {part['part']} of {part['of']} is damaged; measure it again") from error


def _share(weights: Sequence[StoredWeight], part: int, of: int) -> list[StoredWeight]:
    """The weights whose middle lies in this part, if all are laid one after another."""
    total, before, chosen = sum(w.entries for w in weights), 0, []
    for weight in weights:
        if (2 * before + weight.entries) * of // (2 * total) == part - 1:
            chosen.append(weight)
        before += weight.entries
    return chosen


def _fingerprint(weights: Sequence[StoredWeight]) -> str:
    """Of all weights, in order, names, shapes, dtypes and the first row: parts of one checkpoint have the same."""
    found = hashlib.sha256()
    for w in weights:
        found.update(repr((w.name, w.shape, str(w.dtype), w.transposed, w.coding)).encode())
        for read in (w.read, w.kept):
            row = torch.empty(0) if read is None else read(0, 1)
            found.update(row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _weights(path: Path, names: Sequence[str], fingerprint: str) -> list[StoredWeight]:
    """The weights themselves, by the names that were measured."""
    if not path.exists():
        raise FileNotFoundError(
            f"{str(path)!r} is not here; merging reads weights of more than 16 bits once more, for scope global"
        )
    stored = open_checkpoint(path, include=["*"]).weights
    by_name = {w.name: w for w in stored}
    found = [by_name[name] for name in names if name in by_name]
    if _fingerprint(found) != fingerprint:
        raise ValueError(f"{str(path)!r} is no longer what the parts were measured of")
    return found


def _layer_out(layer: Layer) -> dict[str, Any]:
    sums = layer.sums
    return {
        **{key: getattr(layer, key) for key in _PLAIN},
        "shape": list(layer.shape),
        "sums": [float(x) for x in (sums.d, sums.scale, sums.p_sum, sums.q_sum)],
        "powers": [sums.p, sums.q],
        "counts": None if layer.counts is None else _counts_out(layer.counts),
    }


def _layer_in(said: Mapping[str, Any]) -> Layer:
    d, scale, p_sum, q_sum = (torch.tensor([x], dtype=torch.float64) for x in said["sums"])
    return Layer(
        **{key: said[key] for key in _PLAIN},
        shape=tuple(said["shape"]),
        sums=PowerSums(d.to(torch.int64), scale, p_sum, q_sum, *said["powers"]),
        counts=None if said["counts"] is None else _counts_in(said["counts"]),
    )


def _counts_out(counts: Counts) -> dict[str, list[str]]:
    names = {dtype: name for name, dtype in _NARROW.items()}
    return {names[dtype]: [_coded(used), _coded(times)] for dtype, (used, times) in counts.items()}


def _counts_in(said: Mapping[str, Sequence[str]]) -> Counts:
    return {_NARROW[name]: (_decoded(used, "<u2"), _decoded(n, "<i8")) for name, (used, n) in said.items()}


def _wide_out(spectrum: Spectrum) -> dict[str, Any]:
    few, buckets = spectrum.wide()
    return {
        "zeros": spectrum.zeros,
        "few": {str(x.dtype): _coded(x) for x in few},
        "buckets": {str(bits): list(map(_coded, arrays)) for bits, arrays in buckets.items()},
    }


def _wide_in(said: Mapping[str, Any]) -> Spectrum:
    few = [_decoded(coded, np.dtype(name).newbyteorder("<").str) for name, coded in said["few"].items()]
    types = ("<i4", "<i8", "<f8")
    buckets = {
        int(bits): tuple(_decoded(coded, kind) for coded, kind in zip(arrays, types, strict=True))
        for bits, arrays in said["buckets"].items()
    }
    return Spectrum.of_wide(few, buckets, zeros=said["zeros"])


def _coded(array: np.ndarray[Any, Any]) -> str:
    """Little-endian numbers, zlib, base64."""
    little = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes())).decode()


def _decoded(text: str, kind: str) -> np.ndarray[Any, Any]:
    array = np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)
    return array.astype(array.dtype.newbyteorder("="))
