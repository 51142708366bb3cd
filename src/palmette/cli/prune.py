"""`palmette prune`: cut a checkpoint once and write the rest."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.display.printing import JSON, console_of_stdout, print_text, printable
from palmette.cli.measure import EXAMPLE, pattern_options, print_table
from palmette.cli.options import (
    FILE,
    FORCE,
    PATH,
    device_named,
    parameter_options,
    refuse_existing,
    scope_option,
    see_own_modules,
)
from palmette.pruning.budgets import ALLOCATIONS, Budget, FixedRatio
from palmette.pruning.methods import (
    METHODS,
    REPAIRS,
    Scope,
    Zeros,
    allocated,
    check_used,
    pattern_of,
    usual_budget,
)
from palmette.pruning.targets import target_of
from palmette.studies.spec import RunSpec
from palmette.words import size

if TYPE_CHECKING:
    from palmette.checkpoints.prune import CheckpointCut


_METHODS = [name for name, method in METHODS.items() if not target_of(method.budget)]


@click.command()
@click.argument("path")
@click.option(
    "-o",
    "--out",
    required=True,
    metavar="OUT",
    type=PATH,
    help="Where to write: a .safetensors file or, for a folder, a new folder.",
)
@scope_option("neuron")
@click.option(
    "--method",
    metavar="NAME",
    help=f"How many weights are cut: {', '.join(_METHODS)}, or your own as module:name. [default: sap]",
)
@click.option(
    "--density",
    type=float,
    metavar="D",
    help="Keep this fraction of the weights not pruned yet, instead of a method.",
)
@parameter_options()
@click.option(
    "--saliency",
    metavar="NAME",
    default="",
    help="Score that ranks the weights: magnitude, lamp, or your own as module:function. [default: magnitude]",
)
@pattern_options
@click.option(
    "--allocate",
    metavar="NAME",
    default="",
    help=f"Share the cut between layers, in scope neuron or layer: {', '.join(ALLOCATIONS)}.",
)
@FORCE
@JSON
@click.option("--pack", is_flag=True, help="Write the packed form that `pm.load` and `palmette unpack` read.")
@click.option(
    "--calibrate",
    metavar="TEXT",
    type=FILE,
    help="Rank by |weight| × norm of its input on these sentences, one per line. For a folder of Transformers.",
)
@click.option(
    "--repair",
    type=click.Choice(REPAIRS),
    help="After the cut, update the remaining weights to preserve the outputs of layers on these sentences.",
)
@click.option(
    "--device", metavar="TEXT", help="Where --calibrate runs the model. [default: cuda if there is one, else cpu]"
)
def prune(
    path: str,
    out: Path,
    scope: Scope,
    method: str | None,
    density: float | None,
    saliency: str,
    allocate: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    zeros: Zeros,
    force: bool,
    as_json: bool,
    pack: bool,
    calibrate: Path | None,
    repair: str | None,
    device: str | None,
    **parameters: float | None,
) -> None:
    """Cut the checkpoint PATH once and write OUT.

    The smallest weights become zero; the code of the model is not needed. OUT is a .safetensors file that loads
    like any other. Its masks are written next to it as .masks.safetensors, and the next cut continues from them.
    Files are read and written in parts and may be larger than memory.

    \b
      palmette prune model.safetensors -o small.safetensors --scope global
      palmette prune model.pt -o half.safetensors --density 0.5
      palmette prune model.safetensors -o sparse.safetensors --scope 2:4
      palmette prune folder -o pruned-folder --exclude 'lm_head*'
    """
    from palmette.checkpoints.formats.safetensors import masks_file
    from palmette.checkpoints.prune import prune_checkpoint

    given: dict[str, Any] = {name: value for name, value in parameters.items() if value is not None}
    if density is not None and (given or method):
        raise ValueError(f"--density replaces the method; leave out --{next(iter(given), 'method')}")
    if method in METHODS and method not in _METHODS:
        raise ValueError(
            f"--method {method} needs scores after retraining; a file has none: {', '.join(_METHODS)}"
        )
    source = EXAMPLE if path == "example" else Path(path)
    own = source.resolve() in (out.resolve(), *out.resolve().parents)  # refused even with --force
    if out.suffix and not own:
        refuse_existing(force, out, masks_file(out))
    see_own_modules(method or "", saliency)
    named = RunSpec(method=method or "sap", saliency=saliency, **given).pruning
    repair = repair or named.repair
    check_used(replace(named, repair=""))
    chosen = allocated(named.budget if given or method else budget_to(density, scope, named.budget), allocate)
    settings: Any = {"scope": scope, "budget": chosen, "include": include or None, "exclude": exclude}
    settings |= {"zeros": zeros, "pack": pack}
    if calibrate is None:
        if repair:
            raise ValueError(f"--repair {repair} needs sentences: pass a Transformers folder and --calibrate TEXT")
        if named.of_inputs:
            raise ValueError(
                f"saliency {named.saliency!r} needs inputs: pass a Transformers folder and --calibrate TEXT"
            )
        cut = prune_checkpoint(source, out, saliency=named.saliency, **settings)
    else:
        from palmette.checkpoints.calibration import prune_calibrated

        ranked = "input-weighted" if not saliency and named.saliency == "magnitude" else named.saliency
        if not repair and ranked != "input-weighted":
            raise ValueError(
                f"--calibrate ranks weights by their inputs, and saliency {named.saliency!r} does not; leave out "
                "--calibrate, or that saliency, or add --repair"
            )
        settings |= {"repair": repair, "device": device_named(device)}
        cut = prune_calibrated(source, out, calibrate, saliency=ranked, **settings)
    if as_json:
        click.echo(json.dumps(_plain(cut), indent=1))
    else:
        _show(f"{source.absolute().name}, scope {scope}, {chosen}", cut, repair)


def budget_to(density: float | None, scope: Scope, usual: Budget) -> Budget:
    """Budget that keeps `density`; without one, that of a scope "n:m", and `usual` in others."""
    if density is None:
        return usual if pattern_of(scope) is None else usual_budget(scope)
    return down_to(density)


def down_to(density: float) -> Budget:
    """Budget that keeps `density`, with a decimal difference: 1 - 0.9 is 0.1."""
    if not 0 < density <= 1:
        raise ValueError(f"--density must be a fraction above 0, at most 1, got {density:g}")
    return FixedRatio(float(1 - Fraction(str(density))))


def _plain(cut: CheckpointCut) -> dict[str, Any]:
    indices = {"index_before": cut.index_before, "index_after": cut.index_after}
    return {
        "weights_file": str(cut.weights_file),
        "masks": cut.masks and str(cut.masks),
        "bytes_before": cut.bytes_before,
        "bytes": cut.weights_file.stat().st_size,
        "repaired": cut.repaired,
        **{name: None if math.isnan(value) else value for name, value in indices.items()},
        "layers": [asdict(layer) | {"density": layer.density_after} for layer in (*cut.layers, cut.whole)],
    }


def _show(title: str, cut: CheckpointCut, repair: str) -> None:
    from palmette.pruning.choosing.coverage import shown as in_short

    console = console_of_stdout()
    whole, shown = cut.whole, (*cut.layers, *([cut.whole] if len(cut.layers) > 1 else []))
    columns = {
        "weights": [f"{layer.entries:,}" for layer in shown],
        "kept before": [f"{layer.density_before:.1%}" for layer in shown],
        "kept now": [f"{layer.density_after:.1%}" for layer in shown],
    }
    print_text(console, printable(title))
    print_table(console, [layer.name for layer in shown], columns)
    were = f", {whole.zeros:,} of which were zero already" if whole.zeros else ""
    remain = f"{whole.density_after:.1%} of all {whole.entries:,} remain"
    sentences = [f"Cut {whole.before - whole.after:,} of {whole.before:,} weights{were}; {remain}."]
    if whole.before < whole.entries:
        gone = whole.entries - whole.before
        sentences.append(f"{gone:,} were pruned before, according to a mask or their zeros, and stay pruned.")
    if not math.isnan(cut.index_before):
        after = "none" if math.isnan(cut.index_after) else f"{cut.index_after:.4f}"
        sentences.append(f"PQ Index of the kept weights: {cut.index_before:.4f} before, {after} now.")
    if empty := [layer.name for layer in cut.layers if not layer.after]:
        sentences.append(
            f"No weight is left in {', '.join(empty)}: outputs are constant; exclude it, or cut less."
        )
    if repair:
        left = [layer.name for layer in cut.layers if layer.name not in cut.repaired]
        others = (
            f"; cut but not repaired (not a Linear layer of a block, or unused): {in_short(left)}" if left else ""
        )
        sentences.append(f"Repaired by {repair}: {len(cut.repaired)} of {len(cut.layers)} weights{others}.")
    written = size(cut.weights_file.stat().st_size)
    unpacked = f" as {cut.coding}, which is unpacked" if cut.coding else ""
    sentences.append(f"{cut.weights_file}: {written}; the tensors took {size(cut.bytes_before)}{unpacked}.")
    if cut.masks is not None:
        sentences.append(f"{cut.masks}: {size(cut.masks.stat().st_size)}, one bit per weight.")
        sentences.append("Zeros are stored like other numbers; --pack makes the file smaller.")
    for text in sentences:
        print_text(console, printable(text))
