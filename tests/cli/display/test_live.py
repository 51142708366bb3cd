"""Live table of `palmette run`: what fits on a screen, and the time left."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from palmette.cli.display.live import Live
from palmette.cli.display.pace import Pace
from palmette.cli.options import experiments
from palmette.studies.experiment import Experiment
from palmette.studies.observer import Progress
from palmette.studies.status import Standing
from palmette.training.loop import Score


def printed(width, thing):
    console = Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None)
    thing(console)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_numbers_are_never_truncated(width):
    planned = experiments(None, {"epochs": 200})
    ends = [
        "30 rounds are done",
        "the PQ Index has risen 2 times in a row, to 0.1234",
        "in use by process 7 on a host",
    ]
    record = {"round": 30, "test": {"accuracy": 1.0}, "retrained": {"pq_index": 0.1234, "density": 1.0}}

    def show(console):
        live = Live([Standing(e) for e in planned], [e.label for e in planned], console)
        for i in range(len(planned)):
            live.epoch(i, Progress(30, 200, 200, Score(0.1, 1.0), 1.0))
            live.recorded(i, record)
            if i < 9:
                live.end(i, ends[i % 3])
        console.print(live.render())

    screen = printed(width, show)
    rows = screen[1:13]
    assert all(len(line) <= width for line in screen)
    assert [row[: len(e.label)] for row, e in zip(rows, planned, strict=True)] == [e.label for e in planned]
    wide = ["0.1234"] if width >= 80 else []
    assert all(word in row for row in rows for word in ("30/30", "100.0%", *wide))
    assert not any("…" in row.partition("100.0%")[0] for row in [screen[0], *rows])
    if width >= 80:
        assert rows[0].rstrip().endswith(" done")
        assert rows[1].rstrip().endswith("2…" if width == 80 else "to…")
    assert screen[14].rstrip().endswith("12 of 12 runs done")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_row_shows_the_last_finished_round_and_apart_from_it_the_epoch(width):
    (e,) = experiments(None, {"method": "one-shot", "seed": "0", "epochs": 200})
    record = {"round": 3, "test": {"accuracy": 0.875}, "retrained": {"pq_index": 0.1234, "density": 0.5}}

    def show(console):
        live = Live([Standing(e)], ["One Shot"], console)
        live.recorded(0, record)
        live.epoch(0, Progress(4, 120, 200, Score(0.1, 0.31), 0.25))
        console.print(live.render())

    row = " ".join(printed(width, show)[1].split())
    index = " 0.1234" if width >= 80 else ""
    assert row == f"One Shot 0 3/30 50.0% 87.5%{index} epoch 120/200, train 31%"


def test_the_first_table_shows_the_state_of_each_run():
    (e,) = experiments(None, {"method": "one-shot", "seed": "0"})
    standings = [Standing(e), Standing(e, rounds=1), Standing(e, failure="diverged"), Standing(e, damage="torn")]
    screen = printed(80, lambda console: console.print(Live(standings, ["One Shot"] * 4, console).render()))
    assert [row.split("One Shot 0")[1].strip() for row in map(" ".join, map(str.split, screen[1:5]))] == [
        "", "1 round done", "failed", "damaged",
    ]  # fmt: skip


def test_the_first_table_shows_the_last_record_of_finished_and_resumed_runs():
    (e,) = experiments(None, {"method": "one-shot", "seed": "0"})
    last = {"round": 3, "test": {"accuracy": 0.875}, "retrained": {"pq_index": 0.1234, "density": 0.5}}
    standings = [Standing(e, rounds=4, last=last), Standing(e, rounds=4, stopped="30 rounds are done", last=last)]
    screen = printed(80, lambda console: console.print(Live(standings, ["One Shot"] * 2, console).render()))
    assert [" ".join(row.split()) for row in screen[1:3]] == [
        "One Shot 0 3/30 50.0% 87.5% 0.1234 4 rounds done",
        "One Shot 0 3/30 50.0% 87.5% 0.1234 done",
    ]


def test_runs_without_room_are_counted():
    planned = experiments(None, {"seed": "0..14"})  # 60 of them, and room for 16

    def show(console, at=0):
        live = Live([Standing(e) for e in planned], [e.label for e in planned], console)
        live.epoch(at, Progress(1, 1, 15, Score(0.1, 1.0), 1.0))
        console.print(live.render())

    assert [line.strip() for line in printed(80, show)[17:18]] == ["no room for 44 runs: 0 above, 44 below"]
    below = printed(80, lambda console: show(console, at=21))
    assert below[17].strip() == "no room for 44 runs: 20 above, 24 below"


def test_finished_runs_show_no_speed():
    (e,) = experiments(None, {"method": "one-shot", "seed": "0"})
    live = [Standing(e, rounds=31, stopped="30 rounds are done")]
    screen = printed(80, lambda console: console.print(Live(live, ["One Shot"], console).render()))
    assert screen[2].strip() == ""
    assert screen[3].rstrip().endswith("100%, 1 of 1 run done")


def test_long_names_leave_room_for_the_state():
    planned = experiments(None, {"epochs": 200})
    names = [f"SAP (p=0.5, q=1), learning_rate=0.{i}, weight_decay=0.0005" for i in range(len(planned))]

    def show(console):
        live = Live([Standing(e) for e in planned], names, console)
        live.end(0, "30 rounds are done")
        live.end(1, "diverged: its training loss is nan")
        console.print(live.render())

    screen = printed(80, show)
    assert all(len(line) <= 80 for line in screen)
    assert screen[1].startswith("…")
    assert "learning_rate=0.0, weight_decay=0.0005" in screen[1]
    assert screen[1].rstrip().endswith(" done")
    assert screen[2].rstrip().endswith(" diverged: its…")


def test_time_left_counts_the_work_of_this_command_and_learns_from_early_ends(monkeypatch):
    now = 100.0
    monkeypatch.setattr("palmette.cli.display.pace.time.monotonic", lambda: now)
    one = Experiment(epochs=9, rounds=9)  # ten units of work in each of ten rounds
    half_done = Standing(one, rounds=5)
    pace = Pace([half_done, Standing(one), Standing(one, rounds=10, stopped="all done")], ["a", "a", "b"])
    assert pace.seconds_left is None
    assert pace.fraction == pytest.approx(150 / 300)
    now += 20
    for _ in range(10):
        pace.reach(0, pace.done[0] + 1)
    assert pace.seconds_left == pytest.approx(2.0 * 140)
    pace.end(0)  # after 6 of 10 rounds: the other of its method may end there too
    assert pace.seconds_left == pytest.approx(2.0 * 60)
