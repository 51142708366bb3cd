"""A sample of the campaign: seconds of it in every run of the tests, minutes in the slow ones."""

import os
import random
import signal

import pytest
import torch
from campaign.__main__ import rows
from campaign.child import Child, Ended, forked
from campaign.damage import SUBJECTS, fault, read
from campaign.kills import fault_of_end, fault_of_look, undisturbed
from campaign.kills import killed as killed_in
from campaign.ledger import Ledger
from campaign.power import Disk, written
from campaign.scenarios import SCENARIOS, meanings, refill
from campaign.tracing import Event, Point, Tracer, points

ROWS = rows()
LONG = {"large"}  # 12 GB of memory


@pytest.mark.parametrize(
    ("row", "case"),
    [
        ("kills", "data-get-files/1"),
        ("power-cuts", "data-get-archive/8"),
        ("damage", "packed/0"),
        ("optimizers", "AdamW, plain"),
        ("values", "cuts take the smallest, bfloat16, 0"),
        ("overlap", "prune-pack/1"),
    ],
)
def test_a_case_survives(row, case, tmp_path):
    result = next(c for c in ROWS[row].cases(0) if c.name == case).run(tmp_path)
    assert result.tried
    assert result.lost == ()


@pytest.mark.parametrize(("name", "share"), [("prune_and_retrain", 0.7), ("prune-folder", 1)])
def test_a_killed_command_resumes_to_the_files_of_an_undisturbed_one(name, share, tmp_path):
    scenario, place = SCENARIOS[name], tmp_path / "work"
    known = undisturbed(scenario, place)
    refill(place, known.before)
    point = Point(int(share * len(known.events)))  # 1: never, and all is done
    assert forked(lambda: killed_in(scenario, place, point)).why == ("signal 9" if share < 1 else "")
    assert fault_of_look(forked(lambda: scenario.look(place)), known) is None
    assert fault_of_end(forked(lambda: scenario.command(place)), place, known) is None


def test_checkpoints_are_compared_but_for_the_runs_that_trained_together(tmp_path):
    for name, number, company in (("a", 1, ["x"]), ("b", 1, ["x", "y"]), ("c", 2, ["x"])):
        (tmp_path / name).mkdir()
        torch.save({"number": number, "company": company}, tmp_path / name / "0001.pt")
    a, b, c = (meanings(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.slow
@pytest.mark.parametrize("row", sorted(ROWS.keys() - LONG))
def test_a_sample_of_every_row_survives(row, tmp_path):
    results = dict(Ledger(tmp_path, ROWS[row], seed=0).run(sample=4))
    assert sum(result.tried + result.refused for result in results.values())
    assert {case: result.lost for case, result in results.items() if result.lost} == {}


@pytest.mark.parametrize("subject", ["pruned", "packed"])
def test_damage_is_looked_for_again_in_every_trial(subject, tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    SUBJECTS[subject].make(place)
    first, again = (read(SUBJECTS[subject], place) for _ in range(2))
    assert {ended.how for ended in first.values()} == {"done"}
    assert again == first


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (Ended("done", 1), None),
        (Ended("done", 2), "a reader is told something else"),
        (Ended("refused", why="RunDamaged: line 1 is damaged"), None),
        (Ended("refused", why="the run folder x has records, but no experiment.toml; restore the file"), None),
        (
            Ended("refused", why="x exists; choose a new folder"),
            "a reader refused (x exists; choose a new folder)",
        ),
        (Ended("raised", why="KeyError"), "a reader raised (KeyError)"),
    ],
)
def test_a_refusal_survives_damage_only_if_it_names_it(seen, expected):
    assert fault({"a reader": Ended("done", 1)}, Ended("done", {"a reader": seen}), times=False) == expected


# The attacks themselves: they must do harm.


def write_twice(folder):
    with open(folder / "a", "w") as file:
        file.write("old")
        file.flush()
        os.fsync(file.fileno())
        file.truncate(1)
    with open(folder / "b.partial", "wb", buffering=0) as file:
        file.write(b"new")
    os.replace(folder / "b.partial", folder / "a")


def traced(folder):
    tracer = Tracer(folder)
    tracer.install()
    write_twice(folder)
    return tracer.events


def killed(folder, point):
    Tracer(folder, point).install()
    write_twice(folder)


def test_a_trace_has_every_operation_in_order(tmp_path):
    events = forked(lambda: traced(tmp_path)).value
    kinds = ["create", "write", "sync", "truncate", "create", "write", "rename"]
    assert [event.kind for event in events] == kinds
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_child_dies_at_each_point_of_the_trace(tmp_path):
    found = []
    for point in points(forked(lambda: traced(tmp_path)).value):
        for file in tmp_path.iterdir():
            file.unlink()
        assert forked(lambda point=point: killed(tmp_path, point)).why == f"signal {signal.SIGKILL:d}"
        found.append({file.name: file.read_bytes() for file in tmp_path.iterdir()})
    a = {"a": b"o"}
    assert found == [
        *({}, {"a": b""}, {"a": b"o"}, {"a": b"old"}, {"a": b"old"}, a),
        *(a | {"b.partial": b""}, a | {"b.partial": b"n"}, a | {"b.partial": b"new"}),
    ]


def test_a_child_stops_at_a_point_and_continues(tmp_path):
    child = Child(lambda: killed(tmp_path, Point(2, signal=signal.SIGSTOP)))
    assert child.stopped()
    assert (tmp_path / "a").read_bytes() == b"old"
    child.resume()
    assert child.wait().how == "done"
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_child_that_hangs_or_raises_says_so():
    assert forked(lambda: signal.pause(), seconds=1).how == "hung"
    assert forked(lambda: {}["key"]).how == "raised"
    assert forked(lambda: int("x")).how == "refused"


REPLACED = (
    Event("create", "b"),
    Event("write", "b", data=b"new"),
    Event("rename", "b", "a"),
)


def states(events, *ways):
    disk = Disk({"a": b"old"})
    for event in events:
        disk.apply(event)
    return [disk.after(way, random.Random(0)) for way in ways]


def test_a_power_cut_undoes_what_was_not_synced():
    lost, names, contents = states(REPLACED, "nothing unsynced", "names only", "contents only")
    assert (lost, names, contents) == ({"a": b"old"}, {"a": b""}, {"a": b"old"})


def test_a_power_cut_leaves_what_was_synced():
    events = (*REPLACED[:2], Event("sync", "b"), REPLACED[2], Event("sync", "."))
    ways = ("nothing unsynced", "names only", "contents only", "torn", "mixed")
    assert states(events, *ways) == [{"a": b"new"}] * 5


def test_a_content_that_was_not_synced_may_be_torn():
    (torn,) = states(REPLACED, "torn")
    assert torn["a"] != b"new"
    assert len(torn["a"]) <= 3


def test_writes_and_truncations_give_the_content_of_a_file():
    events = [Event("write", "a", offset=2, data=b"xy"), Event("truncate", "a", offset=3)]
    assert written(b"", events) == b"\0\0x"
