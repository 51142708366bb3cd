"""Draw docs/accuracies.png: accuracies as the paper's Figure 3 has them, of single rounds, and of a run here."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from palmette.reports.paper.published import Values, as_drawn, single_rounds
from palmette.studies.record import read_runs

HERE = Path(__file__).parent
DRAWN, APART, OURS = "#D55E00", "#0072B2", "#333333"
CHANCE = 10


def main() -> None:
    drawn = as_drawn()
    runs = read_runs(HERE.parent / "results/cifar10-resnet18-20")
    one_shot = runs[(runs["method"] == "one-shot") & runs["pruned_test_accuracy"].notna()].sort_values("round")
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True, constrained_layout=True)
    panels = [
        ("SAP (p=1, q=2), retrained", "retrained/accuracy", "sap_p1_q2"),
        ("One Shot, after the cut", "pruned/accuracy", "one_shot"),
    ]
    for axis, (title, panel, method) in zip(axes, panels, strict=True):
        for values, colour, mark, words in (
            (drawn, DRAWN, "s", "as published: running mean"),
            (single_rounds(drawn), APART, "o", "of each round, recovered"),
        ):
            rounds, accuracies = zip(*line(values, panel, method), strict=True)
            axis.plot(rounds, accuracies, color=colour, marker=mark, label=words, linewidth=1.6, markersize=5)
        axis.axhline(CHANCE, color="#999999", linewidth=1, linestyle=":")
        axis.text(0, CHANCE + 1.5, "chance", color="#666666", fontsize=9)
        axis.set_title(title, fontsize=10.5, loc="left")
        axis.set(xlabel="round", ylim=(0, 100))
        axis.locator_params(axis="x", integer=True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].plot(
        one_shot["round"],
        100 * one_shot["pruned_test_accuracy"],
        color=OURS,
        linestyle="--",
        label="of each round, our run with 20 epochs",
    )
    axes[0].set_ylabel("accuracy, %")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(HERE / "accuracies.png", dpi=150)


def line(values: Values, panel: str, method: str) -> list[tuple[float, float]]:
    """Rounds and accuracies; where a retrained line is hidden, it is the sum of two others."""
    found = dict(values.get((panel, method), []))
    if panel == "retrained/accuracy":
        cut, less = (dict(values[f"pruned/accuracy{end}", method]) for end in ("", "_difference"))
        found = {t: cut[t] + less[t] for t in cut if t in less} | found
    return sorted(found.items())


if __name__ == "__main__":
    main()
