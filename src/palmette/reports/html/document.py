"""HTML document of every report: one self-contained file that opens from disk."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

from palmette import __version__


def document(
    *, title: str, lead: str, body: str, policy: str, style: str = "", source: str = "", scripts: str = ""
) -> str:
    """Fill the template page.html; `title` is plain text, the rest is HTML."""
    return Template(bundled("page.html")).substitute(
        version=escape(__version__),
        title=escape(title),
        lead=lead,
        css=bundled("page.css") + style,
        body=body,
        policy=policy,
        source=source,
        scripts=scripts,
    )


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Table from plain titles and cells of HTML."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bundled(name: str) -> str:
    """Text of a file next to this module."""
    return files("palmette.reports.html").joinpath(name).read_text(encoding="utf-8")
