"""Draw docs/index.png, the figure of the README: four vectors, their PQ Index, and what SAP would cut."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file

import palmette as pm

HERE = Path(__file__).parent
KEPT, CUT = "#0072B2", "#D55E00"


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = load_file(HERE.parent / "src/palmette/examples/digits-mlp.safetensors")
    size = layers["head.weight"].numel()
    gaussian = torch.randn(size, generator=generator)
    vectors = {
        "all equal,\nnothing to spare": torch.ones(size),
        "Gaussian, a network\nbefore training": gaussian,
        "output layer of an MLP\ntrained on digits": layers["head.weight"].flatten(),
        "heavy tails, a few\nweights do it all": gaussian.sign() * gaussian.abs() ** 4,
    }
    figure, axes = plt.subplots(1, 4, figsize=(10, 3.1), sharex=True, constrained_layout=True)
    for axis, (title, w) in zip(axes, vectors.items(), strict=True):
        magnitudes = w.abs().sort().values / w.abs().max()
        cut = int(pm.Sap()(w))
        x = torch.linspace(0, 1, size)
        axis.fill_between(x[cut:], magnitudes[cut:], color=KEPT, linewidth=0)
        axis.fill_between(x[: cut + 1], magnitudes[: cut + 1], color=CUT, linewidth=0)
        axis.axvspan(0, cut / size, color=CUT, alpha=0.13, linewidth=0)
        if cut:
            axis.axvline(cut / size, color=CUT, linewidth=1)
        share = f"first cut {cut / size:.0%}"
        axis.set_title(title, fontsize=9.5, pad=24)
        axis.text(0, 1.04, f"PQ Index {pm.pq_index(w):.2f}", transform=axis.transAxes, fontsize=10.5)
        axis.text(1, 1.04, share, transform=axis.transAxes, ha="right", fontsize=10.5, color=CUT)
        axis.set(xlim=(0, 1), ylim=(0, 1.0), yticks=[], xticks=[0, 0.5, 1], xticklabels=["0", "50 %", "100 %"])
        axis.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel("weights, from the smallest to the largest magnitude", fontsize=9.5)
    figure.savefig(HERE / "index.png", dpi=160)


if __name__ == "__main__":
    main()
