"""Measure one checkpoint in several processes: each writes a small file, and the files add up to the report.

docs/checkpoints.md describes the format.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette.checkpoints.compressibility import Compressibility
from palmette.checkpoints.hub import on_disk
from palmette.checkpoints.measuring import Findings, Layer, conclude, look
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.read_errors import readable
from palmette.checkpoints.report import as_sap
from palmette.measures.parameters import is_number
from palmette.measures.pq import PowerSums
from palmette.measures.spectrum import BUCKET_BITS, Counts, Spectrum
from palmette.pruning.budgets import OF_SAP, Sap
from palmette.pruning.choosing.coverage import LeftOut
from palmette.pruning.choosing.zeros import as_zeros
from palmette.pruning.methods import Zeros
from palmette.pruning.sources.stored import MEMORY, StoredWeight, unreadable, within

FORMAT = "palmette-part-3"
_PLAIN = ("name", "dtype", "coding", "neurons", "bytes", "measures", "cuts", "dead")
_MOST = 1 << BUCKET_BITS  # numbers in an array
_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def measure_part(
    path: str | Path,
    part: int,
    of: int,
    *,
    budget: Sap | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    zeros: Zeros = "pruned",
    memory: int = MEMORY,
) -> dict[str, Any]:
    """Measure one of `of` parts of a checkpoint, on any machine; returns plain values for `merge_parts`.

    Args:
        path: the file or folder; only names and shapes are read of other parts.
        part: number of the part, from 1.
        of: number of parts: consecutive tensors with about the same number of weights each.
        budget, include, exclude, zeros, memory: as for `palmette.how_compressible`, the same for all parts.

    >>> import palmette
    >>> path = Path(palmette.__file__).parent / "examples" / "digits-mlp.safetensors"
    >>> parts = [measure_part(path, part, 2) for part in (2, 1)]  # each may run on another machine
    >>> [[layer["name"] for layer in part["layers"]] for part in parts]
    [['layer2.weight'], ['head.weight', 'layer1.weight']]
    >>> merge_parts(parts) == palmette.how_compressible(path)
    True
    """
    if not (is_number(part, whole=True) and is_number(of, whole=True) and 1 <= part <= of):
        raise ValueError(f"a part K/N needs K from 1 to N, such as 2/4, got {part}/{of}")
    budget, zeros = as_sap(budget), as_zeros(zeros)
    checkpoint = open_checkpoint(on_disk(path, "measuring parts"), include=include, exclude=exclude)
    with within(memory) as chunk, readable(checkpoint.path):
        zeros = "count" if checkpoint.vectors else zeros
        found = look(_share(checkpoint.weights, part, of), budget=budget, zeros=zeros, chunk=chunk)
        fingerprint = _fingerprint(checkpoint.weights)
    result = {
        "format": FORMAT,
        "path": str(Path(path).resolve()),
        "checkpoint": fingerprint,
        "part": part,
        "of": of,
        **{key: getattr(budget, key) for key in OF_SAP},
        "layers": [_layer_to_json(layer) for layer in found.layers],
        "rest": _rest_to_json(found.rest),
        "left_out": [asdict(tensor) for tensor in checkpoint.left_out],
    }
    return result | {"sha256": _digest(result)}


def _digest(part: Mapping[str, Any]) -> str:
    """Digest of all values of a part but itself."""
    with suppress(TypeError, ValueError, RecursionError):
        return hashlib.sha256(json.dumps({**part, "sha256": ""}, sort_keys=True).encode()).hexdigest()
    return ""


def merge_parts(parts: Sequence[Mapping[str, Any] | str | Path], *, memory: int = MEMORY) -> Compressibility:
    """Merge measured parts into a report equal to that of `palmette.how_compressible`.

    Weights of more than 16 bits are read a second time, to count what each layer loses in scope "global".
    `measure_part` has an example.

    Args:
        parts: results of `measure_part`, or files that hold them, in any order.
        memory: as for `palmette.how_compressible`.
    """
    found = sorted(map(_opened, parts), key=lambda part: part["part"])
    _check_complete(found)
    try:
        return _merged(found, memory)
    except (ValueError, OSError):
        raise
    except Exception as error:  # what another program wrote can break anything
        raise ValueError("the parts are damaged; measure them again") from error


def _merged(found: Sequence[Mapping[str, Any]], memory: int) -> Compressibility:
    first, path = found[0], Path(str(found[0].get("path")))
    findings = [_findings(part) for part in found]
    left_out, budget = _settings(first)
    layers = [layer for part in findings for layer in part.layers]
    if all(layer.counts is not None for layer in layers):  # the weights are not read again
        weights = [unreadable(layer.name, (), 0, "is known") for layer in layers]
    else:
        weights = _weights(path, [layer.name for layer in layers], first.get("checkpoint"))
    with within(memory) as chunk, readable(path):
        return conclude(findings, weights, budget=budget, left_out=left_out, title=path.name, chunk=chunk)


def _check_complete(parts: Sequence[Mapping[str, Any]]) -> None:
    """Refuse parts of different checkpoints or settings, and missing or repeated parts."""
    if not parts:
        raise ValueError("parts must hold all parts of a measurement, got none")
    first, many, numbers = parts[0], parts[0]["of"], [part["part"] for part in parts]
    for part in parts:
        if part.get("checkpoint") != first.get("checkpoint"):
            raise ValueError(
                f"part {part['part']} is of other weights than part {first['part']}; measure both again"
            )
        for key in ("of", *OF_SAP):
            if part.get(key) != first.get(key):
                got = f"{first.get(key)!r} of part {first['part']} and {part.get(key)!r} of part {part['part']}"
                raise ValueError(f"parts of one measurement agree in {key!r}, got {got}")
    if len(set(numbers)) < many:
        missing = next(n for n in range(1, many + 1) if n not in numbers)
        raise ValueError(f"part {missing} of {many} is missing; there are {', '.join(map(str, numbers))}")
    if twice := [n for n in numbers if numbers.count(n) > 1]:
        raise ValueError(f"part {twice[0]} of {many} was given twice")


def _opened(part: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    found: Any = part
    if not isinstance(part, Mapping):
        if not Path(part).is_file():
            raise FileNotFoundError(f"no file at {str(part)!r}")
        try:
            found = json.loads(Path(part).read_bytes())
        except (ValueError, RecursionError):
            found = None
    what = "the part" if isinstance(part, Mapping) else repr(str(part))
    if not (isinstance(found, Mapping) and found.get("format") == FORMAT):
        raise ValueError(
            f"{what} is not a part of a measurement, as this version of `palmette measure --part` writes"
        )
    numbers = found.get("part"), found.get("of")
    if found.get("sha256") != _digest(found) or not all(type(n) is int and 0 < n < 10**6 for n in numbers):
        raise ValueError(f"{what} is damaged; measure it again")
    return found


def _findings(part: Mapping[str, Any]) -> Findings:
    with _undamaged(part):
        return Findings(tuple(map(_layer_from_json, part["layers"])), _rest_from_json(part["rest"]))


def _settings(part: Mapping[str, Any]) -> tuple[list[LeftOut], Sap]:
    with _undamaged(part):
        left_out = [
            LeftOut(str(one["name"]), tuple(map(_count, one["shape"])), str(one["why"]), _count(one["bytes"]))
            for one in part["left_out"]
        ]
        return left_out, Sap(**{key: part[key] for key in OF_SAP})


@contextmanager
def _undamaged(part: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # what another program wrote can break anything
        raise ValueError(f"part {part['part']} of {part['of']} is damaged; measure it again") from error


def _share(weights: Sequence[StoredWeight], part: int, of: int) -> list[StoredWeight]:
    """Weights whose middle entry lies in this part of all entries."""
    total, before, chosen = sum(w.entries for w in weights), 0, []
    for weight in weights:
        if (2 * before + weight.entries) * of // (2 * total) == part - 1:
            chosen.append(weight)
        before += weight.entries
    return chosen


def _fingerprint(weights: Sequence[StoredWeight]) -> str:
    """Hash of names, shapes, dtypes and first rows, equal for all parts of a checkpoint."""
    found = hashlib.sha256()
    for w in weights:
        found.update(repr((w.name, w.shape, str(w.dtype), w.transposed, w.coding)).encode())
        for read in (w.read, w.kept):
            row = torch.empty(0) if read is None else read(0, 1)
            found.update(row.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _weights(path: Path, names: Sequence[str], fingerprint: object) -> list[StoredWeight]:
    """The measured weights, opened again."""
    if not path.exists():
        raise FileNotFoundError(
            f"{str(path)!r} is missing; merging reads weights of more than 16 bits once more, for scope global"
        )
    by_name = {w.name: w for w in open_checkpoint(path, include=["*"]).weights}
    found = [by_name[name] for name in names if name in by_name]
    if _fingerprint(found) != fingerprint:
        raise ValueError(f"{str(path)!r} has changed since the parts were measured")
    return found


def _count(value: Any) -> int:
    if not (type(value) is int and 0 <= value < 1 << 63):
        raise ValueError("a count is no whole number")
    return value


def _layer_to_json(layer: Layer) -> dict[str, Any]:
    sums = layer.sums
    return {
        **{key: getattr(layer, key) for key in _PLAIN},
        "shape": list(layer.shape),
        "sums": [float(x) for x in (sums.d, sums.scale, sums.p_sum, sums.q_sum)],
        "powers": [sums.p, sums.q],
        "counts": None if layer.counts is None else _counts_to_json(layer.counts),
    }


def _layer_from_json(plain: Mapping[str, Any]) -> Layer:
    d, scale, p_sum, q_sum = (torch.tensor([x], dtype=torch.float64) for x in plain["sums"])
    measures = plain["measures"]
    counts = *plain["shape"], *plain["cuts"].values(), *(plain[key] for key in ("neurons", "bytes", "dead"))
    for count in (*counts, *(measures[key] for key in ("d", "zeros", "levels"))):
        _count(count)
    if not all(x is None or math.isfinite(x) for x in measures.values()):
        raise ValueError("a measure is no number")
    return Layer(
        **{key: plain[key] for key in _PLAIN},
        shape=tuple(plain["shape"]),
        sums=PowerSums(d.to(torch.int64), scale, p_sum, q_sum, *plain["powers"]),
        counts=None if plain["counts"] is None else _counts_from_json(plain["counts"]),
    )


def _counts_to_json(counts: Counts) -> dict[str, list[str]]:
    names = {dtype: name for name, dtype in _NARROW.items()}
    return {names[dtype]: [_coded(used), _coded(times)] for dtype, (used, times) in counts.items()}


def _counts_from_json(plain: Mapping[str, Sequence[str]]) -> Counts:
    return {_NARROW[name]: (_decoded(used, "<u2"), _decoded(n, "<i8")) for name, (used, n) in plain.items()}


def _rest_to_json(spectrum: Spectrum) -> dict[str, Any]:
    few, buckets = spectrum.wide()
    return {
        "zeros": spectrum.zeros - sum(int(n[used == 0].sum()) for used, n in spectrum.counts().values()),
        "narrow": _counts_to_json(spectrum.counts()),
        "few": {str(x.dtype): _coded(x) for x in few},
        "buckets": {str(bits): list(map(_coded, arrays)) for bits, arrays in buckets.items()},
    }


def _rest_from_json(plain: Mapping[str, Any]) -> Spectrum:
    few = [_decoded(coded, {"float32": "<f4", "float64": "<f8"}[name]) for name, coded in plain["few"].items()]
    types = ("<i4", "<i8", "<f8")
    buckets = {
        {"31": 31, "63": 63}[bits]: tuple(_decoded(coded, kind) for coded, kind in zip(arrays, types, strict=True))
        for bits, arrays in plain["buckets"].items()
    }
    found = Spectrum.of_wide(few, buckets, zeros=_count(plain["zeros"]))
    found.add_counts(_counts_from_json(plain["narrow"]))
    return found


def _coded(array: np.ndarray[Any, Any]) -> str:
    """Little-endian numbers, compressed by zlib, in base64."""
    little = array.astype(array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes())).decode()


def _decoded(text: str, kind: str) -> np.ndarray[Any, Any]:
    most = _MOST * np.dtype(kind).itemsize
    content = zlib.decompressobj().decompress(base64.b64decode(text), most + 1)
    if len(content) > most:
        raise ValueError(f"an array of a spectrum has at most {_MOST:,} numbers")
    array = np.frombuffer(content, kind)
    return array.astype(array.dtype.newbyteorder("="))
