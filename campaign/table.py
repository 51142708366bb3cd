"""The table of what was tried and what was lost, for the terminal and for docs/trust.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from campaign.ledger import Ledger

BEGIN, END = "<!-- results: written by campaign -->\n", "<!-- end of results -->\n"
NOT_REACHED = "goal not reached"


def table(ledgers: Sequence[Ledger]) -> str:
    """A line for each row, as Markdown."""
    lines = ["| what | goal | tried | survived | lost |", "| --- | ---: | ---: | ---: | ---: |"]
    for ledger in ledgers:
        row, tally = ledger.row, ledger.tally()
        what = f"`{row.name}`: {row.what}" + (
            f" ({tally.refused:,} refused by torch itself)" * bool(tally.refused)
        )
        tried = f"{tally.tried:,}" + (f" ({NOT_REACHED})" if tally.tried < row.goal else "")
        survived, lost = tally.tried - len(tally.lost), len(tally.lost)
        lines.append(f"| {what} | {row.goal:,} | {tried} | {survived:,} | {lost:,} |")
    return "\n".join(lines) + "\n"


def write(page: Path, ledgers: Sequence[Ledger]) -> None:
    """Put the table between its marks on a page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{str(page)!r} needs the lines {BEGIN.strip()} and {END.strip()}, in this order")
    page.write_text(f"{before}{begin}\n{table(ledgers)}\n{end}{after}", encoding="utf-8")
