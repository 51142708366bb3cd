"""`python -m prediction.predict FOLDER`: predict where a point is lost, from the two tables, leaving out families.

Ridge regression of the log density on logarithms of features; its penalty is chosen by leaving out each family
of the training networks in turn, so that no number of the judged family is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NETWORK = ["family", "data", "model", "seed", "epochs", "weight_decay", "label_noise"]
LADDER = [*NETWORK, "rewind"]
LOST = 0.01
WITHIN = 1.5
PENALTIES = (0.1, 1.0, 10.0, 100.0)
FIRST_ROUNDS = (1, 2, 3)
GROUPS = ("data", "family")
"""What is left out whole, one value at a time."""
SHARES = ("index", "gini", "tail", "headroom")


def target(ladder: pd.DataFrame) -> float:
    """Log density at which `LOST` of test accuracy is lost, interpolated; NaN if the ladder never loses it.

    >>> rounds = pd.DataFrame({"density": [1.0, 0.1, 0.01], "test_accuracy": [0.9, 0.9, 0.88]})
    >>> round(float(np.exp(target(rounds))), 4)
    0.0316
    """
    lost = ladder["test_accuracy"].iloc[0] - ladder["test_accuracy"].to_numpy()
    return crossing(ladder["density"].to_numpy(), lost, LOST)


def crossing(densities: Floats, lost: Floats, most: float) -> float:
    """Log density at which more than `most` is lost for good, interpolated; NaN if that never happens.

    At least one density must lose no more.
    """
    good = np.flatnonzero(lost <= most + 1e-9)[-1]
    if good == len(lost) - 1:
        return float("nan")
    x = np.log(densities)
    share = (most - lost[good]) / (lost[good + 1] - lost[good])
    return float(x[good] + share * (x[good + 1] - x[good]))


def networks(folder: Path) -> pd.DataFrame:
    """A row for each ladder: features of its dense network and of its first rounds, and the target."""
    rounds = pd.read_csv(folder / "ladders.csv")
    rounds["density"] = rounds["kept"] / rounds["total"]
    dense = pd.read_csv(folder / "dense.csv")
    rows = []
    for names, ladder in rounds.groupby(LADDER):
        early = ladder.set_index("round")
        seen = [t for t in FIRST_ROUNDS if t in early.index]
        rows.append(
            dict(zip(LADDER, names, strict=True))
            | {"target": target(ladder), "chance": early["test_accuracy"].iloc[0]}
            | {
                f"round{t}_{name}": early[name].get(t, early[name].loc[max(seen, default=0)])
                for t in FIRST_ROUNDS
                for name in ("validation_accuracy", "train_loss", "pq_index")
            }
        )
    return pd.DataFrame(rows).merge(dense, on=NETWORK, how="inner")


def design(table: pd.DataFrame, names: Sequence[str]) -> Floats:
    """Logarithms of features, and a column for the rewind.

    A share such as an index or an accuracy is turned into log odds first.
    """
    columns = []
    for name in names:
        values = table[name].to_numpy(dtype=float)
        if name.startswith(SHARES) or name.endswith(("accuracy", "pq_index")):
            inside = values.clip(1e-4, 1 - 1e-4)
            columns.append(np.log(inside / (1 - inside)))
        else:
            columns.append(np.log(values.clip(1e-6)))
    return np.column_stack([*columns, table["rewind"] == "init"]).astype(float)


def ridge(x: Floats, y: Floats, penalty: float) -> Callable[[Floats], Floats]:
    """Ridge regression on standardised columns."""
    mean, sd = x.mean(0), x.std(0)
    sd[sd == 0] = 1
    z = (x - mean) / sd
    weights = np.linalg.solve(z.T @ z + penalty * np.eye(z.shape[1]), z.T @ (y - y.mean()))
    return lambda new: (new - mean) / sd @ weights + y.mean()


def predicted(x: Floats, y: Floats, families: Sequence[str], new: Floats) -> Floats:
    """Prediction for `new`, with the penalty that is best when each of the training families is left out."""
    kinds = np.asarray(families)

    def error(penalty: float) -> float:
        return sum(
            float(np.abs(ridge(x[kinds != k], y[kinds != k], penalty)(x[kinds == k]) - y[kinds == k]).sum())
            for k in np.unique(kinds)
        )

    return ridge(x, y, min(PENALTIES, key=error))(new)


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Share of networks predicted within a factor of `WITHIN`, and the median factor, for each family left out."""
    table = table.dropna(subset="target").reset_index(drop=True)
    settings = {*LADDER, "target", "chance"}
    dense = [c for c in table if c not in settings and not c.startswith("round")]
    candidates: dict[str, list[str] | None] = {
        "a constant": None,
        "weights per example": ["weights_per_example"],
        "headroom": ["headroom_global"],
        "dense network": dense,
        "dense network and three rounds": [*dense, *(c for c in table if c.startswith("round"))],
    }
    y, rows = table["target"].to_numpy(), []
    for group in GROUPS:
        for left_out in table[group].unique():
            test = (table[group] == left_out).to_numpy()
            for name, columns in candidates.items():
                if columns is None:
                    guess = np.full(test.sum(), np.median(y[~test]))
                else:
                    x = design(table, columns)
                    guess = predicted(x[~test], y[~test], table[group][~test].tolist(), x[test])
                factor = np.exp(np.abs(guess - y[test]))
                rows.append(
                    (
                        group,
                        left_out,
                        int(test.sum()),
                        name,
                        float((factor <= WITHIN).mean()),
                        float(np.median(factor)),
                    )
                )
    return pd.DataFrame(rows, columns=["left out", "value", "n", "features", "within", "median factor"])


if __name__ == "__main__":
    found = networks(Path(sys.argv[1]))
    print(f"{len(found)} ladders, {found['target'].isna().sum()} never lost a point")
    print(judged(found).to_string(index=False))
