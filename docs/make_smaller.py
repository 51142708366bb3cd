"""Measure how small packed files are, and write the table of `docs/smaller.md`: `python docs/make_smaller.py`."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import torch
from marks import renewed
from safetensors.torch import save as dense_bytes
from torch import Tensor

import palmette as pm

PAGE = Path(__file__).with_name("smaller.md")
SIDE = 2000
ZEROS = (0.5, 0.8, 0.9, 0.95, 0.99)


def weight(zeros: float, dtype: torch.dtype) -> Tensor:
    """Normal weights with zeros at random places."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(SIDE, SIDE, generator=generator).to(dtype)
    return values.masked_fill_(torch.rand(SIDE, SIDE, generator=generator) < zeros, 0)


def zipped(content: bytes) -> int:
    """Bytes of a ZIP file with `content` in it, at the strongest setting."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("model.safetensors", content)
    return len(file.getvalue())


def csr(values: Tensor) -> int:
    """Bytes of the matrix as CSR with 32-bit indices."""
    return values.count_nonzero().item() * (values.element_size() + 4) + (SIDE + 1) * 4


def packed(values: Tensor) -> int:
    """Bytes of the packed file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        pm.save(path, {"w": values})
        return path.stat().st_size


def fractions(zeros: float, dtype: torch.dtype) -> list[float]:
    """Zipped, CSR and packed, of the dense file."""
    values = weight(zeros, dtype)
    dense = dense_bytes({"w": values})
    return [size / len(dense) for size in (zipped(dense), csr(values), packed(values))]


def table() -> str:
    """The table of the page, in Markdown. The same on every machine: the seed is fixed."""
    lines = ["| zeros | dtype | zipped | CSR | packed |", "| ---: | --- | ---: | ---: | ---: |"]
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for zeros in ZEROS:
            cells = " | ".join(f"{fraction:.4f}" for fraction in fractions(zeros, dtype))
            lines.append(f"| {zeros:.0%} | {name} | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = renewed(PAGE.read_text(encoding="utf-8"), "table", table(), "make_smaller.py")
    PAGE.write_text(page, encoding="utf-8")
