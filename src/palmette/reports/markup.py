"""Tables as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
}
_LATEX = str.maketrans(_SIGNS | {sign: f"\\{sign}" for sign in "&%$#_{}"})


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: Container[str], notes: str) -> str:
    """Markdown table with notes below; the columns in `left` are left-aligned, the others right-aligned."""
    lines = [titles, ["---" if title in left else "---:" for title in titles], *rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"{body}\n\n{notes}\n"


def latex(titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: Container[str], caption: str) -> str:
    r"""LaTeX table; it needs ``\usepackage{booktabs}``."""
    columns = "".join("l" if title in left else "r" for title in titles)
    head, *body = (" & ".join(map(_latex, line)) + r" \\" for line in [titles, *rows])
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(caption)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex(text: str) -> str:
    return text.translate(_LATEX)
