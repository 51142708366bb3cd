"""Time and memory from 10^5 to 10^9 weights: a record per size, and the plot of all records."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import palmette as pm
from benchmarks.meters import extra_bytes, seconds

SIZES = tuple(int(10 ** (k / 2)) for k in range(10, 19))


def record() -> list[dict[str, float | str]]:
    """Seconds and extra bytes of the index and of a whole global cut, for each size, on this machine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    records: list[dict[str, float | str]] = []
    for size in SIZES:
        weights = torch.randn(size, device=device, generator=generator)
        repeats = 2 if size > 10**8 and device == "cpu" else 5
        for name, work in (
            ("index", lambda w=weights: pm.pq_index(w)),
            ("cut", lambda w=weights: pm.prune({"w": w}, scope="global", budget=pm.Sap())[0]),
        ):
            records.append(
                {
                    "device": device,
                    "what": name,
                    "weights": size,
                    "seconds": seconds(work, repeats),
                    "extra_bytes": extra_bytes(work),
                }
            )
        del weights
    return records


def plot(folder: Path) -> None:
    """Draw docs/growth.png from docs/growth-*.json."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = [r for path in sorted(folder.glob("growth-*.json")) for r in json.loads(path.read_text())]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    styles = {"cpu": "-", "cuda": "--"}
    marks = {"index": "o", "cut": "s"}
    colours = {"index": "#0072B2", "cut": "#D55E00"}
    names = {"index": "PQ Index", "cut": "global cut: index, threshold, mask"}
    for device in styles:
        for what in marks:
            points = [r for r in records if r["device"] == device and r["what"] == what]
            if not points:
                continue
            x = [r["weights"] for r in points]
            label = f"{names[what]}, {'CPU' if device == 'cpu' else 'GPU'}"
            style = {"color": colours[what], "marker": marks[what], "linestyle": styles[device], "markersize": 4}
            axes[0].loglog(x, [r["seconds"] for r in points], label=label, **style)
            axes[1].loglog(x, [max(r["extra_bytes"], 1e4) for r in points], label=label, **style)
    for axis, title, unit, slope, label in (
        (axes[0], "time", "seconds", 1e-9, "1 ns per weight"),
        (axes[1], "extra memory, mask included", "bytes", 1.0, "1 byte per weight"),
    ):
        (line,) = axis.loglog([1e5, 1e9], [slope * 1e5, slope * 1e9], color="0.6", linewidth=1, label=label)
        axis.set(title=title, xlabel="weights", ylabel=unit)
        axis.grid(alpha=0.25)
        axis.legend(handles=None if axis is axes[0] else [line], fontsize=8, frameon=False)
    figure.savefig(folder / "growth.png", dpi=150)
