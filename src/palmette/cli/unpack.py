"""`palmette unpack`: write a packed file as plain safetensors."""

from __future__ import annotations

from pathlib import Path

import click

from palmette.cli.options import FILE, FORCE, PATH, refuse_existing
from palmette.files import write_safetensors
from palmette.words import counted, size


@click.command()
@click.argument("path", metavar="IN", type=PATH)
@click.option("-o", "--out", required=True, type=FILE, help="The file to write.")
@FORCE
def unpack(path: Path, out: Path, force: bool) -> None:
    """Write the packed file IN as a plain safetensors file.

    IN was written by pm.save. The values are the same, bit for bit. A tensor with two names is written under both.
    """
    from palmette.compression.packing import load

    refuse_existing(force, out)
    state, before = load(path), path.stat().st_size
    seen: set[int] = set()
    for name, tensor in state.items():
        if id(tensor) in seen:  # safetensors files cannot hold tensors that share memory
            state[name] = tensor.clone()
        seen.add(id(tensor))
    write_safetensors(out, state, {"format": "pt"})  # required by Transformers
    after = out.stat().st_size
    click.echo(f"{out}: {counted(len(state), 'tensor')}, {size(after)}; packed {size(before)}")
