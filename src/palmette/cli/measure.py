"""`palmette measure`: how compressible are these weights?"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.live import size

if TYPE_CHECKING:
    from rich.console import Console

    from palmette.pruning.compressible import Compressibility, Measurement

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits-mlp.safetensors"
_NARROW = 100  # columns; below, the table leaves out what else there is


def sap_options(command: Callable[..., None]) -> Callable[..., None]:
    """The settings of SAP, and which tensors of a file are weights: for all commands that read one."""
    options = (
        click.option("--p", default=0.5, show_default=True, help="The smaller norm of the index, 0 < p <= 1."),
        click.option("--q", default=1.0, show_default=True, help="The larger norm of the index, q >= 1."),
        click.option("--eta", default=0.0, show_default=True, help="Slack of SAP's bound: larger cuts more."),
        click.option("--gamma", default=1.0, show_default=True, help="Factor on what SAP cuts."),
        click.option("--beta", default=0.9, show_default=True, help="The largest fraction that SAP cuts."),
        click.option(
            "--include",
            multiple=True,
            metavar="PATTERN",
            help="Take the tensors of these names, as 'encoder.*.weight', whatever they look like.",
        ),
        click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out the tensors of these names."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("path")
@sap_options
@click.option("--json", "as_json", is_flag=True, help="Print all of it for a program.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print a line of figures for each layer, and one for the whole."
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page with all of it, which opens from disk and needs no network.",
)
def measure(
    path: str,
    p: float,
    q: float,
    eta: float,
    gamma: float,
    beta: float,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    html: Path | None,
) -> None:
    """How compressible are the weights in PATH?

    PATH is a checkpoint, whose model's code is not needed: .safetensors, .pt, .pth, .th, .bin, .ckpt, .onnx,
    .gguf, an index of shards or a folder of Transformers. Or plain numbers: .npy, .npz, .csv. `example` is a small
    network that comes along. Files are read in parts, and may be larger than memory.

    \b
      palmette measure example
      palmette measure model.safetensors --exclude 'lm_head*'
      palmette measure folder --html report.html
    """
    from palmette.integrations.compressible import how_compressible
    from palmette.pruning.budgets import Sap

    if as_json and as_csv:
        raise ValueError("--json and --csv both print; give one of them")
    budget = Sap(p=p, q=q, eta=eta, gamma=gamma, beta=beta)
    file = EXAMPLE if path == "example" else Path(path)
    report = how_compressible(file, budget=budget, include=include or None, exclude=exclude)
    if html is not None:
        from palmette.reports.compressible_page import page
        from palmette.studies.rundir import write_whole

        content = page(report).encode()
        write_whole(html, content)
    if as_json:
        click.echo(json.dumps({"path": str(file)} | report.to_dict(), indent=1, allow_nan=False))
    elif as_csv:
        click.echo(_csv(report), nl=False)
    elif html is not None:
        click.echo(f"{html}: {len(report.layers)} layers, {size(len(content))}")
    else:
        _show(report)


def _csv(report: Compressibility) -> str:
    rows = [_flat(m) for m in (*report.layers, report.whole)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(measurement: Measurement) -> dict[str, Any]:
    """One level of plain values: `sap_cut_neuron` and so on."""
    row: dict[str, Any] = {}
    for key, value in vars(measurement).items():
        if isinstance(value, dict):
            row |= {f"{key}_{scope}": v for scope, v in value.items()}
        else:
            row[key] = "x".join(map(str, value)) if isinstance(value, tuple) else value
    return row


def _show(report: Compressibility) -> None:
    from rich.console import Console
    from rich.table import Table

    from palmette.pruning.verdict import plain_numbers

    console = Console(highlight=False, markup=False, emoji=False)
    budget = report.budget
    numbers = plain_numbers(report.layers)
    head = f"{report.title}, PQ Index at p={budget.p:g}, q={budget.q:g}"
    head += "" if numbers else "; SAP's next cut in three scopes"
    console.print(printable(head, console), soft_wrap=True)
    wide = console.width >= _NARROW
    gap = 2 if wide else 1
    rows = [
        (m, _cells(m, wide, numbers))
        for m in (*report.layers, *([report.whole] if len(report.layers) > 1 else []))
    ]
    headings = ["weights", "PQ Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead"]
    headings += ["tail", "size", "after"] if wide else []
    if numbers:
        headings = ["numbers", "PQ Index", "Gini", "Hoyer", "SAP cuts", "tail"]
    taken = sum(
        gap + max(map(len, column)) for column in zip(headings, *(cells for _, cells in rows), strict=True)
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    table.add_column("", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    ending = ".weight" if all(m.name.endswith(".weight") for m in report.layers) else ""
    for m, cells in rows:
        name = printable(m.name.removesuffix(ending), console)
        table.add_row(broken(name, console.width - taken), *cells, style="bold" if m is report.whole else "")
    console.print(table)
    console.print()
    for text in (*report.verdict, *_sizes(report), *(f"Mind: {text}" for text in report.warnings)):
        console.print(textwrap.fill(printable(text, console), min(console.width, 100)), soft_wrap=True)


def broken(name: str, width: int) -> str:
    """A name in lines of at most `width`, broken at its dots where that can be."""
    lines = [""]
    for part in name.replace(".", ".\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _cells(m: Measurement, wide: bool, numbers: bool) -> list[str]:
    cells = [f"{m.d:,}" if m.d < 10**8 else f"{m.d / 1e6:,.0f}M"]
    cells += ["none" if x is None else f"{x:.4f}" for x in (m.pq_index, m.gini_index, m.hoyer)]
    tail = "none" if m.tail_mass is None else f"{m.tail_mass:.4f}"
    if numbers:
        return [*cells, f"{m.share_cut('layer'):.1%}", tail]
    cells += [f"{m.share_cut(scope):.1%}" for scope in ("neuron", "layer", "global")]
    cells.append(f"{m.dead_neurons:,}")
    if wide:
        cells += [tail, size(m.bytes), size(m.bytes_after["neuron"])]
    return cells


def _sizes(report: Compressibility) -> list[str]:
    from palmette.pruning.verdict import plain_numbers

    whole = report.whole
    said = []
    if report.left_out:
        kinds: dict[str, int] = {}
        for tensor in report.left_out:
            kinds[tensor.why] = kinds.get(tensor.why, 0) + 1
        parts = ", ".join(f"{n} × {why}" for why, n in sorted(kinds.items(), key=lambda item: -item[1])[:4])
        said.append(f"Left out: {len(report.left_out)} tensors ({parts}).")
    if plain_numbers(report.layers):
        return said
    after = sorted(whole.bytes_after.values())
    smaller = size(after[0]) if size(after[0]) == size(after[-1]) else f"{size(after[0])} to {size(after[-1])}"
    if after[-1] < whole.bytes:
        said.append(f"Size: {size(whole.bytes)}, after that step {smaller} with zeros packed away.")
    return said


def printable(text: str, console: Console) -> str:
    """Text with escapes for what cannot be shown."""
    return repr(text)[1:-1].encode(console.encoding, "backslashreplace").decode(console.encoding)
