import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from palmette.cli import main
from palmette.measures.axioms import PROPERTIES
from palmette.measures.classic import MEASURES


def run(*args, columns=80):
    return CliRunner().invoke(main, ["axioms", *args], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [80, 120])
def test_table_has_a_row_for_each_measure_and_marks_differences(columns):
    result = run(columns=columns)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert all(len(line) <= columns for line in lines)
    assert "\x1b" not in result.output
    assert re.split("  +", lines[1].strip()) == ["measure", *(p.name for p in PROPERTIES.values())]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2 : 2 + len(MEASURES)]}
    assert list(rows) == list(MEASURES)
    assert rows["gini"] == ["✓"] * 6
    assert rows["hoyer"] == ["✓", "✓", "✓", "✗", "✓", "✗", "!"]
    assert sum(row.count("!") for row in rows.values()) == 4
    assert "published ✓, here ✗: appending a zero: [0, 1] -> [0, 1, 0]" in result.output
    assert "l2/l1    D3  published ✗, here ✓: holds on " in result.output


@pytest.mark.parametrize("name", MEASURES)
def test_one_measure_by_name_including_names_like_options(name):
    result = run(name)
    assert result.exit_code == 0
    assert result.output.startswith(f"{name}: {MEASURES[name].range}")
    assert re.findall(r"^([DP]\d)  ", result.output, flags=re.M) == ["D1", "D2", "D3", "D4", "P1", "P2"]


def test_an_unknown_measure_lists_the_known_ones():
    for name in ("ginni", "-lq"):
        result = run(name)
        assert result.exit_code == 2
        assert f"no measure is called '{name}'; there are l0, l0_eps, -l1," in result.output


def test_a_terminal_without_unicode_prints_words():
    ran = subprocess.run(
        [sys.executable, "-m", "palmette", "axioms", "gini"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert "D1  Robin Hood   yes  holds on " in ran.stdout
