"""Write the table and draw the picture of `docs/renda.md`, from the records in `docs/renda`.

`python docs/make_renda.py`. The records come from `docs/run_renda.py`, which wants a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from marks import renewed

from palmette.reports.figures import LINES, STYLE
from palmette.studies.folder import RunDir

HERE = Path(__file__).parent
PAGE, FIGURE, RUN = HERE / "renda.md", HERE / "renda.png", HERE / "renda/lottery-ticket-e120-s0"
# Medians of three runs, in percent (Renda et al. 2020), at this density the best of each way to go on.
DENSITY = 0.107
THEIRS = {
    "learning-rate rewinding": 91.23,
    "weight rewinding": 91.00,
    "fine-tuning": 89.78,
    "rewinding to the start": 86.68,
}


def table(records: Sequence[dict[str, Any]]) -> str:
    """A row for every other round."""
    lines = [
        "| round | density | PQ Index | accuracy | after the next cut |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in records[::2]:
        cells = [percent(r["retrained"]["density"]), f"{r['retrained']['pq_index']:.4f}"]
        cells += [f"{accuracy(r):.2f} %", f"{accuracy(r['pruned']):.2f} %"]
        lines.append(f"| {' | '.join([str(r['round']), *cells])} |")
    return "\n".join(lines) + "\n"


def accuracy(record: dict[str, Any]) -> float:
    """On the test images, in percent."""
    return 100 * float(record["test"]["accuracy"])


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def draw(records: Sequence[dict[str, Any]]) -> None:
    """Accuracy and index by density, theirs beside ours."""
    densities = [100 * r["retrained"]["density"] for r in records]
    after = [100 * r["pruned"]["density"] for r in records[:-1]]
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.9), constrained_layout=True)
        left.plot(densities, [accuracy(r) for r in records], **LINES[0], label="retrained")
        left.plot(after, [accuracy(r["pruned"]) for r in records[:-1]], **LINES[3], label="after the cut")
        left.axhline(accuracy(records[0]), color="#666666", linewidth=1, linestyle=":")
        for (name, value), mark in zip(THEIRS.items(), "sv^X", strict=True):
            words = {"label": f"Renda et al., {name}", "color": "#D55E00", "markerfacecolor": "none"}
            left.plot(100 * DENSITY, value, marker=mark, markersize=7, linestyle="", **words)
        left.set(title="Test accuracy, %", ylim=(84, 93.5))
        left.legend(loc="lower left", fontsize=9)
        right.plot(densities, [r["retrained"]["pq_index"] for r in records], **LINES[0])
        right.set(title="PQ Index after retraining", ylim=(0, None))
        for axis in (left, right):
            axis.set_xscale("log")
            axis.set(xlim=(110, 9), xlabel="density, %")
            axis.set_xticks([100, 50, 20, 10], ["100", "50", "20", "10"])
            axis.minorticks_off()
        figure.savefig(FIGURE, dpi=150)


def written(page: str) -> str:
    """The page with the table of the records."""
    return renewed(page, "numbers", table(RunDir(RUN).records()), "make_renda.py")


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(RunDir(RUN).records())


if __name__ == "__main__":
    main()
