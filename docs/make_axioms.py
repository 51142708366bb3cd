"""Write the table of docs/axioms.md: what `palmette axioms` finds, as Markdown.

python docs/make_axioms.py
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from marks import renewed

from palmette.measures.axioms import PROPERTIES, Verdict, check
from palmette.measures.classic import MEASURES
from palmette.measures.hurley_rickard import published

PAGE = Path(__file__).with_name("axioms.md")


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
    }


def filled(page: str) -> str:
    """`page` with each part made anew."""
    for name, part in parts().items():
        page = renewed(page, name, f"{part}\n", "make_axioms.py")
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
