"""Tables and numbers of results/how-far/README.md are those of its archives."""

import re

import numpy as np
import pytest
from how_far import (
    by_the_rule,
    claim_rows,
    prediction_rows,
    schedule_rows,
    searches,
    verdict_lines,
    verdicts,
)
from prediction.predict import judged, networks
from results.records import HERE

from palmette.reports.reading import whole_runs
from palmette.studies.search import attempts_of

FOLDER = HERE / "how-far"
PAGE = (FOLDER / "README.md").read_text()


CLAIM = FOLDER / "claim.tar.xz"
TABLES = {
    "schedules": lambda: schedule_rows(FOLDER / "schedules.tar.xz", CLAIM),
    "claim": lambda: claim_rows(CLAIM),
    "prediction": lambda: prediction_rows(judged(networks(FOLDER))),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_those_of_the_archives(name):
    (table,) = re.findall(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", PAGE, re.DOTALL)
    assert table.splitlines()[2:] == TABLES[name]()


def test_every_search_of_the_claim_is_in_the_csv_file():
    assert (FOLDER / "claim.csv").read_text().splitlines() == list(verdict_lines(CLAIM))


def test_numbers_of_the_claim_are_those_of_the_archive():
    methods = [[v for v in verdicts(CLAIM) if v.method == name] for name in ("Interpolate", "SAP")]
    (right, share, ends, sound, counts) = (
        [of(m) for m in methods]
        for of in (
            lambda m: sum(v.right for v in m),
            lambda m: f"{np.median([v.retrainings / v.ladder for v in m]):.2f}",
            lambda m: sum(v.over <= 1.5 for v in m),
            lambda m: sum(v.lost <= 1.5 + 1e-9 for v in m),
            lambda m: f"{np.mean([v.retrainings for v in m]):.1f}",
        )
    )
    text = " ".join(PAGE.split())
    assert [len(m) for m in methods] == [40, 40]
    assert f"{right[0]} are right, with {share[0]} of the retrainings of Lottery Ticket (median)" in text
    assert f"of 40 by SAP (1, 2) with γ = 2, {right[1]} with {share[1]}" in text
    assert f"in {ends[0]} and {ends[1]} of 40" in text
    assert f"at most 1.5 points in {sound[0]} and {sound[1]} of 40" in text
    assert f"at worst {max(v.lost for v in verdicts(CLAIM)):.1f}" in text
    ladder = f"{np.mean([v.ladder for v in methods[0]]):.1f}"
    assert (
        f"{counts[0]} and {counts[1]} on average, where Lottery Ticket until its first failure needs {ladder}"
        in text
    )
    assert f"the {sum(not v.right for v in verdicts(CLAIM))} misses" in text
    far = min(v.over for v in methods[0])
    assert f"down to {far:.2f} of its hindsight density" in text


def test_numbers_in_the_text_are_those_of_the_schedules():
    found, text = searches(FOLDER / "schedules.tar.xz"), " ".join(PAGE.split())
    stricter = searches(FOLDER / "schedules-2.tar.xz")
    sap, lt, interpolate = (found[n] for n in ("SAP (p=1, q=2), gamma=2", "Fixed Ratio", "Interpolate"))
    assert by_the_rule(found) == by_the_rule(stricter) == "SAP (p=1, q=2), gamma=2"
    assert by_the_rule(searches(CLAIM, "linear")) == "Fixed Ratio, ratio=0.7"
    assert f"{sap[:, 1].mean():g} retrainings, confirmation included" in text
    assert f"cuts of 20 % need {lt[:, 1].mean():g}." in text
    assert min(rows[:, 0].mean() for rows in found.values()) == interpolate[:, 0].mean()
    assert f"after {interpolate[:, 0].mean():g} retrainings as simulated" in text
    assert f"took {interpolate[:, 1].mean():g} in all" in text
    assert f"with {found['SAP (p=0.5, q=1)'][:, 2].mean():.1f} % of the MLP's weights left" in text
    assert f"lose up to {max(rows[:, 4].max() for rows in stricter.values()):.1f} points" in text


def test_the_baseline_is_the_first_failure_of_cuts_of_a_fifth():
    runs = [
        records
        for spec, records in whole_runs([FOLDER / "schedules.tar.xz"])[0].values()
        if spec.ratio == 0.2 and spec.method == "lottery-ticket"
    ]
    first = [next(a.round for a in attempts_of(records) if not records[a.round]["good"]) for records in runs]
    assert f"the baseline, take {min(first)} to {max(first)}." in " ".join(PAGE.split())


def test_numbers_of_the_prediction_are_those_of_the_ladders():
    found = networks(FOLDER)
    table = judged(found).query("n >= 5")
    within = table.set_index("features")["within"]
    text = " ".join(PAGE.split())
    assert f"{len(found)} ladders" in text
    assert f"{found['target'].isna().sum()} that never lose a point are left out" in text
    dense = within["dense network"]
    assert f"{dense.min():.0%} to {dense.max():.0%} of networks within a factor of 1.5" in text
    assert dense.max() < 0.8, "the bar of the plan is met: the page must say so"
    assert (FOLDER / "ladders.csv").stat().st_size < 2_000_000
