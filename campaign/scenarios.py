"""Commands of palmette that write files, each small enough to be repeated thousands of times."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import pickle
import random
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click.testing
import torch
from torch import nn

import palmette as pm
from campaign.child import Refused
from campaign.downloads import images, read_from_here
from palmette.cli import main
from palmette.cli.prune import prune
from palmette.studies.folder import find_runs

EXAMPLE = Path(pm.__file__).parent / "examples" / "digits-mlp.safetensors"
VOLATILE = ("timings.jsonl",)  # seconds, which differ from run to run


@dataclass(frozen=True)
class Scenario:
    """A command, and what its files must be.

    Args:
        name: unique among all.
        command: runs it in a folder, or resumes it there; what it returns belongs to its result.
        look: what a reader is told about the folder, by name; it may refuse to tell.
        prepare: fills the folder beforehand.
    """

    name: str
    command: Callable[[Path], Any]
    look: Callable[[Path], Mapping[str, Any]]
    prepare: Callable[[Path], None] = lambda folder: None


def import_all() -> None:
    """Import what commands import late, so that every child has it."""
    late = ("studies.running", "studies.retraining", "reports.figures", "reports.html.page", "checkpoints.prune")
    for name in (
        "torch._dynamo",
        "pandas",
        "altair",
        "matplotlib.backends.backend_agg",
        *(f"palmette.{n}" for n in late),
    ):
        importlib.import_module(name)


def palmette(*arguments: object) -> str:
    """What a command writes to stdout; raise `Refused` with its sentence if it ends with an error."""
    return str(_invoked(*arguments).stdout)


def output_of(*arguments: object) -> str:
    """What a command writes, to stderr too, but for the sizes of files."""
    return re.sub(r"\d+(\.\d+)? [kM]?B\b", "… B", str(_invoked(*arguments).output))


def _invoked(*arguments: object) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        said = result.stderr.strip() or result.stdout.strip().splitlines()[-1]
        raise Refused(f"exit code {result.exit_code}: {said[-1000:]}")
    return result


def files(folder: Path) -> dict[str, bytes | None]:
    """Content of every file by relative path, and None for every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def meanings(folder: Path) -> dict[str, Any]:
    """What every file says, the same for every undisturbed run.

    Text is compared to the last byte. Tensors too, but safetensors orders its metadata by chance, and `torch.save`
    writes equal strings once or twice.
    """
    return {
        name: content if content is None else _meaning(name, content)
        for name, content in files(folder).items()
        if Path(name).name not in VOLATILE
    }


def _meaning(name: str, content: bytes) -> object:
    with suppress(ValueError, RuntimeError, pickle.UnpicklingError):
        if name.endswith(".safetensors"):
            start = 8 + int.from_bytes(content[:8], "little")
            return json.dumps(json.loads(content[8:start]), sort_keys=True), content[start:]
        if name.endswith("finished.json"):  # a kill may lose the time of a round
            return {key: value for key, value in json.loads(content).items() if key not in ("timings", "seal")}
        if name.endswith(".pt"):
            state = torch.load(io.BytesIO(content), weights_only=True)
            # "company" has the runs that trained together, which are fewer where another process has some of them.
            return {key: _plain(value) for key, value in state.items() if key != "company"}
    return content


def _plain(thing: Any) -> object:
    if isinstance(thing, Mapping):
        return {key: _plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_plain(value) for value in thing]
    if isinstance(thing, torch.Tensor):
        return (
            str(thing.dtype),
            tuple(thing.shape),
            thing.contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(thing, bytes) and thing.startswith(b"PK"):
        return _plain(torch.load(io.BytesIO(thing), weights_only=True))
    return thing


def refill(folder: Path, content: Mapping[str, bytes | None]) -> None:
    """Make `folder` hold exactly `content`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in content.items():
        place = folder / name
        (place if data is None else place.parent).mkdir(parents=True, exist_ok=True)
        if data is not None:
            place.write_bytes(data)


# Runs.

_TINY = ("--data", "digits", "--model", "linear", "--epochs", 1, "--seeds", 0)


def records(folder: Path) -> dict[str, list[str]]:
    """Records of every run, as lines."""
    return {run.path.name: [json.dumps(r, sort_keys=True) for r in run.records()] for run in find_runs(folder)}


def _run(folder: Path) -> None:
    palmette("run", *_TINY, "--method", "lottery-ticket,one-shot", "--rounds", 2, "--out", folder / "runs")


def _search(folder: Path) -> None:
    options = ("--tolerance", 0.05, "--validation", 300, "--rounds", 4)
    palmette("run", *_TINY, *options, "--out", folder / "runs")


_GRID = """
[base]
model = "linear"
epochs = 1
rounds = 1
[axes]
method = ["sap", "one-shot"]
batch = [100, 250]
"""


def _grid(folder: Path) -> None:
    (folder / "grid.toml").write_text(_GRID)


def _sweep(folder: Path) -> None:
    palmette("sweep", folder / "grid.toml", "--out", folder / "runs")


def _retrain(folder: Path) -> tuple[str, str]:
    vars(secrets)["token_hex"] = lambda n: "0" * 2 * n  # the name of the run is drawn by chance
    limit = retrained(folder / "run")
    return str(limit), digest(limit.model)


def digest(model: nn.Module) -> str:
    """SHA-256 of all weights."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def retrained(folder: Path, seed: int = 0, rounds: int = 5) -> Any:
    """Limit of a tiny network with the user's own training."""
    torch.manual_seed(seed)
    random.seed(seed)  # a fork seeds it by chance, and checkpoints hold its state
    x = torch.randn(60, 6)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def train(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for _ in range(15):
            optimizer.zero_grad()
            rows = torch.randperm(60)[:30]
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(x).argmax(1) == y).float().mean())

    return pm.prune_and_retrain(model, train, evaluate, tolerance=0.05, rounds=rounds, folder=folder, say=None)


# Checkpoints.


_FORCE = tuple(name for option in prune.params for name in option.opts if name == "--force")


def _prune(folder: Path, *options: object) -> None:
    source, out = folder / "model.safetensors", folder / "out.safetensors"
    palmette("prune", source, "-o", out, "--density", 0.3, *_FORCE, *options)


def _one_file(folder: Path) -> None:
    shutil.copy(EXAMPLE, folder / "model.safetensors")


def _over_another(folder: Path) -> None:
    _one_file(folder)
    palmette("prune", folder / "model.safetensors", "-o", folder / "out.safetensors", "--density", 0.8)


def _hub_folder(folder: Path) -> None:
    (folder / "model").mkdir()
    shutil.copy(EXAMPLE, folder / "model" / "model.safetensors")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "tokenizer.json").write_text("[]" * 100)


def _prune_folder(folder: Path) -> None:
    palmette("prune", folder / "model", "-o", folder / "out", "--density", 0.3)


def measured(path: Path) -> str:
    """What `palmette measure` says of a file or folder, but for its name."""
    said = json.loads(palmette("measure", path, "--json"))
    return json.dumps({name: value for name, value in said.items() if name not in ("path", "file", "source")})


def _outputs(folder: Path) -> dict[str, str]:
    return {p.name: measured(p) for p in (folder / "out.safetensors", folder / "out") if p.exists()}


def _packed(folder: Path) -> dict[str, list[str]]:
    path = folder / "out.safetensors"
    return {path.name: state_of(pm.load(path))} if path.exists() else {}


def state_of(state: Mapping[str, Any]) -> list[str]:
    """Lines that differ wherever two state dicts differ."""
    return [f"{n} {hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest()}" for n, v in state.items()]


def _get(name: str, folder: Path) -> None:
    read_from_here()
    palmette("data", "get", name, "--data-dir", folder / "data")


SCENARIOS = {
    s.name: s
    for s in (
        Scenario("run", _run, records),
        Scenario("run-search", _search, records),
        Scenario("sweep", _sweep, records, _grid),
        Scenario("prune_and_retrain", _retrain, records),
        Scenario("prune", _prune, _outputs, _one_file),
        Scenario("prune-again", _prune, _outputs, _over_another),
        Scenario("prune-folder", _prune_folder, _outputs, _hub_folder),
        Scenario("prune-pack", lambda folder: _prune(folder, "--pack"), _packed, _one_file),
        Scenario("data-get-files", partial(_get, "MNIST"), partial(images, "MNIST")),
        Scenario("data-get-archive", partial(_get, "CIFAR10"), partial(images, "CIFAR10")),
    )
}
