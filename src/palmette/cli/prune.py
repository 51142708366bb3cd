"""`palmette prune`: cut a checkpoint once, and write what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.measure import EXAMPLE, broken, pattern_options, printable
from palmette.cli.options import parameter_options
from palmette.pruning.methods import METHODS
from palmette.reports.words import size
from palmette.studies.spec import RunSpec

if TYPE_CHECKING:
    from palmette.checkpoints.prune import CheckpointCut
    from palmette.pruning.budgets import Budget
    from palmette.pruning.methods import Scope

# A cut of one file is the first, and the weights in it are the dense ones.
_BY_MAGNITUDE = ("magnitude", "dense-magnitude")


@click.command()
@click.argument("path")
@click.option(
    "-o",
    "--out",
    required=True,
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="The .safetensors file to write; for a folder, a new folder.",
)
@click.option(
    "--scope",
    type=click.Choice(["neuron", "layer", "global"]),
    default="neuron",
    show_default=True,
    help="Where weights compete.",
)
@click.option(
    "--method",
    metavar="NAME",
    help=f"What says how many go: {', '.join(METHODS)}, or your own as module:name. [default: sap]",
)
@click.option(
    "--density",
    type=float,
    metavar="D",
    help="In place of a method: keep this fraction of what is not pruned yet.",
)
@parameter_options()
@pattern_options
@click.option("--pack", is_flag=True, help="Write the small form that `pm.load` and `palmette unpack` read.")
@click.option(
    "--calibrate",
    metavar="TEXT",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Rank by |weight| × norm of its input on these sentences, a line each. For a folder of Transformers.",
)
def prune(
    path: str,
    out: Path,
    scope: Scope,
    method: str | None,
    density: float | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    pack: bool,
    calibrate: Path | None,
    **parameters: float | None,
) -> None:
    """Cut the checkpoint PATH once, and write OUT.

    The smallest weights become zero; the model's code is not needed. OUT is a .safetensors file that loads like
    any other; which weights are pruned stands beside it, in its .masks.safetensors, and the next cut goes on from
    there. Files are read and written in parts, so they may be larger than memory.

    \b
      palmette prune model.safetensors -o small.safetensors --scope global
      palmette prune model.pt -o half.safetensors --density 0.5
      palmette prune folder -o pruned-folder --exclude 'lm_head*'
    """
    from palmette.checkpoints.prune import prune_checkpoint

    given = {name: value for name, value in parameters.items() if value is not None}
    if density is not None and (given or method):
        raise ValueError(f"--density decides in place of a method; leave out --{next(iter(given), 'method')}")
    chosen = _budget(method or "sap", given) if density is None else down_to(density)
    source = EXAMPLE if path == "example" else Path(path)
    patterns = include or None
    if calibrate is not None:
        from palmette.checkpoints.calibration import prune_calibrated

        cut = prune_calibrated(
            source, out, calibrate, scope=scope, budget=chosen, include=patterns, exclude=exclude, pack=pack
        )
    else:
        cut = prune_checkpoint(
            source, out, scope=scope, budget=chosen, include=patterns, exclude=exclude, pack=pack
        )
    _show(f"{source.absolute().name}, scope {scope}, {chosen}", cut)


def _budget(name: str, parameters: Mapping[str, Any]) -> Budget:
    """The budget of a method, which must not need more than the weights in a file."""
    method = RunSpec(method=name, **parameters).pruning
    if method.saliency not in _BY_MAGNITUDE:
        raise ValueError(
            f"--method {name} ranks weights by {method.saliency}, and a file holds magnitudes alone; "
            "--calibrate ranks those of a folder of Transformers by their inputs"
        )
    return method.budget


def down_to(density: float) -> Budget:
    """The share that goes when `density` stays, as a person would take one from the other: 1 - 0.9 is 0.1."""
    from palmette.pruning.budgets import FixedRatio

    if not 0 <= density <= 1:
        raise ValueError(f"--density must be between 0 and 1, got {density:g}")
    return FixedRatio(float(1 - Fraction(str(density))))


def _show(title: str, cut: CheckpointCut) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    rows = [
        (layer.name, f"{layer.entries:,}", f"{layer.density_before:.1%}", f"{layer.density_after:.1%}")
        for layer in (*cut.layers, *([cut.whole] if len(cut.layers) > 1 else []))
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    headings = ("weights", "kept before", "kept now")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    taken = sum(2 + max(map(len, column)) for column in zip(headings, *(row[1:] for row in rows), strict=True))
    for name, *cells in rows:
        bold = "bold" if name == "all" and len(cut.layers) > 1 else ""
        table.add_row(broken(printable(name, console), console.width - taken), *cells, style=bold)
    console.print(printable(title, console), soft_wrap=True)
    console.print(table)
    whole = cut.whole
    gone = whole.before - whole.after
    were = f", {whole.zeros:,} of which were zero already" if whole.zeros else ""
    remain = f"{whole.density_after:.1%} of all {whole.entries:,} remain"
    said = [f"Cut {gone:,} of {whole.before:,} weights{were}; {remain}."]
    if not math.isnan(cut.index_before):
        after = "none" if math.isnan(cut.index_after) else f"{cut.index_after:.4f}"
        said.append(f"PQ Index of the kept: {cut.index_before:.4f} before, {after} now.")
    written = size(cut.weights_file.stat().st_size)
    unpacked = f" as {cut.coding}, which is unpacked" if cut.coding else ""
    said.append(f"{cut.weights_file}: {written}; the tensors took {size(cut.bytes_before)}{unpacked}.")
    if cut.masks is not None:
        said.append(f"{cut.masks}: {size(cut.masks.stat().st_size)}, one bit for each weight.")
        said.append("Zeros are stored like other numbers, so the file is not smaller; --pack leaves them out.")
    console.print()
    for text in said:
        console.print(printable(text, console), soft_wrap=True)
