"""`palmette measure`: how compressible are these weights?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits-mlp.safetensors"


@click.command()
@click.argument("path")
@click.option("--p", default=0.5, show_default=True, help="The smaller norm of the index, 0 < p ≤ 1.")
@click.option("--q", default=1.0, show_default=True, help="The larger norm of the index, q ≥ 1.")
@click.option("--json", "as_json", is_flag=True, help="Print numbers for a program.")
def measure(path: str, p: float, q: float, as_json: bool) -> None:
    """How compressible are the weights in PATH?

    PATH is a .safetensors, .pt, .pth, .th, .bin, .npy or .csv file; `example` is a small network that comes along.
    Every tensor of two or more dimensions is a layer; a file of plain numbers is one vector.
    """
    file = EXAMPLE if path == "example" else Path(path)
    rows = _measured(_read(file), p, q)
    if as_json:
        click.echo(json.dumps({"path": str(file), "p": p, "q": q, "tensors": rows}, indent=1))
    else:
        _show(file, rows, p, q)


def _read(file: Path) -> dict[str, Tensor]:
    import numpy as np
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not file.is_file():
        raise FileNotFoundError(f"no file at {str(file)!r}; `palmette measure example` shows what comes out")
    suffix = file.suffix.lower()
    try:
        if suffix == ".safetensors":
            found: Any = load_file(file)
        elif suffix in (".pt", ".pth", ".th", ".bin"):
            found = torch.load(file, map_location="cpu", weights_only=True)
        elif suffix == ".npy":
            return {file.name: torch.from_numpy(np.load(file))}
        elif suffix == ".csv":
            return {file.name: torch.from_numpy(np.loadtxt(file, delimiter=",", ndmin=1))}
        else:
            raise ValueError(f"palmette reads .safetensors, .pt, .pth, .th, .bin, .npy, .csv, got {str(file)!r}")
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{str(file)!r} could not be read: {error}") from error
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict):
        raise ValueError(f"{str(file)!r} holds a {type(found).__name__}, not weights by name")
    layers = {n: t for n, t in found.items() if isinstance(t, torch.Tensor) and t.dim() >= 2}
    if not layers:
        raise ValueError(f"{str(file)!r} holds no tensor of two or more dimensions by name")
    return layers


def _measured(layers: dict[str, Tensor], p: float, q: float) -> list[dict[str, Any]]:
    from palmette.measures.gini import gini_of_rows
    from palmette.measures.rows import Rows
    from palmette.pruning.budgets import Sap

    whole = {n: t.reshape(1, -1) for n, t in layers.items()}
    units = {n: Rows.of(t) for n, t in whole.items()}
    if len(units) > 1:
        units["all together"] = Rows(tuple(whole.values()), (None,) * len(whole))
    measured = []
    for name, rows in units.items():
        plan = Sap(p=p, q=q).plan(rows)
        measured.append(
            {
                "name": name,
                "entries": int(plan.sums.d[0]),
                "pq_index": float(plan.index[0]),
                "gini_index": float(gini_of_rows(rows)[0]),
                "retained_lower_bound": float(plan.retained[0]),
                "sap_cut": int(plan.cut[0]),
            }
        )
    return measured


def _show(file: Path, rows: list[dict[str, Any]], p: float, q: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, title_justify="left", title=f"{file.name}, PQ Index at p={p:g}, q={q:g}"
    )
    table.add_column("")
    for title in ("entries", "PQ Index", "Gini", "SAP cuts", "of it"):
        table.add_column(title, justify="right")
    for row in rows:
        if row is rows[-1] and len(rows) > 1:
            table.add_section()
        share = row["sap_cut"] / row["entries"] if row["entries"] else 0.0
        table.add_row(
            row["name"],
            f"{row['entries']:,}",
            f"{row['pq_index']:.4f}",
            f"{row['gini_index']:.4f}",
            f"{row['sap_cut']:,}",
            f"{share:.1%}",
        )
    console = Console()
    console.print(table)
    last = rows[-1]
    share = last["sap_cut"] / last["entries"] if last["entries"] else 0.0
    console.print(
        f"\nSAP would cut {share:.0%} of these {last['entries']:,} numbers in its next step; then retrain, and "
        "measure again. The bound says how many may go at most, not how many must.",
        soft_wrap=False,
    )
