"""Pickles read without calling anything."""

import pickle
from io import BytesIO

import pytest

from palmette.checkpoints.formats.inert import Call, Name, read_inert

PLAIN = {"a": [1, -2.5, None, True, b"x", "é", ("t", (1, 2))], 3: {"b": 1 << 80}, ("c", 1): bytearray(b"y")}


def read(program, why_not=lambda name: ""):
    return read_inert(BytesIO(program), why_not)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_read_as_python_reads_it(protocol):
    assert read(pickle.dumps(dict(list(PLAIN.items())[:2]), protocol)) == dict(list(PLAIN.items())[:2])


def test_calls_are_noted_and_not_made():
    found = read(b"cos\nsystem\n(S'rm'\ntR}S'a'\nI1\nsb.")
    assert isinstance(found, Call)
    assert (found.name, found.args, found.state) == ("os.system", (b"rm",), {b"a": 1})
    assert read(b"cos\nsystem\n.") == Name("os.system")
    with pytest.raises(ValueError, match=r"no os\.system here"):
        read(b"cos\nsystem\n.", lambda name: f"no {name} here")


def test_programs_cost_no_more_than_their_bytes():
    bombs = {
        "memo": b"]r\xff\xff\xff\x7f0N.",  # an index of 2^31 for a memo of one entry
        "array": b"c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x7f\x85R.",
        "key": b"}K\x00" + b"\x85" + b"q\x01h\x01\x86" * 64 + b"Ns.",  # a key of 2^64 parts, to be hashed
    }
    assert [type(read(program)) for program in bombs.values()] == [type(None), Call, dict]
    keys = {
        "long": b"(" + b"K\x01" * 9 + b"tq\x000}h\x00Ns.",  # tuples are hashed anew each time
        "number": b"}\x8a\x09" + b"\x7f" * 9 + b"Ns.",
    }
    assert [read(program) for program in keys.values()] == [{}, {}]
    text = b"X\x90\x01\x00\x00" + b"a" * 400 + b"q\x00"
    pairs = b"](" + b"K\x01K\x02\x86" * 99 + b"e"
    for program in (
        b"c_codecs\nencode\nq\x010" + text + b"0(" + b"h\x01h\x00\x85R" * 9 + b"l.",  # 3,600 letters of 400
        b"ccollections\nOrderedDict\nq\x010" + pairs + b"q\x000(" + b"h\x01h\x00\x85R" * 99 + b"l.",
    ):
        with pytest.raises(ValueError, match="copies the same values again"):
            read(program)
    with pytest.raises(ValueError, match="without a name"):
        read(b"X\xe8\x03\x00\x00" + b"a" * 1000 + b"X\x01\x00\x00\x00a\x93.")
    with pytest.raises(ValueError, match="but only 4 remain"):
        read(b"B\xff\xff\xff\x7fabc.")
    assert len(read(b"]" * 20_000 + b"a" * 19_999 + b".")) == 1  # no recursion


@pytest.mark.parametrize("program", [b"", b".", b"a.", b"0.", b"(s.", b"h\x01.", b"t.", b"NR.", b"\xff."])
def test_damaged_programs_raise_value_error(program):
    with pytest.raises(ValueError):
        read(program)
