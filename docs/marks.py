"""The part of a page that a script writes, between two marks."""

from __future__ import annotations


def renewed(page: str, name: str, part: str, script: str) -> str:
    """The page with one of its parts made anew."""
    begin, end = f"<!-- {name}: written by docs/{script} -->\n", f"<!-- end of {name} -->\n"
    before, rest = page.split(begin)
    return before + begin + "\n" + part + "\n" + end + rest.split(end)[1]
