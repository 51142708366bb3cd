"""Help texts that fit the terminal and break only between words."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import click

_HYPHEN = "\N{NON-BREAKING HYPHEN}"
_WIDEST = 80


class WholeWords(click.HelpFormatter):
    """Formatter that never breaks a line after a hyphen, so that flags and values can be copied."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(width=max(30, min(shutil.get_terminal_size().columns, _WIDEST) - 2))

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", _HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 24, col_spacing: int = 2) -> None:
        """Write a list of terms; the names of terms are not broken at all."""
        super().write_dl([(name, text.replace("-", _HYPHEN)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        """The text, with hyphens as they were."""
        return super().getvalue().replace(_HYPHEN, "-")
