"""`palmette measure`: how compressible are the weights in a file?"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.checkpoints.compressibility import Compressibility, Measurement
from palmette.checkpoints.verdict import scope_of_numbers
from palmette.cli.display.printing import (
    JSON,
    console_of_stdout,
    fitted,
    plain_table,
    print_text,
    printable,
    width_of,
)
from palmette.cli.options import FILE, parameter_options
from palmette.files import write_whole
from palmette.pruning.budgets import Sap
from palmette.pruning.methods import SCOPES, Zeros
from palmette.words import measured, size

if TYPE_CHECKING:
    from rich.console import Console


EXAMPLE = Path(__file__).parent.parent / "examples" / "digits-mlp.safetensors"
MOST_LINES = 1000
"""Layers in a printed table; laying out more takes longer than measuring them."""
_FIRST_TO_GO = (("tail",), ("size", "after"), ("Hoyer",), ("Gini",))  # columns, to make room for long names


def pattern_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options for which tensors of a file are weights, and what their zeros are."""
    for name, text in (
        ("--exclude", "Leave out tensors with these names."),
        ("--include", "Take only tensors with these names, such as 'encoder.*.weight', whatever their shape."),
    ):
        command = click.option(name, multiple=True, metavar="PATTERN", help=text)(command)
    return click.option(
        "--zeros",
        type=click.Choice(["pruned", "count"]),
        default="pruned",
        show_default=True,
        help="Take zeros as pruned before, where they are over 1% of a weight, or count them.",
    )(command)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH")
@parameter_options(*(f.name for f in Sap.parameters()))
@pattern_options
@JSON
@click.option("--csv", "as_csv", is_flag=True, help="Print one line per layer and one for the whole as CSV.")
@click.option("--html", metavar="FILE", type=FILE, help="Write the report as one HTML file.")
@click.option(
    "--memory",
    default="1GB",
    show_default=True,
    metavar="SIZE",
    help="Memory limit, such as 800MB or 2GB; one row of a weight must fit.",
)
@click.option("--part", metavar="K/N", help="Measure part K of N only; needs -o.")
@click.option(
    "-o",
    "--out",
    metavar="FILE.json",
    type=FILE,
    help="Result of --part; `palmette measure` of all parts merges them.",
)
def measure(
    paths: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    zeros: Zeros,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    memory: str,
    part: str | None,
    out: Path | None,
    **parameters: float | None,
) -> None:
    """Measure how compressible the weights in PATH are.

    PATH is a checkpoint (.safetensors, .pt, .pth, .th, .bin, .ckpt, .onnx, .gguf, an index of shards or a folder
    of Transformers), plain numbers (.npy, .npz), or hf://org/model[/file][@revision] for safetensors on the
    Hugging Face Hub. The code of the model is not needed. `example` is a small bundled network. Files are read in
    parts and may be larger than memory.

    \b
      palmette measure example
      palmette measure model.safetensors --exclude 'lm_head*'
      palmette measure folder --html report.html
      palmette measure hf://org/model

    Several processes can measure parts of a checkpoint, which are then merged:

    \b
      palmette measure folder --part 1/2 -o part1.json
      palmette measure folder --part 2/2 -o part2.json
      palmette measure part1.json part2.json
    """
    from palmette.checkpoints.hub import address, is_address
    from palmette.checkpoints.parts import measure_part, merge_parts
    from palmette.checkpoints.report import how_compressible

    if as_json and as_csv:
        raise ValueError("give --json or --csv, not both")
    budget = Sap(**{name: value for name, value in parameters.items() if value is not None})
    file, *others = (EXAMPLE if path == "example" else Path(path) for path in paths)
    settings: Any = {"budget": budget, "include": include or None, "exclude": exclude, "zeros": zeros}
    settings["memory"] = _bytes(memory)
    if (part is None) != (out is None):
        raise ValueError("--part K/N and -o FILE.json go together: the part to measure and the file to write")
    if out is not None and (out.suffix != ".json" or out.name.endswith(".index.json")):
        raise ValueError(f"-o must name a .json file, to be recognised as a part later, got {str(out)!r}")
    if all(f.suffix == ".json" and not f.name.endswith(".index.json") for f in (file, *others)):
        for name, value in {**parameters, "include": include, "exclude": exclude, "part": part}.items():
            if value not in (None, ()):
                raise ValueError(f"parts are already measured: leave out --{name}")
        report = merge_parts([file, *others], memory=_bytes(memory))
    elif others:
        raise ValueError(f"PATH must be one checkpoint, or all parts of one (.json), got {len(paths)} paths")
    elif part is not None and out is not None:
        if as_json or as_csv or html is not None:
            raise ValueError("--part writes only -o FILE.json: give --json, --csv or --html when merging parts")
        content = json.dumps(measure_part(file, *_fraction(part), **settings), allow_nan=False).encode()
        write_whole(out, content)
        click.echo(f"{out}: part {part} of {file.absolute().name}, {size(len(content))}")
        return
    else:
        report = how_compressible(file, **settings)
    if html is not None:
        from palmette.reports.html.checkpoint_page import page, parts

        content = page(report).encode()
        write_whole(html, content)
    if as_json:
        place = address(file) if is_address(file) else str(file)
        click.echo(json.dumps({"path": place} | report.to_dict(), indent=1, allow_nan=False))
    elif as_csv:
        click.echo(_csv(report), nl=False)
    elif html is not None:
        click.echo(f"{html}: {parts(report)}, {size(len(content))}")
    else:
        _show(report)


def _bytes(text: str) -> int:
    """Parse a size.

    >>> _bytes("1GB"), _bytes("0.5 gb"), _bytes("800MB"), _bytes("2GiB")
    (1000000000, 500000000, 800000000, 2147483648)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG])(i?)B?", text.strip(), re.I)
    if found is None:
        raise ValueError(f"--memory must be a size in MB, GB, MiB or GiB, such as 800MB or 2GB, got {text!r}")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** {"M": 2, "G": 3}[found[2].upper()])


def _fraction(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None:
        raise ValueError(f"--part must be a part of all, such as 2/4, got {text!r}")
    return int(found[1]), int(found[2])


def _csv(report: Compressibility) -> str:
    rows, text = [_flat(m) for m in (*report.layers, report.whole)], io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(measurement: Measurement) -> dict[str, Any]:
    """Measurement without nesting: `sap_cut_neuron` and so on."""
    row: dict[str, Any] = {}
    for key, value in vars(measurement).items():
        if isinstance(value, dict):
            row |= {f"{key}_{scope}": v for scope, v in value.items()}
        else:
            row[key] = "x".join(map(str, value)) if isinstance(value, tuple) else value
    return row


def _show(report: Compressibility) -> None:
    console = console_of_stdout()
    numbers = report.plain_numbers
    head = f"{report.title}, PQ Index at p={report.budget.p:g}, q={report.budget.q:g}"
    head += "" if numbers else "; SAP's next cut in three scopes"
    shown = (*report.layers[:MOST_LINES], *([report.whole] if len(report.layers) > 1 else []))
    ending = ".weight" if all(m.name.endswith(".weight") for m in report.layers) else ""
    names = [m.name.removesuffix(ending) for m in shown]
    print_text(console, printable(head))
    print_table(console, names, _columns(shown, numbers), gap=2 if console.width >= 100 else 1)
    if (count := len(report.layers)) > MOST_LINES:
        text = (
            f"The first {MOST_LINES:,} of {count:,} layers, and the total of all; --csv and --json list them all."
        )
        print_text(console, text)
    for text in (*report.verdict, *_sizes(report), *(f"Mind: {text}" for text in report.warnings)):
        print_text(console, printable(text))


def print_table(console: Console, names: Sequence[str], columns: dict[str, list[str]], *, gap: int = 2) -> None:
    """Print one row per name and an empty line; long names wrap after columns of `_FIRST_TO_GO` are left out.

    The last of several rows is the total, in bold.
    """
    names = [printable(name) for name in names]
    shown = fitted(columns, console.width - max(map(len, names)), _FIRST_TO_GO, gap)
    width = console.width - width_of(shown, gap)
    table = plain_table("", *shown, words=("",), gap=gap)
    for i, cells in enumerate(zip(names, *shown.values(), strict=True)):
        style = "bold" if 0 < i == len(names) - 1 else ""
        table.add_row(_broken(cells[0], width), *cells[1:], style=style)
    console.print(table)
    console.print()


def _broken(name: str, width: int) -> str:
    """Break a name into lines of at most `width`, after dots where possible."""
    lines = [""]
    for part in name.replace(".", ".\n").split("\n"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _columns(rows: Sequence[Measurement], numbers: bool) -> dict[str, list[str]]:
    """Cells by heading; plain numbers have no scopes and no neurons."""
    columns = {
        "numbers" if numbers else "weights": [f"{m.d:,}" if m.d < 10**8 else f"{m.d / 1e6:,.0f}M" for m in rows],
        "PQ Index": [measured(m.pq_index) for m in rows],
        "Gini": [measured(m.gini_index) for m in rows],
        "Hoyer": [measured(m.hoyer) for m in rows],
    }
    tail = {"tail": [measured(m.tail_mass) for m in rows]}
    if numbers:
        return columns | {"SAP cuts": [f"{m.share_cut(scope_of_numbers(m)):.1%}" for m in rows]} | tail
    columns |= {scope: [f"{m.share_cut(scope):.1%}" for m in rows] for scope in SCOPES}
    columns |= {"dead": [f"{m.dead_neurons:,}" for m in rows]} | tail
    after = [size(m.bytes_after["neuron"]) for m in rows]
    return columns | {"size": [size(m.bytes) for m in rows], "after": after}


def _sizes(report: Compressibility) -> list[str]:
    if report.plain_numbers:
        columns = [f"{column.name} ({column.why})" for column in report.left_out]
        return [f"Left out: {', '.join(columns[:4])}{', …' if len(columns) > 4 else ''}."] if columns else []
    sentences = []
    if report.left_out:
        sentences.append(report.coverage)
    whole, after = report.whole, sorted(report.whole.bytes_after.values())
    smaller = " to ".join(dict.fromkeys((size(after[0]), size(after[-1]))))
    if after[-1] < whole.bytes:
        sentences.append(f"Size: {size(whole.bytes)}, after the cut {smaller} with zeros packed.")
    return sentences
