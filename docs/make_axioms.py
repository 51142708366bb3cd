"""Write the generated parts of docs/axioms.md: what `palmette axioms` finds, as Markdown tables.

python docs/make_axioms.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from marks import renewed

from palmette.measures.axioms import PROPERTIES, Verdict, check
from palmette.measures.classic import (
    MEASURES,
    negative_tanh,
    pq_mean,
    shannon_entropy,
    shannon_entropy_prime,
    u_theta,
)
from palmette.measures.hurley_rickard import published

PAGE = Path(__file__).with_name("axioms.md")


def _less(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda w, dim: -function(w, dim=dim)


VARIANTS: Mapping[str, Callable[..., Any]] = {
    "`-tanh_ab`, a = 1/8, b = 2": partial(negative_tanh, a=0.125, b=2.0),
    "`u_theta`, theta = 0.75": partial(u_theta, theta=0.75),
    "`pq-mean`, p = 1, q = 2": partial(pq_mean, p=1.0, q=2.0),
    "`pq-mean`, p = 2, q = 4": partial(pq_mean, p=2.0, q=4.0),
    "the negative of `H_S`": _less(shannon_entropy),
    "the negative of `H_S_prime`": _less(shannon_entropy_prime),
}


def _row(title: str, verdicts: Mapping[str, Verdict], name: str = "") -> str:
    cells = []
    for key, verdict in verdicts.items():
        mark = "✓" if verdict.holds else "✗"
        cells.append(mark if published(name, key) in (None, verdict.holds) else f"**{mark} !**")
    return f"| {title} | {' | '.join(cells)} |"


def _head() -> list[str]:
    titles = " | ".join(f"{key} {what.name}" for key, what in PROPERTIES.items())
    return [f"| measure | {titles} |", "|---|" + ":-:|" * len(PROPERTIES)]


def _parameters(name: str) -> str:
    given = ", ".join(f"{key} = {value:g}" for key, value in MEASURES[name].parameters.items())
    return f"`{name}`" + (f", {given}" if given else "")


def parts() -> dict[str, str]:
    """The generated parts of the page by name."""
    verdicts = {name: check(measure) for name, measure in MEASURES.items()}
    return {
        "verdicts": "\n".join([*_head(), *(_row(_parameters(n), v, n) for n, v in verdicts.items())]),
        "variants": "\n".join([*_head(), *(_row(title, check(m)) for title, m in VARIANTS.items())]),
    }


def filled(page: str) -> str:
    """`page` with each part made anew."""
    for name, part in parts().items():
        page = renewed(page, name, f"{part}\n", "make_axioms.py")
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
