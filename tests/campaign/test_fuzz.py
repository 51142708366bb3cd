"""Damaged files for every reader: a few of those that `python -m campaign fuzz-weights fuzz-others` makes."""

import random
import re

import pytest

pytest.importorskip("resource")

from campaign.corpus.kinds import KINDS
from campaign.mutations import mutated

from campaign import fuzz


@pytest.fixture(scope="module", autouse=True)
def worker_ends():
    yield
    while fuzz._RUNNING:
        fuzz._RUNNING.pop().why()


@pytest.mark.parametrize("kind", [kind for row in KINDS.values() for kind in row])
def test_no_reader_falls_for_a_damaged_file(kind):
    slow = kind in ("settings", "records", "timings", "archive", "config")
    result = fuzz.executed(kind, 0, 0, 5 if slow else 30)
    assert result.lost == ()


WITH_FILES = "safetensors pt onnx gguf npy npz index packed compacted masks parts batch"


def test_every_seed_is_a_valid_file(tmp_path):
    for kind in WITH_FILES.split():
        files = fuzz.Files(kind, 0, tmp_path / kind)
        for seed in files.seeds:
            files.file.write_bytes(seed.wrap(seed.part))
            files.target.read(files.file)


def test_what_readers_do_wrong_is_reported_with_the_number_that_repeats_it():
    result = fuzz.executed("broken_reader:BROKEN", 0, 0, 16, seconds=0.2)
    lost = "\n".join(result.lost)
    assert result.tried == 16
    found = re.findall(r"BROKEN 0 \d+, \d+ times: (KeyError|SIGABRT|took longer|printed an error)", lost)
    assert set(found) == {"KeyError", "SIGABRT", "took longer", "printed an error"}


def test_damage_is_the_same_for_the_same_seed():
    whole = bytes(range(200))
    first, again = ([mutated(random.Random(f"a {n}"), whole, [whole]) for n in range(50)] for _ in range(2))
    assert first == again
    assert sum(one != whole for one in first) > 45
