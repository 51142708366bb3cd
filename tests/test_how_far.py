"""Tables and numbers of results/how-far/README.md are those of its archives."""

import re

import pytest
from on_record import schedule_rows, searches
from results.records import HERE

from palmette.reports.reading import whole_runs
from palmette.studies.search import attempts_of

FOLDER = HERE / "how-far"
PAGE = (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", ["schedules", "schedules-2"])
def test_tables_are_those_of_the_archives(name):
    (table,) = re.findall(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", PAGE, re.DOTALL)
    assert table.splitlines()[2:] == schedule_rows(FOLDER / f"{name}.tar.xz")


def test_numbers_in_the_text_are_those_of_the_first_archive():
    found = searches(FOLDER / "schedules.tar.xz")
    sap, lt, interpolate = (found[n] for n in ("SAP (p=1, q=2), gamma=2", "Fixed Ratio", "Interpolate"))
    fit = {name: rows for name, rows in found.items() if rows[:, 3].mean() <= 1.25}
    assert min(fit, key=lambda name: fit[name][:, 1].mean()) == "SAP (p=1, q=2), gamma=2"
    assert f"It needs {sap[:, 1].mean():g} retrainings, confirmation included" in PAGE
    assert f"cuts of 20 % (Fixed Ratio) {lt[:, 1].mean():g}." in PAGE
    far = [f"{found[name][:, 3].mean():.2f}" for name in ("Bisect", "Fixed Ratio, ratio=0.7")]
    assert f"end with {far[0]} and\n  {far[1]} times" in PAGE
    assert f"after {interpolate[:, 0].mean():g} retrainings" in PAGE
    assert f"took {interpolate[:, 1].mean():g} in all" in PAGE
    assert f"{found['SAP (p=0.5, q=1)'][:, 2].mean():.1f} % of the weights remain" in PAGE


def test_the_baseline_is_the_first_failure_of_cuts_of_a_fifth():
    runs = [
        records
        for spec, records in whole_runs([FOLDER / "schedules.tar.xz"])[0].values()
        if spec.ratio == 0.2 and spec.method == "lottery-ticket"
    ]
    first = [next(a.round for a in attempts_of(records) if not records[a.round]["good"]) for records in runs]
    assert f"needs {min(first)} to {max(first)} retrainings" in PAGE
