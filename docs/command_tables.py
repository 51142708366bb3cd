"""The command line as Markdown: what `palmette COMMAND --help` prints, for the directive in docs/cli.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields

import click

from palmette.cli import main
from palmette.cli.options import GroupedCommand
from palmette.studies.experiment import Experiment

GROUPS = {f.name: str(f.metadata["group"]) for f in fields(Experiment) if f.metadata["group"]}
DEFAULT = "[default: "


def reference(name: str) -> str:
    """Usage, description and options of a command, and those of its subcommands."""
    return "\n".join(_lines(f"palmette {name}", main.commands[name]))


def _lines(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield from ("```", " ".join([path, *command.collect_usage_pieces(context)]), "```", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        example = inspect.cleandoc(paragraph.replace("\b\n", ""))
        yield from ("```", example, "```", "") if "\b" in paragraph else (_coded(paragraph), "")
    groups: dict[str, list[str]] = {}
    for option in command.params:
        if isinstance(option, click.Option):
            groups.setdefault(_group(command, option), []).append(_row(option, context))
    for title in sorted(groups, key=[*GROUPS.values(), "Output and device", "Options"].index):
        yield from (f"| {title} | default | |", "| --- | --- | --- |", *groups[title], "")
    for name, other in getattr(command, "commands", {}).items():
        yield from _lines(f"{path} {name}", other)


def _group(command: click.Command, option: click.Option) -> str:
    grouped = isinstance(command, GroupedCommand)
    return GROUPS.get(str(option.name), "Output and device") if grouped else "Options"


def _row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    text, _, default = " ".join(text.split()).replace("[required]", "Required.").partition(DEFAULT)
    cells = f"`{names}`", _coded(default.removesuffix("]")), _coded(text.strip())
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _coded(text: str) -> str:
    """Flags as code, so that they keep both dashes."""
    return re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"`\g<0>`", text)
