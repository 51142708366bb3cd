"""Results of the campaign: cases on disk, and the table on the page about them."""

import re
from pathlib import Path

import pytest
from campaign.__main__ import main, rows
from campaign.ledger import Case, Ledger, Result, Row
from campaign.table import BEGIN, END, NOT_REACHED, table, write
from click.testing import CliRunner

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


def row(outcomes, goal=5):
    """A row whose case n loses what the n-th list of `outcomes` says, call by call."""
    cases = [Case(str(n), lambda folder, n=n: Result(2, outcomes[n].pop(0))) for n in range(len(outcomes))]
    return Row("row", "what is tried", goal, lambda seed: cases)


def test_only_what_is_missing_or_was_lost_runs_again(tmp_path):
    ledger = Ledger(tmp_path, row([[()], [("one",), ("two",), ()], [()]]), seed=0)
    ran = [[case for case, _ in ledger.run()] for _ in range(4)]
    assert ran == [["0", "1", "2"], ["1"], ["1"], []]
    assert (ledger.tally().tried, ledger.tally().lost) == (6, ())


@pytest.mark.parametrize(("goal", "tried"), [(4, "4"), (5, f"4 ({NOT_REACHED})")])
def test_the_table_says_what_was_lost_and_which_goal_was_missed(tmp_path, goal, tried):
    ledger = Ledger(tmp_path, row([[()], [("why",)]], goal), seed=0)
    assert len(list(ledger.run())) == 2
    assert table([ledger]).splitlines()[2:] == [f"| `row`: what is tried | {goal} | {tried} | 3 | 1 |"]


def test_a_page_gets_the_table_between_its_marks(tmp_path):
    page, ledger = tmp_path / "page.md", Ledger(tmp_path, row([[()]]), seed=0)
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    for _ in range(2):
        write(page, [ledger])
        assert page.read_text() == f"before\n{BEGIN}\n{table([ledger])}\n{END}after\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="needs the lines <!-- results: written by campaign -->"):
        write(page, [ledger])


def test_the_command_prints_and_writes_a_table_of_all_rows(tmp_path):
    (tmp_path / "page.md").write_text(BEGIN + END)
    arguments = ["--table", "--folder", str(tmp_path), "--page", str(tmp_path / "page.md")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "page.md").read_text() == f"{BEGIN}{result.output}\n{END}"
    assert result.output.count("| 0 (goal not reached) | 0 | 0 |") == len(rows())


def test_the_page_has_every_row_with_nothing_lost():
    part = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.strip().splitlines()[2:]]
    assert [re.match(r"`([\w-]+)`: ", what)[1] for what, *_ in lines] == [*rows()]
    for row, (what, goal, tried, survived, lost) in zip(rows().values(), lines, strict=True):
        count = int(tried.partition(" ")[0].replace(",", ""))
        assert row.what in what
        assert goal == f"{row.goal:,}"
        assert (NOT_REACHED in tried) == (count < row.goal), what
        assert (survived, lost) == (f"{count:,}", "0"), what
