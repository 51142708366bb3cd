"""Small masks, parts of measurements, data sets and runs, made in code."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import pickle
import re
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.torch import save as safetensors_bytes

from campaign.corpus.seeds import Seed, Target, member_of, written
from campaign.corpus.weights import masks, small_state


def _load_masks(file: Path) -> None:
    from palmette.pruning.masks import Masks

    Masks.load(file)


def _parts() -> list[Seed]:
    from palmette.checkpoints.parts import measure_part

    def write(file: Path) -> None:
        file.write_bytes(safetensors_bytes({name: one.half() for name, one in small_state().items()}))
        file.write_text(json.dumps(measure_part(file, 1, 1)))

    whole = written(write, ".safetensors")

    def sealed(text: bytes) -> bytes:
        try:
            part = json.loads(text)
            content = json.dumps({**part, "sha256": ""}, sort_keys=True).encode()
        except (ValueError, TypeError, RecursionError):
            return text
        return json.dumps(part | {"sha256": hashlib.sha256(content).hexdigest()}).encode()

    return [Seed(whole), Seed(whole, sealed), Seed(whole, sealed)]


def _merge(file: Path) -> None:
    from palmette.checkpoints.parts import merge_parts

    merge_parts([file])


def _idx() -> list[Seed]:
    whole = struct.pack(">HBB2I", 0, 8, 2, 3, 4) + bytes(12)
    return [Seed(whole), Seed(gzip.compress(whole)), Seed(whole, gzip.compress)]


def _read_idx(file: Path) -> None:
    from palmette.training.data.idx import read_idx

    read_idx(file)


def _batches() -> list[Seed]:
    batch = {b"data": np.zeros((2, 3), "u1"), b"labels": [1, 2], b"filenames": [b"a", b"b"]}
    return [Seed(pickle.dumps(batch, protocol)) for protocol in (0, 2, 4)]


def _read_batch(file: Path) -> None:
    from palmette.training.data.plain_pickle import load_plain

    load_plain(file)


def _own() -> list[Seed]:
    parts = {
        "x_train": np.zeros((4, 3, 3), "u1"),
        "y_train": np.array([0, 1, 0, 1]),
        "x_test": np.zeros((2, 3, 3), "u1"),
        "y_test": np.array([0, 1]),
    }
    whole = written(lambda file: np.savez_compressed(file, **parts), ".npz")  # type: ignore[arg-type]
    return [Seed(whole), member_of(whole, "x_train.npy"), member_of(whole, "y_test.npy", zipfile.ZIP_DEFLATED)]


def _read_own(file: Path) -> None:
    from palmette.training.data.user_images import read_npz

    read_npz(file)


def _pictures() -> list[Seed]:
    from PIL import Image

    picture, seeds = Image.fromarray(np.arange(192, dtype="u1").reshape(8, 8, 3)), []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM", "TIFF"):
        buffer = io.BytesIO()
        picture.save(buffer, kind)
        seeds.append(Seed(buffer.getvalue()))
    return seeds


def _read_picture(file: Path) -> None:
    from palmette.training.data.pictures import read_pictures

    read_pictures([file])


@cache
def _run_files() -> dict[str, bytes]:
    """Files of a finished search of two rounds."""
    from palmette.studies.experiment import Experiment
    from palmette.studies.running import run

    with TemporaryDirectory() as folder:
        experiment = Experiment(model="linear", method="lottery-ticket", epochs=1, rounds=1, tolerance="0.5")
        path = run(experiment, folder).path
        files = [file for file in path.rglob("*") if file.is_file() and file.name != "finished.json"]
        return {str(file.relative_to(path)): file.read_bytes() for file in files}


def _run_seeds(name: str) -> Callable[[], list[Seed]]:
    return lambda: [Seed(_run_files()[name])]


def _line_seeds(name: str) -> Callable[[], list[Seed]]:
    """Sealed lines, and lines of earlier versions, whose damage no seal shows."""
    return lambda: [*_run_seeds(name)(), Seed(re.sub(rb', "(seal|masks)": "[0-9a-f]*"', b"", _run_files()[name]))]


def _runs(folder: Path) -> None:
    """A run, and a whole one next to it."""
    from palmette.studies.experiment import Experiment
    from palmette.studies.running import run

    for name, content in _run_files().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    run(Experiment(model="linear", epochs=1, rounds=0), folder.parent / "whole")


def _show(file: Path) -> None:
    """Show two runs: damage to one never hides the other."""
    from click.testing import CliRunner

    from palmette.cli.show import show
    from palmette.reports.html.page import page
    from palmette.reports.limits import how_far
    from palmette.reports.reading import whole_runs
    from palmette.reports.tables import as_table, summary

    folder = file.parent.parent
    found, _ = whole_runs([folder])
    if not any(path.name == "whole" for path in found):
        raise AssertionError("the whole run was left out")
    runs = list(found.values())
    as_table(summary(runs)), how_far(runs)
    chosen = zlib.crc32(file.read_bytes())
    if chosen % 500 == 0:  # a second each
        page(runs)
    for more in ((), ("--json",)) if chosen % 20 == 0 else ():  # 30 ms each
        result = CliRunner().invoke(show, [str(folder), *more], catch_exceptions=False)
        if result.exit_code:
            raise AssertionError(f"show ended with {result.exit_code}: {result.output[:200]}")


def _archives() -> list[Seed]:
    def packed(compression: str, content: dict[str, bytes]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as made:  # type: ignore[call-overload]
            for name, part in content.items():
                info = tarfile.TarInfo(f"run/{name}")
                info.size = len(part)
                made.addfile(info, io.BytesIO(part))
        return buffer.getvalue()

    plain = packed("", _run_files())
    return [Seed(packed("xz", _run_files())), Seed(plain, lambda part: lzma.compress(part, preset=0))]


def _read_archive(file: Path) -> None:
    from palmette.studies.disk import archives

    with TemporaryDirectory() as scratch:
        tempfile.tempdir = scratch  # it keeps what it unpacks until Python exits
        try:
            archives._unpacked.__wrapped__(file, 0)
        finally:
            tempfile.tempdir = None


OTHERS: dict[str, Target] = {
    "masks": Target("a.masks.safetensors", _load_masks, masks),
    "parts": Target("a.json", _merge, _parts),
    "idx": Target("a-idx2-ubyte", _read_idx, _idx),
    "batch": Target("data_batch_1", _read_batch, _batches),
    "own-npz": Target("own.npz", _read_own, _own),
    "picture": Target("a.png", _read_picture, _pictures),
    "settings": Target("run/experiment.toml", _show, _run_seeds("experiment.toml"), _runs),
    "records": Target("run/records.jsonl", _show, _line_seeds("records.jsonl"), _runs),
    "timings": Target("run/timings.jsonl", _show, _line_seeds("timings.jsonl"), _runs),
    "archive": Target("runs.tar.xz", _read_archive, _archives),
}
"""Readers of masks, parts, data sets and runs."""
