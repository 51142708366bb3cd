"""Cut SmolLM2-135M with and without repair; write `docs/repair.csv` and `docs/without-retraining.md`.

    python docs/make_repair.py SMOLLM2.gguf WIKITEXT [--device cuda]

Files are those of `make_calibrated.py`. The last 64 long lines of the text calibrate, and perplexity is that of
its first 8 × 1,024 tokens, as a ratio to the dense model's. The weights of the 30 blocks are cut once, to the same
density but for rounding in each neuron. Fixed before the first run:

- Magnitude and Wanda compare weights within a neuron. SparseGPT, and ADMM that chooses, compare them within a
  layer, as published. "Wanda + …" repairs what Wanda kept; in "ADMM + exact" ADMM only chooses.
- Wanda's norms and the shares are those of the dense model, also for repairs. Shares differ between blocks by at
  most twice 0.15. OWL counts outliers of the scores that rank; the index is that of the weights, at p = 0.5 and
  q = 1, and keeps more where it is high.
- Nothing is tuned: dampings and steps are those of the papers. Every row that was run is in the file.

Rows in the file are not run again, so that the script can be stopped at any time.
"""

from __future__ import annotations

import argparse
import copy
import csv
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import torch
from make_calibrated import PAGE, SENTENCES, TOKENS, WINDOWS, unpacked
from marks import renewed
from transformers import AutoModelForCausalLM, AutoTokenizer

import palmette as pm
from palmette.pruning.budgets import Allocated, FixedRatio
from palmette.pruning.repair.blocks import repair_
from palmette.pruning.saliency import input_norms, magnitude, weighted_by_inputs

ROWS = Path(__file__).with_name("repair.csv")
FIELDS = ("method", "shares", "sparsity", "scope", "density", "perplexity", "ratio", "seconds")
METHODS = {  # ranks, scope, repair
    "magnitude": ("magnitude", "neuron", ""),
    "Wanda": ("input-weighted", "neuron", ""),
    "SparseGPT": ("input-weighted", "layer", "sparsegpt"),
    "Wanda + ADMM": ("input-weighted", "neuron", "admm"),
    "Wanda + exact": ("input-weighted", "neuron", "least-squares"),
    "ADMM": ("input-weighted", "layer", "admm-gradual"),
    "ADMM + exact": ("input-weighted", "layer", "gradual"),
}
SHARES = {"uniform": "uniform", "index": "index", "OWL": "outliers"}
ORDER = ("uniform", "OWL", "index")  # in the table
SPARSITIES = (0.6, 0.5, 0.7)
LLAMA = {"Wanda": (6.31, 9.23, 57.2), "SparseGPT": (6.09, 7.83, 15.9), "ADMM": (5.93, 7.11, 12.1)}
LLAMA_DENSE = 5.12  # LLaMA-2-7B on WikiText-2: Boža 2024


Batches = list[dict[str, torch.Tensor]]


def loaded(gguf: Path, wikitext: Path, device: str) -> tuple[torch.nn.Module, Batches, list[torch.Tensor]]:
    """The dense model, sentences that calibrate, and windows that are scored."""
    with tempfile.TemporaryDirectory() as name:
        unpacked(gguf, Path(name))
        dense = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval().to(device)
        tokenizer = AutoTokenizer.from_pretrained(name)
    text = wikitext.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if len(line) > 300][-SENTENCES:]
    batches = [{"input_ids": tokenizer(line, return_tensors="pt").input_ids.to(device)} for line in lines]
    tokens = tokenizer(text[: 10 * WINDOWS * TOKENS], return_tensors="pt").input_ids[0].to(device)
    return dense, batches, [tokens[i * TOKENS : (i + 1) * TOKENS][None] for i in range(WINDOWS)]


@torch.no_grad()
def perplexity(model: torch.nn.Module, windows: list[torch.Tensor]) -> float:
    """Perplexity of the windows, each on its own."""
    losses = [model(window, labels=window).loss for window in windows]
    return float(torch.stack(losses).double().mean().exp())


def rows(
    dense: torch.nn.Module, batches: Batches, windows: list[torch.Tensor], todo: list[tuple[str, float, str]]
) -> Iterator[dict[str, str]]:
    """Rows for shares, sparsities and methods, one after another."""
    whole = perplexity(dense, windows)
    inputs = weighted_by_inputs(input_norms(dense, batches), dense)
    for shares, sparsity, method in todo:
        begun = time.perf_counter()
        ranks, scope, by = METHODS[method]
        model = copy.deepcopy(dense)
        saliency = magnitude if ranks == "magnitude" else inputs
        budget = Allocated(FixedRatio(sparsity), by=SHARES[shares])
        masks, _ = pm.prune(pm.prunable(model), scope=scope, budget=budget, saliency=saliency)
        if by:
            masks, left = repair_(model, masks, batches, by=by, scope=scope)
            assert not left
        else:
            masks.apply_(pm.prunable(model))
        taken = time.perf_counter() - begun
        found = perplexity(model, windows)
        yield {
            **dict(zip(FIELDS, keyed(shares, sparsity, method), strict=False)),
            "scope": scope,
            "density": f"{masks.density:.6f}",
            "perplexity": f"{found:.3f}",
            "ratio": f"{found / whole:.4f}",
            "seconds": f"{taken:.0f}",
        }


def keyed(shares: str, sparsity: float, method: str) -> tuple[str, str, str]:
    """Method, shares and sparsity as in the file."""
    return method, shares, f"{sparsity:g}"


def table(lines: list[dict[str, str]]) -> list[str]:
    """Ratio to the dense perplexity of each method, sparsity and share that is on file."""
    ratios = {(line["method"], line["shares"], line["sparsity"]): float(line["ratio"]) for line in lines}
    columns = [shares for shares in ORDER if any(key[1] == shares for key in ratios)]
    written = [f"| sparsity | method | {' | '.join(columns)} | LLaMA-2-7B, as published |"]
    written.append(f"| ---: | --- |{' ---: |' * (len(columns) + 1)}")
    for sparsity, method in product(sorted(SPARSITIES), METHODS):
        found = [ratios.get(keyed(shares, sparsity, method)) for shares in columns]
        if any(found):
            cells = ["" if ratio is None else shown(ratio) for ratio in found]
            at = dict(zip((0.5, 0.6, 0.7), LLAMA.get(method, ()), strict=False)).get(sparsity)
            published = "" if at is None else shown(at / LLAMA_DENSE)
            written.append(f"| {sparsity:.0%} | {method} | {' | '.join(cells)} | {published} |")
    return written


def shown(ratio: float) -> str:
    """A ratio with three digits."""
    return f"{ratio:#.3g}".rstrip(".")


def on_file() -> list[dict[str, str]]:
    """Rows in the file."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path)
    parser.add_argument("wikitext", type=Path)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    known = {(line["method"], line["shares"], line["sparsity"]) for line in on_file()}
    todo = [key for key in product(SHARES, SPARSITIES, METHODS) if keyed(*key) not in known]
    todo.sort(key=lambda key: METHODS[key[2]][2] != "")  # rows without repair take a minute, others ten
    for row in rows(*loaded(given.gguf, given.wikitext, given.device), todo):
        new = not ROWS.exists()
        with ROWS.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(row, flush=True)
        lines = "\n".join(table(on_file())) + "\n"
        page = renewed(PAGE.read_text(encoding="utf-8"), "repair", lines, "make_repair.py")
        PAGE.write_text(page, encoding="utf-8")
