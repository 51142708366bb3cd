"""Time and memory of a repair, for random weights in the shape of a Llama.

python -m benchmarks.repair --device cuda            # 6.6 G weights, 128 × 2,048 tokens, as for LLaMA-2-7B
python -m benchmarks.repair --blocks 2 --width 64    # a small one, to try
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
import transformers

import palmette as pm
from palmette.pruning.methods import REPAIRS
from palmette.pruning.repair.blocks import repair_


def main() -> None:
    given = _arguments()
    device = torch.device(given.device)
    config = transformers.LlamaConfig(
        hidden_size=given.width,
        intermediate_size=given.width * 43 // 16,
        num_hidden_layers=given.blocks,
        num_attention_heads=max(given.width // 128, 1),
    )
    torch.manual_seed(0)
    with device:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaModel(config).eval()
        torch.set_default_dtype(before)
        batches = [torch.randint(config.vocab_size, (1, given.length)) for _ in range(given.windows)]
    begun = time.perf_counter()
    weights = pm.prunable(model)
    masks, _ = pm.prune(weights, scope="layer", budget=pm.FixedRatio(0.5))
    cut = time.perf_counter() - begun
    masks, _ = repair_(model, masks, batches, by=given.by, scope="layer")
    taken = time.perf_counter() - begun
    held = sum(w.tensor.nbytes for w in weights.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    print(f"{given.by}, {masks.total / 1e9:.2f} G weights, {given.windows} × {given.length} tokens, {device}:")
    print(f"cut {cut:.0f} s, with repair {taken:.0f} s")
    print(f"peak {peak / 1e9:.1f} GB, of which weights {held / 1e9:.1f} GB and masks {masks.total / 1e9:.1f} GB")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--by", default="gradual", choices=REPAIRS)
    for name, default in (("width", 4096), ("blocks", 32), ("windows", 128), ("length", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
