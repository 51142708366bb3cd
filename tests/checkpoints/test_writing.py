"""A cut file and its masks: both are of one cut, or that they are not is noticed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
from killing import die, killed_in
from safetensors.torch import load_file, save_file
from torch import nn

import palmette as pm
from palmette.checkpoints.prune import prune_checkpoint
from palmette.files import replaced


def saved(file, seed=0):
    torch.manual_seed(seed)
    save_file(nn.Linear(64, 32).state_dict(), file)
    return file


def cut(folder, ratio, name="out"):
    """Cut the same weights as always to a file of that name; return how many are left."""
    source = saved(folder / "in.safetensors")
    out = folder / f"{name}.safetensors"
    return prune_checkpoint(source, out, budget=pm.FixedRatio(ratio), scope="layer").whole.after


def kept(folder):
    return pm.how_compressible(folder / "out.safetensors").whole.d


def dies_at(call, name, *, after):
    """Make the process kill itself at a call of a method of `Path`."""
    calls, method = iter(range(99)), getattr(Path, name)

    def counted(self, *arguments, **options):
        now = next(calls) == call
        if now and not after:
            die()
        result = method(self, *arguments, **options)
        if now:
            die()
        return result

    setattr(Path, name, counted)


def why_refused(read):
    try:
        read()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("there", ["an earlier cut", "a cut of an earlier version", "weights", "nothing"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", [0, 1])
def test_a_kill_between_two_renames_leaves_no_weights_beside_other_masks(tmp_path, there, after, call):
    out, masks = tmp_path / "out.safetensors", tmp_path / "out.masks.safetensors"
    old, new = cut(tmp_path, 0.5), cut(tmp_path, 0.9, "new")
    if there == "a cut of an earlier version":
        bits = pm.Masks.load(masks).state_dict()
        text = '{"weight": [32, 64]}'
        save_file(bits["bits"], masks, {"format": "palmette-masks-1", "shapes": text})
    if there != "an earlier cut":
        save_file(load_file(out), out, {"format": "pt"})
    if there in ("weights", "nothing"):
        masks.unlink()
    if there == "nothing":
        out.unlink()

    def killed():
        dies_at(call, "replace", after=after)
        cut(tmp_path, 0.9)

    assert killed_in(killed)
    expected = {"weights": (2048, old)}.get(there, (old,))
    if not out.exists():
        assert there == "nothing"
    elif not masks.exists():  # the weights are whole, of before or after the kill
        assert load_file(out)["weight"].count_nonzero() in (*expected, new)
    else:
        said = [why_refused(read) for read in (lambda: kept(tmp_path), lambda: pm.Masks.load(masks))]
        if said == ["", ""]:
            assert kept(tmp_path) == pm.Masks.load(masks).kept == load_file(out)["weight"].count_nonzero()
        assert all("has masks of other weights than out.safetensors" in why for why in said if any(said))
    assert cut(tmp_path, 0.9) == kept(tmp_path) == new
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_packed_file_that_replaces_a_pair_is_never_beside_its_masks(tmp_path, after):
    out, masks = tmp_path / "out.safetensors", tmp_path / "out.masks.safetensors"
    old = cut(tmp_path, 0.5)

    def killed():
        dies_at(2, "replace", after=after)  # the last: it puts the file in its place
        prune_checkpoint(tmp_path / "in.safetensors", out, budget=pm.FixedRatio(0.9), scope="layer", pack=True)

    assert killed_in(killed)
    assert not masks.exists()
    assert ("weight:values" in load_file(out)) == after
    assert kept(tmp_path) == (205 if after else old)


def test_a_temporary_file_of_a_living_process_is_kept(tmp_path):
    with replaced(tmp_path / "out.safetensors") as ours:
        ours.touch()
    theirs = tmp_path / ours.name.replace(str(os.getpid()), str(os.getppid()))
    theirs.touch()
    cut(tmp_path, 0.5)
    assert theirs.exists()


def test_masks_of_another_cut_are_noticed(tmp_path):
    cut(tmp_path, 0.5)
    cut(tmp_path, 0.9, "other")
    (tmp_path / "other.masks.safetensors").replace(tmp_path / "out.masks.safetensors")
    with pytest.raises(
        ValueError, match=r"out\.masks\.safetensors next to it has masks of other weights than out"
    ):
        kept(tmp_path)


def test_weights_that_were_trained_since_keep_their_masks(tmp_path):
    after = cut(tmp_path, 0.5)
    masks, weights = pm.Masks.load(tmp_path / "out.masks.safetensors"), load_file(tmp_path / "out.safetensors")
    weights["weight"] *= 2
    save_file(weights, tmp_path / "out.safetensors")
    assert kept(tmp_path) == masks.kept == after


@pytest.mark.parametrize("count", [150, pytest.param(None, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_masks_is_accepted(tmp_path, count):
    cut(tmp_path, 0.5)
    file, chance = tmp_path / "out.masks.safetensors", random.Random(0)
    content, masks = file.read_bytes(), pm.Masks.load(tmp_path / "out.masks.safetensors")
    places = range(len(content))
    for place in places if count is None else chance.sample(places, count):
        flipped = bytearray(content)
        flipped[place] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)
        for read in (lambda: pm.Masks.load(file) == masks, lambda: kept(tmp_path) == masks.kept):
            assert "out.masks.safetensors" in why_refused(read) or read(), place


def test_equal_cuts_give_equal_files(tmp_path):
    cut(tmp_path, 0.5)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    cut(tmp_path, 0.5)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
