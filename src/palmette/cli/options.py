"""Flags of the commands that train, one per setting of `Experiment`, and the runs they describe."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from palmette.cli.display.printing import JSON
from palmette.integrations.tensorboard import check_tensorboard
from palmette.pruning.methods import METHODS, PARAMETER_FIELDS, PARAMETERS, SCOPES
from palmette.studies.experiment import Experiment, setting_fields
from palmette.studies.search import DEFAULT_METHOD
from palmette.studies.settings import seeds
from palmette.studies.spec import BELONGS_TO
from palmette.training.data import canonical

if TYPE_CHECKING:
    from palmette.training.data.images import Images

PATH, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)
PAPER = ("sap", "lottery-ticket", "one-shot")
PAIRS = {"sap": ({"p": 0.5, "q": 1.0}, {"p": 1.0, "q": 2.0})}  # the paper's
SEEDS = "0..2"
DIGITS_EPOCHS = 15

# Defaults that differ from those of one `Experiment`.
_DEFAULTS = {
    "seed": SEEDS,
    "method": "all three, SAP at p, q = 0.5, 1 and 1, 2; with --tolerance, interpolate",
    "p": "0.5 and 1",
    "q": "1 and 2",
    "epochs": f"200; {DIGITS_EPOCHS} for the bundled small digits",
    "allocate": "not shared",
    "saliency": "the method's",
    "stop": "after --rounds, or when nothing is left to cut",
    "tolerance": "no search",
}
_ALIASES = {"learning_rate": "--lr", "batch": "--batch-size", "warm_up": "--warmup"}


def see_own_modules(*names: str) -> None:
    """Let ``module:name``, if one of `names` is that, be found in the current folder, as by `python -m`."""
    if any(":" in name for name in names) and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def refuse_existing(force: bool, *files: Path) -> None:
    """Raise if a file of weights or masks would be overwritten without --force."""
    for file in () if force else files:
        if file.is_file():
            raise ValueError(f"{str(file)!r} exists: choose another file, or overwrite it with --force")


FORCE = click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")


def scope_option(usual: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Option for the scope of a cut without training."""
    allowed = f"[{'|'.join(SCOPES)}|n:m]"
    said = "Unit within which weights are ranked; n:m, such as 2:4: n of every m neighbouring inputs remain."
    return click.option("--scope", metavar=allowed, default=usual, show_default=True, help=said)


class RememberingCommand(click.Command):
    """A command that trains: it keeps its arguments, for the message that says how to resume."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store a copy of `args` before click parses them."""
        ctx.meta["palmette.arguments"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; a model or method of the user may be named by a flag or in a file."""
        see_own_modules(":")
        return super().invoke(ctx)


class GroupedCommand(RememberingCommand):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        titles = {f.name: str(f.metadata["group"]) for f in fields(Experiment) if f.metadata["group"]}
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in titles.values()}
        for parameter in self.get_params(ctx):
            title = titles.get(str(parameter.name), "Output and device")
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(title, []).append(record)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=24)


def setting_options() -> list[click.Option]:
    """An option for each setting; None where it was not given."""
    return [_option(f.name, f.default, f.metadata["help"]) for f in setting_fields()]


def parameter_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options for these parameters of budgets, all by default, for commands that cut without training."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for f in reversed(list(PARAMETER_FIELDS.values())):
            if f.name in (names or PARAMETER_FIELDS):
                kind, metavar = (str, "TEXT") if isinstance(f.default, str) else (float, "X")
                option = click.option(f"--{f.name}", type=kind, metavar=metavar, help=_parameter_help(f.name))
                command = option(command)
        return command

    return decorated


def place_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of all commands that train: folders, device, fleet size, and what is printed.

    The function receives them, and the arguments of the command line, as one dict `place`.
    """

    @functools.wraps(function)
    def command(**given: Any) -> None:
        place = {name: given.pop(name) for name in ("out", "data_dir", "device", "fleet", "as_json", "dry_run")}
        arguments = click.get_current_context().meta["palmette.arguments"]
        function(place={**place, "arguments": arguments}, **given)

    for names, metavar, read, text in (
        (("--fleet",), "N|auto", _fleet, "How many networks train at once. [default: auto, what fits]"),
        (("--device",), "TEXT", None, "cpu, cuda, cuda:1, … [default: cuda if there is one, else cpu]"),
        (("--data-dir",), "FOLDER", None, "Folder to search first for data sets."),
        (("-o", "--out"), "FOLDER", _folder, "Folder for runs, tables and figures. [default: runs]"),
    ):
        command = click.option(*names, metavar=metavar, callback=read, help=text)(command)
    dry_run = click.option("--dry-run", is_flag=True, help="Show the runs and how long they take; write nothing.")
    return dry_run(JSON(command))


def _folder(ctx: click.Context, option: click.Parameter, text: str | None) -> Path:
    if text == "":
        raise ValueError("--out must be the name of a folder, got ''")
    return Path(text or "runs")


def experiments(file: Path | None, given: Mapping[str, Any]) -> list[Experiment]:
    """The runs that a command line asks for, seed by seed; in `given`, `method` and `seed` may be lists as text.

    Without a file: all methods, SAP at both of the paper's pairs of p and q, three seeds, few epochs for digits;
    with a tolerance, the default method of a search.
    """
    base = Experiment() if file is None else Experiment.from_toml(file)
    settings = base.differences() | dict(given)
    if file is None and settings.get("tolerance"):
        settings = {"method": DEFAULT_METHOD, **settings}
    seed_text = str(settings.pop("seed", SEEDS if file is None else base.seed))
    method_text = settings.pop("method", ",".join(PAPER) if file is None else base.method)
    methods = list(dict.fromkeys(part.strip() for part in method_text.split(",")))
    chosen = {"method": methods, "optimizer": [settings.get("optimizer", base.optimizer)]}
    for name in settings:
        other, values = BELONGS_TO.get(name, ("method", methods))
        if not set(values) & set(chosen[other]):
            raise ValueError(
                f"{_flag(name)} belongs to {_flag(other)} {' or '.join(values)}, "
                f"got it with {_flag(other)} {','.join(chosen[other])}"
            )
    if file is None and "epochs" not in settings and canonical(settings.get("data", base.data)) == "digits":
        settings["epochs"] = DIGITS_EPOCHS
    both = file is None and not {"p", "q"} & set(settings)
    made = []
    for method in methods:
        others = [n for n, (other, values) in BELONGS_TO.items() if other == "method" and method not in values]
        own = {n: v for n, v in settings.items() if n not in others} | {"method": method}
        made += [Experiment(**own | pair) for pair in (PAIRS.get(method, ({},)) if both else ({},))]
    made = list(dict.fromkeys(made))  # Lottery Ticket and One Shot differ in saliency only, which may be given
    return [replace(experiment, seed=seed) for seed in seeds(seed_text) for experiment in made]


def _fleet(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Parse --fleet; None is as many as fit in memory."""
    if text is None or text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--fleet must be at least 1, or auto, got {text!r}")
    return int(text)


def check_processes(count: int, device: str, fleet: int | None, planned: Sequence[Experiment]) -> None:
    """Raise if `count` processes cannot train each network together."""
    import torch

    if count == 1:
        return
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--nproc {count} needs --device cpu or cuda, got {device!r}")
    if device == "cuda" and count > torch.cuda.device_count():
        raise ValueError(f"--nproc {count} needs a GPU per process, here are {torch.cuda.device_count()}")
    if fleet is not None and fleet > 1:
        raise ValueError(f"--nproc {count} trains one network at a time, got --fleet {fleet}")
    for experiment in planned:
        if experiment.batch < count:
            raise ValueError(f"--nproc {count} needs an image per process, got --batch {experiment.batch}")
        if experiment.compile:
            raise ValueError(f"--nproc {count} and --compile cannot be combined")


def checked(planned: Sequence[Experiment], out: Path, data_dir: str | None, *, tensorboard: bool) -> Images:
    """Data set of the `planned` runs, which share data and model; raise if one of them could not run."""
    from palmette.pruning.weights import prunable
    from palmette.training.data import load
    from palmette.training.data.split import validation_split
    from palmette.training.loop import check_last_batch
    from palmette.training.models import build

    for loss in (e.allowed_loss for e in planned):
        if loss and loss.by >= 1:
            raise ValueError(
                f"--tolerance must be below 1: accuracy is a fraction, 0.05 is five points; got {loss}"
            )
    first, there = planned[0], next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"--out must be a folder, or the name of a new one; {str(there)!r} is a file")
    images = left = load(first.data, folder=data_dir)
    if count := first.validation_images(len(images.train_images)):
        left = validation_split(images, count=count)[0]
    model = build(first.model, shape=images.shape, classes=images.classes)
    prunable(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"model {first.model!r} cannot be trained: none of its parameters requires a gradient")
    for one in {e.batch: e for e in planned if e.epochs}.values():
        check_last_batch(model, left, one.recipe)
    if tensorboard:
        check_tensorboard()
    return images


def device_named(name: str | None) -> str:
    """The device of this name, or the default; raise if this machine does not have it."""
    import torch

    from palmette.training.loop import check_device

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        check_device(name)
    except ValueError as error:
        raise ValueError(f"--{error}") from error
    return name


def _parameter_help(name: str, shown: str | None = None) -> str:
    """Help of a parameter with its default, and what differs for other methods than the first that has it."""
    of_method = {m: f for m in PARAMETERS[name] for f in METHODS[m].budget.parameters() if f.name == name}
    first = next(iter(of_method.values()))
    texts, defaults = [first.metadata["help"]], [shown or str(first.default)]
    for method, f in of_method.items():
        text = f.metadata["help"]
        texts += [f"For {method}: {text[0].lower()}{text[1:]}"] if text != texts[0] else []
        defaults += [f"{f.default} for {method}"] if f.default != first.default else []
    return f"{' '.join(texts)} [default: {', '.join(defaults)}]"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _option(name: str, default: Any, text: str) -> click.Option:
    shown = _DEFAULTS.get(name, ("yes" if default else "no") if isinstance(default, bool) else default)
    kind: Any = type(default)
    names, metavar = [_flag(name), name], {int: "N", float: "X", str: "TEXT"}.get(kind)
    names += [_ALIASES[name]] if name in _ALIASES else []
    if name == "seed":
        names, kind = ["--seeds", *names], str
    elif name == "clip":
        kind = _number_or_none
    elif kind is bool:
        return click.Option(
            [f"{_flag(name)}/--no-{name}", name], default=None, help=f"{text} [default: {shown}]", is_flag=True
        )
    full = _parameter_help(name, _DEFAULTS.get(name)) if name in PARAMETERS else f"{text} [default: {shown}]"
    return click.Option(names, type=kind, metavar=metavar, default=None, help=full)


def _number_or_none(text: str) -> float | str:
    try:
        return text if text == "none" else float(text)
    except ValueError:
        raise click.BadParameter(f"it must be a number, or none, got {text!r}") from None
