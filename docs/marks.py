"""The part of a page that a script writes, between two marks."""

from __future__ import annotations


def renewed(page: str, name: str, part: str, script: str) -> str:
    """The page with one of its parts made anew."""
    begin, end = f"<!-- {name}: written by docs/{script} -->\n", f"<!-- end of {name} -->\n"
    before, there, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (there and ended):
        raise ValueError(f"the page has no part from {begin.strip()!r} to {end.strip()!r}")
    return before + begin + "\n" + part + "\n" + end + after
