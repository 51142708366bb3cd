"""The part of a page that a script writes, between two marks."""

from __future__ import annotations


def renewed(page: str, name: str, part: str, script: str) -> str:
    """The page with one of its parts made anew."""
    begin, end = f"<!-- {name}: written by docs/{script} -->\n", f"<!-- end of {name} -->\n"
    for mark in (begin, end):
        if (found := page.count(mark)) != 1:
            raise ValueError(f"the page must have the mark {mark.strip()!r} once, found {found}")
    return page.partition(begin)[0] + begin + "\n" + part + "\n" + end + page.partition(end)[2]
