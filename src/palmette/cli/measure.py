"""`palmette measure`: how compressible are these weights?"""

from __future__ import annotations

import json
import math
import re
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.pruning.budgets import Sap

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits-mlp.safetensors"
_SUFFIXES = (".safetensors", ".pt", ".pth", ".th", ".bin", ".npy", ".csv")


@click.command()
@click.argument("path")
@click.option("--p", default=0.5, show_default=True, help="The smaller norm of the index, 0 < p <= 1.")
@click.option("--q", default=1.0, show_default=True, help="The larger norm of the index, q >= 1.")
@click.option("--json", "as_json", is_flag=True, help="Print numbers for a program.")
def measure(path: str, p: float, q: float, as_json: bool) -> None:
    """How compressible are the weights in PATH?

    PATH is a .safetensors, .pt, .pth, .th, .bin, .npy or .csv file; `example` is a small network that comes along.
    Every floating-point tensor of two or more dimensions is a layer; a file of plain numbers is one vector.
    """
    from palmette.pruning.budgets import Sap

    budget = Sap(p=p, q=q)
    file = EXAMPLE if path == "example" else Path(path)
    rows = _measured(_read(file), budget)
    if as_json:
        data = {"path": str(file), "p": p, "q": q, "tensors": rows}
        click.echo(json.dumps(data, indent=1, allow_nan=False))
    else:
        _show(f"{file.name}, PQ Index at p={p:g}, q={q:g}", rows)


def _read(file: Path) -> list[tuple[str, Tensor]]:
    """The layers of a file by name, each as one row of finite numbers."""
    from palmette.errors import NotFinite
    from palmette.measures.rows import Rows, as_tensor

    if file.is_dir():
        raise IsADirectoryError(f"{str(file)!r} is a directory; name one file in it")
    if not file.is_file():
        raise FileNotFoundError(f"no file at {str(file)!r}; `palmette measure example` shows what comes out")
    if file.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"palmette reads {', '.join(_SUFFIXES)}, got {str(file)!r}")
    if file.stat().st_size == 0:
        raise ValueError(f"{str(file)!r} is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters is said below, with the name of the file
            found = [(name, as_tensor(values, repr(name))) for name, values in _layers(file)]
            rows = [(name, t.reshape(1, -1)) for name, t in found if t.numel()]
            largest = [float(Rows.of(row).largest()) for _, row in rows]
    except Exception as error:  # a broken file can break its reader anywhere
        raise ValueError(f"{str(file)!r} could not be read: {_why(error, file.suffix)}") from error
    if not rows:
        what = "numbers" if found else "floating-point tensor of two or more dimensions by name"
        raise ValueError(f"{str(file)!r} holds no {what}")
    for (name, _), top in zip(rows, largest, strict=True):
        if not math.isfinite(top):
            raise NotFinite(f"{str(file)!r} has NaN or infinite numbers in {name!r}")
    return rows


def _layers(file: Path) -> list[tuple[str, Any]]:
    """What is to be measured: the layers of a checkpoint, or all numbers of a file of numbers."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    suffix = file.suffix.lower()
    if suffix == ".npy":
        with file.open("rb") as handle:
            return [(file.name, np.lib.format.read_array(handle, allow_pickle=False))]
    if suffix == ".csv":
        return [(file.name, np.loadtxt(file, delimiter=",", ndmin=1, encoding="utf-8-sig"))]
    if suffix == ".safetensors":
        found: Any = load_file(file)
    else:
        found = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(found, torch.Tensor):
        return [(file.name, found)]
    for key in ("state_dict", "model", "module"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict):
        raise TypeError(f"it holds a {type(found).__name__}, not weights by name")
    tensors = [(str(name), t) for name, t in found.items() if isinstance(t, torch.Tensor)]
    return [(name, t) for name, t in tensors if t.is_floating_point() and t.dim() >= 2]


def _why(error: Exception, suffix: str) -> str:
    """What a reader raised, as the end of a sentence."""
    from safetensors import SafetensorError

    if pickled := re.search(r"Unsupported global: GLOBAL (\S+)", str(error)):
        return f"it needs {pickled[1]}, and only tensors are loaded; save model.state_dict() in its place"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Torch goes on for paragraphs; a KeyError or a struct.error says nothing to a person.
    first = re.split(r"\n|; |(?<=\S)\. ", str(error).strip())[0].rstrip(".")
    if first and isinstance(error, ValueError | TypeError | RuntimeError | MemoryError | SafetensorError):
        return first
    return f"its contents are not weights in the {suffix} format"


def _measured(layers: list[tuple[str, Tensor]], budget: Sap) -> list[dict[str, Any]]:
    from palmette.measures.gini import gini_of_rows
    from palmette.measures.rows import Rows

    units = [(name, Rows.of(row)) for name, row in layers]
    if len(units) > 1:
        units.append(("all together", Rows(tuple(row for _, row in layers), (None,) * len(layers))))
    measured = []
    for name, rows in units:
        plan = budget.plan(rows)
        real = {"pq_index": plan.index, "gini_index": gini_of_rows(rows), "retained_lower_bound": plan.retained}
        measured.append(
            {"name": name, "entries": int(plan.sums.d[0])}
            | {key: float(value) if bool(value.isfinite()) else None for key, value in real.items()}
            | {"sap_cut": int(plan.cut[0])}
        )
    return measured


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)

    def printable(name: str) -> str:
        return repr(name)[1:-1].encode(console.encoding, "backslashreplace").decode(console.encoding)

    def index(value: float | None) -> str:
        return "none" if value is None else f"{value:.4f}"

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for heading in ("entries", "PQ Index", "Gini", "SAP cuts", "of it"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        d, cut, indices = row["entries"], row["sap_cut"], (index(row["pq_index"]), index(row["gini_index"]))
        table.add_row(printable(row["name"]), f"{d:,}", *indices, f"{cut:,}", f"{cut / d:.1%}")
    console.print(printable(title), soft_wrap=True)
    console.print(table)
    last = rows[-1]
    said = "Zeros alone have no index, and SAP cuts none of them."
    if last["pq_index"] is not None:
        share = f"{last['sap_cut'] / last['entries']:.0%} of these {last['entries']:,} numbers"
        said = f"SAP would cut {share} in its next step; then retrain, and measure again. "
        said += "The bound says how many may go at most, not how many must."
    console.print("\n" + textwrap.fill(said, console.width), soft_wrap=True)
