"""Studies on record: archives, pages and tables; some numbers are computed again, straight from an archive."""

from __future__ import annotations

import functools
import json
import re
import statistics
import tarfile
from itertools import pairwise
from math import log, nan, sqrt

import numpy as np
import pytest
from results.make import blocks, difference, percent, renewed, rounds, settings, spread, sure, table
from results.records import BASES, HERE, LT, ONE_SHOT, keep, studies, study

from palmette.reports.comparison import name_of
from palmette.reports.statistics import Difference, student
from palmette.studies.sweep import read

STUDIES = [of.name for of in studies()]
PAGES = dict.fromkeys(("cifar100-wresnet28x8", "tinyimagenet-resnet50"), "two-rounds")
"""Studies that share a page."""


@functools.cache
def records(name, wanted):
    """Rounds of the runs whose folder has `wanted` in its name, by seed."""
    found = {}
    with tarfile.open(HERE / name / "runs.tar.xz") as archive:
        for member in archive:
            if wanted in member.name and member.name.endswith("/records.jsonl"):
                lines = archive.extractfile(member).read().decode().splitlines()
                seed = int(re.search(r"-s(\d+)-[0-9a-f]+/", member.name)[1])
                found[seed] = [json.loads(line) for line in lines]
    return found


def page(name):
    """A page of results/ in one line."""
    return " ".join((HERE / name).read_text().split())


# Archives and pages


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_the_grid_is_on_record_to_its_end(name):
    of = study(name)
    planned = [(name_of(e), e.scope, e.seed) for e in read(of.folder / "grid.toml")]
    last = of.own.sort_values("round").groupby("id").last()
    there = list(last[["name", "scope", "seed"]].itertuples(index=False, name=None))
    assert sorted(there) == sorted(planned)
    until = of.about.get("until")
    assert last["stopped"].notna().all() or (last["round"] == until).all()
    rounds = of.own.groupby("id")["round"]
    assert ((rounds.max() + 1) == rounds.count()).all()


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_names_commands_times_and_what_differs_from_the_settings_of_all(name):
    of, common = study(name), page("README.md")
    text = page(f"{PAGES.get(name, name)}/README.md")
    first, about = of.own.iloc[0], of.about
    known = [part["command"] for part in about["commands"]]
    known += [f"{part['seconds']:,} s" for part in about["commands"] if "seconds" in part]
    known += [f"{of.own['id'].nunique()} runs took {of.own['seconds'].sum():.0f} s"]
    known += [about["title"]] * (name not in PAGES) + [f"{first['total']:,} weights"] * (
        name not in ("bfloat16", *BASES)
    )
    assert [words for words in known if words not in text] == []
    settings = [
        f"{first['epochs']} epochs per round", f"batch {first['batch']}", f"precision {first['precision']}",
        f"learning rate {first['learning_rate']:g}", f"momentum {first['momentum']:g}",
        f"weight decay {first['weight_decay']:g}", f"norm {first['clip']:g}",
    ]  # fmt: skip
    said = common + text.replace("precision is", "precision")
    assert [words for words in settings if words not in said] == []
    assert [words for words in (about["hardware"], about["versions"], about["date"]) if words not in common] == []


@pytest.mark.parametrize("name", sorted({PAGES.get(name, name) for name in STUDIES}))
def test_a_page_has_five_points_one_figure_and_one_table(name):
    text = (HERE / name / "README.md").read_text()
    assert len(re.findall(r"^- ", text, re.MULTILINE)) == 5
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == (name != "bfloat16")
    assert len(re.findall(r"^\| ---", text.replace("---:", "---"), re.MULTILINE)) == 1


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_links_every_figure_and_every_csv_file_of_its_folder(name):
    files = {file.name for ending in ("png", "csv") for file in (HERE / name).glob(f"*.{ending}")}
    text = (HERE / PAGES.get(name, name) / "README.md").read_text()
    prefix = f"../{name}/" if name in PAGES else ""
    found = re.findall(rf"\({re.escape(prefix)}([\w-]+\.(?:png|csv))\)", text)
    assert sorted(found) == sorted(files)
    assert all((HERE / name / file).stat().st_size < 300_000 for file in files)


@pytest.mark.parametrize("name", STUDIES)
def test_rounds_are_what_the_records_give(name):
    assert (HERE / name / "rounds.csv").read_bytes() == rounds(study(name)), "python -m results.make writes them"


@pytest.mark.parametrize("name", BASES)
def test_settings_are_what_the_records_give(name):
    found = (HERE / name / "settings.csv").read_bytes()
    assert found == settings(study(name)), "python -m results.make writes them"


def test_the_index_has_every_study_with_its_size_and_time():
    lines = (HERE / "README.md").read_text().splitlines()
    for of in studies():
        f, times = of.own, [part["seconds"] for part in of.about["commands"] if "seconds" in part]
        counts = [f["id"].nunique(), of.seeds, f["round"].max(), f["epochs"].iloc[0]]
        time = f"{sum(times) or f['seconds'].sum():,.0f} s"
        row = [f"[{of.about['title']}]({PAGES.get(of.name, of.name)}/README.md)", *map(str, counts), time]
        assert "| " + " | ".join(row) + " |" in lines


def test_tables_are_what_the_records_give():
    found = {
        file: tables for file, tables in blocks().items() if renewed(file.read_text(), tables) != file.read_text()
    }
    assert found == {}, "python -m results.make writes them"


def test_no_line_of_a_page_begins_with_a_percent_sign():
    """Which would be a comment on the site."""
    texts = [file.read_text() for file in HERE.rglob("*.md")]
    assert [line for text in texts for line in text.splitlines() if line.startswith("%")] == []


def test_a_page_without_marks_is_refused():
    marked = "a\n<!-- x: written by results/make.py -->\nold\n<!-- end of x -->\nb\n"
    assert renewed(marked, {"x": "new"}) == marked.replace("old\n", "\nnew\n\n")
    with pytest.raises(ValueError, match="must have the marks '<!-- y: written by"):
        renewed(marked, {"y": "new"})


def test_numbers_are_written_for_readers():
    assert [percent(v) for v in (1.0, 0.5, 0.0235, 0.00126, 0.0)] == ["100 %", "50 %", "2.4 %", "0.13 %", "0 %"]
    assert [spread(dict(enumerate(v))) for v in ([0.25, 0.75], [0.5], [])] == ["50.00 ± 35.36", "50.00", ""]
    assert difference(Difference(-0.001, -0.002, 0.003)) == "−0.10 (−0.20 to +0.30)"
    assert sure(Difference(-0.001, -0.002, 0.003)) == "−0.10 (−0.20 to +0.30)"
    assert sure(Difference(0.001, 0.001, 0.002)) == "**+0.10 (+0.10 to +0.20)**"
    assert difference(Difference.of([0.01])) == "+1.00"
    assert difference(Difference(nan, nan, nan)) == ""
    assert table(["a", "b"], [["5 %", "1"]]) == "| a | b |\n| --- | ---: |\n| 5\u00a0% | 1 |"


def test_a_study_that_comes_in_pieces_loses_nothing_of_what_is_on_record(tmp_path):
    def piece(name, **rounds):
        for run, count in rounds.items():
            folder = tmp_path / name / run
            folder.mkdir(parents=True)
            (folder / "experiment.toml").write_text(f"# from {name}\n")
            (folder / "records.jsonl").write_text("".join(f'{{"round": {t}}}\n' for t in range(count)))
            (folder / "timings.jsonl").write_text("")
        return tmp_path / name

    def on_record():
        with tarfile.open(target / "runs.tar.xz") as archive:
            found = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}
        names = {path.partition("/")[0] for path in found}
        return {n: (found[f"{n}/experiment.toml"], found[f"{n}/records.jsonl"].count("\n")) for n in names}

    (target := tmp_path / "study").mkdir()
    keep(piece("first", a=3, b=3, c=3), target / "runs.tar.xz")
    keep(piece("second", b=5, c=1, d=2), target / "runs.tar.xz")
    first, second = "# from first\n", "# from second\n"
    assert on_record() == {"a": (first, 3), "b": (second, 5), "c": (first, 3), "d": (second, 2)}
    before = (target / "runs.tar.xz").read_bytes()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no run in '.*empty'"):
        keep(tmp_path / "empty", target / "runs.tar.xz")
    assert (target / "runs.tar.xz").read_bytes() == before


# Numbers, straight from the archive


def cell(name, first, column):
    """A cell of the table of a page."""
    text = (HERE / name / "README.md").read_text().replace("\u00a0", " ")
    header, row = (
        re.search(rf"^\| {words} \| .* \|$", text, re.M)[0].split(" | ") for words in ("density", first)
    )
    return row[[title.strip(" |") for title in header].index(column)].strip("* |")


def points(run):
    return [(record["retrained"]["density"], 100 * record["test"]["accuracy"]) for record in run]


def between(curve, d):
    """Accuracy at a density, between the rounds on either side."""
    (e, a), (f, b) = next(pair for pair in pairwise(curve) if pair[0][0] >= d >= pair[1][0])
    assert e < 1.5 * f
    return a + (b - a) * log(e / d) / log(e / f)


def welch(one, other):
    """Difference of two groups of four and 95 % interval, as a page has them."""
    v, w = statistics.variance(one) / 4, statistics.variance(other) / 4
    center = statistics.fmean(one) - statistics.fmean(other)
    half = student((v + w) ** 2 / (v**2 / 3 + w**2 / 3)) * sqrt(v + w)
    return f"{center:+.2f} ({center - half:+.2f} to {center + half:+.2f})".replace("-", "−")


@pytest.mark.parametrize("name", ["cifar10-mlp", "cifar10-cnn-20"])
def test_sap_is_compared_at_its_own_densities(name):
    """Round 1 of SAP (1, 2) and the mean curve of Lottery Ticket."""
    fast, slow = (
        [points(run) for run in records(name, method).values()] for method in ("sap-p1-q2", "lottery-ticket")
    )
    own = [run[1] for run in fast]
    there = [[between(curve, d) for curve in slow] for d, _ in own]
    apart = [a - statistics.fmean(row) for (_, a), row in zip(own, there, strict=True)]
    spread = [statistics.fmean(column) for column in zip(*there, strict=True)]
    shown = welch(apart, [v - statistics.fmean(spread) for v in spread])
    row = f"{percent(statistics.fmean(d for d, _ in own))}"
    assert cell(name, row, "SAP (p=1, q=2) − Lottery Ticket") == shown


@pytest.mark.parametrize(("name", "n"), [("fashionmnist-mlp", 16), ("cifar10-cnn", 1)])
def test_one_shot_is_compared_over_all_rounds_from_a_half_to_a_fiftieth(name, n):
    """It has the densities of Lottery Ticket, so nothing is interpolated."""
    one, slow = (list(records(name, method).values()) for method in ("one-shot", "lottery-ticket"))
    means = [[np.mean([a for d, a in points(run) if 0.02 <= d <= 0.5]) for run in runs] for runs in (one, slow)]
    assert [len(values) for values in means] == [n, n]
    center = f"{np.mean(means[0]) - np.mean(means[1]):+.2f}".replace("-", "−")
    assert cell(name, r"\*\*50 to 2 %\*\*", f"{ONE_SHOT} − {LT}").split(" ")[0] == center
    assert f"{ONE_SHOT}, 50 to 2 %" in page("FINDINGS.md").replace("\u00a0", " ")
    assert center in page("FINDINGS.md")


def test_the_round_of_sap_on_the_front_page_is_that_of_the_archive():
    runs = [points(run)[3] for run in records("fashionmnist-mlp", "sap-p1-q2").values()]
    accuracies = [a for _, a in runs]
    front = (HERE.parent / "README.md").read_text().partition("<!-- results: begin -->")[2].replace("\u00a0", " ")
    assert f"at {percent(np.mean([d for d, _ in runs]))} |" in front
    expected = f"{np.mean(accuracies):.2f} ± {np.std(accuracies, ddof=1):.2f}"
    assert re.search(rf"^\| SAP \(p=1, q=2\) \| {re.escape(expected)} \|", front, re.MULTILINE)


@pytest.mark.parametrize("name", ["cifar10-mlp", "cifar10-cnn-20"])
def test_ten_rounds_of_sap_and_twenty_five_of_lottery_ticket_are_those_of_the_archive(name):
    fast, slow = (records(name, method) for method in ("sap-p1-q2", "lottery-ticket"))
    ends = [[points(run)[t][1] for run in runs.values()] for runs, t in ((fast, 10), (slow, 25))]
    center = f"{statistics.fmean(ends[0]) - statistics.fmean(ends[1]):+.2f} (".replace("-", "−")
    assert center in page("FINDINGS.md")
    assert len(ends[0]) == len(ends[1]) == 4


def test_the_difference_between_precisions_is_that_of_the_archive():
    narrow, wide = (
        [np.mean([a for _, a in points(run)[:9]]) for run in records(name, "lottery-ticket").values()]
        for name in ("fashionmnist-mlp", "bfloat16")
    )
    assert (len(narrow), len(wide)) == (16, 8)
    shown = f"{np.mean(narrow) - np.mean(wide):+.2f} (".replace("-", "−")
    assert shown in page("bfloat16/README.md")
