"""Parts of a checkpoint, measured by different processes, add up to the report of one process."""

import base64
import json
import zlib
from contextlib import suppress

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import palmette as pm
from palmette.checkpoints import measuring, parts
from palmette.checkpoints.parts import measure_part, merge_parts
from palmette.cli import main
from palmette.measures import spectrum
from palmette.pruning.sources.stored import within

KINDS = {
    "bfloat16": [torch.bfloat16],
    "float32": [torch.float32],
    "mixed": [torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn],
}


def checkpoint(file, dtypes, layers=7):
    torch.manual_seed(0)
    shapes = [(24, 40 + 16 * i) for i in range(layers)]
    tensors = {
        f"{i}.weight": (torch.randn(s) * 4).round() / 64 * 1.5**i for i, s in enumerate(shapes)
    }  # with ties
    tensors["3.weight"][2] = 0
    tensors |= {"norm.weight": torch.ones(8), "[odd].weight": torch.randn(3, 5) / 50}
    kinds = {name: dtypes[i % len(dtypes)] for i, name in enumerate(tensors)}
    save_file({name: tensor.to(kinds[name]) for name, tensor in tensors.items()}, file)
    return file


@pytest.mark.parametrize(("few", "many"), [(0, 3), (500, 20), (10**6, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_merged_parts_equal_the_report_of_one_process(tmp_path, monkeypatch, kind, few, many):
    monkeypatch.setattr(spectrum, "EXACT", few)
    file = checkpoint(tmp_path / "a.safetensors", KINDS[kind])
    settings = {"budget": pm.Sap(p=1.0, q=2.0), "exclude": ["1.*"]}
    parts = [measure_part(file, k, many, **settings) for k in range(1, many + 1)]
    through_json = [json.loads(json.dumps(part, allow_nan=False)) for part in reversed(parts)]
    assert merge_parts(through_json) == pm.how_compressible(file, **settings)


def test_16_bit_weights_are_not_read_again(tmp_path):
    file = checkpoint(tmp_path / "a.safetensors", KINDS["bfloat16"])
    whole = pm.how_compressible(file)
    parts = [measure_part(file, k, 2) for k in (1, 2)]
    file.unlink()
    assert merge_parts(parts) == whole
    for name, part in zip("ab", parts, strict=True):
        (tmp_path / name).write_text(json.dumps(part))
    assert merge_parts([tmp_path / "a", str(tmp_path / "b")]) == whole


def run(*args):
    return CliRunner().invoke(main, ["measure", *map(str, args)])


def refused(*args):
    result = run(*args)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return result.stderr


def test_command_writes_and_merges_parts(tmp_path):
    file = checkpoint(tmp_path / "a.safetensors", KINDS["mixed"])
    files = [tmp_path / f"part{k}.json" for k in (1, 2, 3)]
    for k, part in enumerate(files, 1):
        assert run(file, "--part", f"{k}/3", "-o", part).exit_code == 0
    merged, whole = (json.loads(run(*paths, "--json").stdout) for paths in (files, [file]))
    assert merged | {"path": ""} == whole | {"path": ""}
    assert run(*files).stdout == run(file).stdout

    assert "part 2 of 3 is missing; there are 1, 3" in refused(files[0], files[2])
    assert "part 2 of 3 was given twice" in refused(*files, files[1])
    assert "leave out --p" in refused(*files, "--p", "0.7")
    assert "go together" in refused(file, "--part", "1/2")
    assert "-o must name a .json file" in refused(file, "--part", "1/2", "-o", tmp_path / "part1")
    assert "such as 2/4, got '5'" in refused(file, "--part", "5", "-o", files[0])
    assert "such as 2/4, got 5/4" in refused(file, "--part", "5/4", "-o", files[0])
    assert "PATH must be one checkpoint, or all parts of one (.json), got 2 paths" in refused(file, file)
    other = tmp_path / "other.json"
    run(file, "--part", "2/3", "-o", other, "--gamma", "2")
    assert "agree in 'gamma'" in refused(files[0], other, files[2])
    for damage in ({"few": {"float32": "!!!"}}, {}):
        part = json.loads(files[1].read_text()) | {"rest": damage}
        other.write_text(json.dumps(part))
        assert "other.json' is damaged; measure it again" in refused(files[0], other, files[2])
        other.write_text(json.dumps(part | {"sha256": parts._digest(part)}))
        assert "part 2 of 3 is damaged; measure it again" in refused(files[0], other, files[2])
    assert "no file at 'missing.json'" in refused("missing.json")
    other.write_text('{"a": 1}')
    assert "is not a part of a measurement" in refused(other)
    for lost in ("of", "checkpoint", "layers"):
        other.write_text(json.dumps({k: v for k, v in json.loads(files[1].read_text()).items() if k != lost}))
        assert "is damaged; measure it again" in refused(files[0], other, files[2])
    other.write_text("[" * 100_000)
    assert "is not a part of a measurement" in refused(other)
    file.unlink()
    assert "is missing; merging reads weights of more than 16 bits once more" in refused(*files)
    checkpoint(file, KINDS["float32"])
    assert "has changed since the parts were measured" in refused(*files)


def test_parts_of_different_checkpoints_are_refused(tmp_path):
    files = [checkpoint(tmp_path / f"{name}.safetensors", KINDS["bfloat16"]) for name in "ab"]
    tensors = load_file(files[1])
    tensors["0.weight"][0, 0] += 1
    save_file(tensors, files[1])
    parts = [measure_part(file, k, 2) for k, file in enumerate(files, 1)]
    with pytest.raises(ValueError, match="part 2 is of other weights than part 1"):
        merge_parts(parts)
    with pytest.raises(ValueError, match="got none"):
        merge_parts([])
    with pytest.raises(TypeError, match="budget must be a Sap"):
        measure_part(files[0], 1, 2, budget=pm.FixedRatio(0.5))


@pytest.mark.parametrize("size", ["1GB", 10**8, 1e9])
def test_memory_must_be_a_number_of_bytes(tmp_path, size):
    with pytest.raises(ValueError, match=f"memory must be at least 500 MB, in bytes, got {size!r}$"):
        pm.how_compressible(checkpoint(tmp_path / "a.safetensors", KINDS["float32"]), memory=size)


@pytest.mark.parametrize("size", ["1", "1TB", "-1GB", "", "100MB"])
def test_memory_option_must_be_a_sufficient_size(tmp_path, size):
    said = refused(checkpoint(tmp_path / "a.safetensors", KINDS["float32"]), "--memory", size)
    assert "memory must be" in said
    assert "could not be read" not in said


def test_memory_limits_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        for threads, room, used in ((48, 10**9, 6), (3, 10**9, 3), (48, 5 * 10**8, 1)):
            torch.set_num_threads(threads)
            with within(room):
                assert torch.get_num_threads() == used
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_every_changed_value_is_noticed(tmp_path):
    file = checkpoint(tmp_path / "a.safetensors", KINDS["mixed"], layers=5)
    part = measure_part(file, 1, 1)

    def changed(value):
        if isinstance(value, dict):
            for key in value:
                yield from ({**value, key: other} for other in changed(value[key]))
        elif isinstance(value, list):
            yield value[1:] if value else [0]
            for i, one in enumerate(value[:3]):
                yield from ([*value[:i], other, *value[i + 1 :]] for other in changed(one))
        else:
            yield from (other for other in (None, [], -1, 10**400, "x") if other != value)

    every = list(changed(part))
    assert len(every) > 300
    for one in every:
        with pytest.raises(ValueError, match=r"is damaged; measure it again|is not a part of a measurement"):
            merge_parts([one])
        sealed = one | {"sha256": parts._digest(one)}
        with suppress(ValueError, OSError):  # made on purpose: it may be right, and raises no error of a library
            str(merge_parts([sealed]))


def test_spectra_of_more_numbers_than_there_are_are_damage(tmp_path):
    part = measure_part(checkpoint(tmp_path / "a.safetensors", KINDS["mixed"], layers=5), 1, 1)
    bomb = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    part["rest"]["few"] = {"float32": bomb}
    with pytest.raises(ValueError, match="part 1 of 1 is damaged; measure it again"):
        merge_parts([part | {"sha256": parts._digest(part)}])


@pytest.mark.parametrize("room", [0, 3000])
def test_magnitudes_of_very_many_layers_are_read_again(tmp_path, monkeypatch, room):
    checkpoint(tmp_path / "a.safetensors", KINDS["mixed"])
    whole = pm.how_compressible(tmp_path / "a.safetensors")
    monkeypatch.setattr(measuring, "_ROOM", room)
    found = measuring.look
    monkeypatch.setattr(parts, "look", lambda *given, **named: found(*given, **(named | {"chunk": 8})))
    measured = [measure_part(tmp_path / "a.safetensors", part, 2) for part in (1, 2)]
    kept = [layer["counts"] is not None for part in measured for layer in part["layers"]]
    assert any(kept) == (room > 0)
    assert merge_parts(measured) == whole
