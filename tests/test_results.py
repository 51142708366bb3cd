"""Studies on record: archives, pages and tables; some numbers are computed again, straight from an archive."""

from __future__ import annotations

import functools
import json
import re
import statistics
import tarfile
from math import log, nan

import numpy as np
import pandas as pd
import pytest
from results.make import difference, equal_density, pages, percent, renewed, spread, table
from results.records import BASES, DENSITIES, HERE, LT, ONE_SHOT, SAP, SAP2, keep, studies, study

from palmette import read_runs
from palmette.reports.comparison import name_of
from palmette.reports.statistics import Difference, beyond_noise, holm
from palmette.studies.sweep import read

STUDIES = [of.name for of in studies()]


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
def test_a_page_names_command_hardware_versions_date_and_settings(name):
    of, text = study(name), page(f"{name}/README.md")
    first, runs = of.own.iloc[0], of.own["id"].nunique()
    about = of.about
    known = [about["title"], about["hardware"], about["versions"], about["date"]]
    known += [part["command"] for part in about["commands"]] + [part["what"] for part in about["commands"]]
    known += [f"{part['seconds']:,} s" for part in about["commands"] if "seconds" in part]
    known += [f"{runs} runs took {of.own['seconds'].sum():.0f} s", f"{first['epochs']} epochs per round"]
    known += [
        f"batch {first['batch']}",
        f"learning rate {first['learning_rate']:g}",
        f"precision {first['precision']}",
    ]
    known += [
        f"momentum {first['momentum']:g}",
        f"weight decay {first['weight_decay']:g}",
        f"norm {first['clip']:g}",
    ]
    if name not in ("bfloat16", *BASES):
        known.append(f"{first['total']:,} weights")
    assert [words for words in known if words not in text] == []


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_shows_every_figure_of_its_folder(name):
    figures = {file.name for file in (HERE / name).glob("*.png")}
    text = (HERE / name / "README.md").read_text()
    assert figures == set(re.findall(r"\(([\w-]+\.png)\)", text))
    assert all((HERE / name / figure).stat().st_size < 300_000 for figure in figures)


def test_the_index_has_every_study_with_its_size_and_time():
    lines = (HERE / "README.md").read_text().splitlines()
    for of in studies():
        f, times = of.own, [part["seconds"] for part in of.about["commands"] if "seconds" in part]
        counts = [f["id"].nunique(), of.seeds, f["round"].max(), f["epochs"].iloc[0]]
        time = f"{sum(times) or f['seconds'].sum():,.0f} s"
        row = [f"[{of.about['title']}]({of.name}/README.md)", *map(str, counts), time]
        assert "| " + " | ".join(row) + " |" in lines


def test_tables_are_what_the_records_give():
    found = {
        file: tables for file, tables in pages().items() if renewed(file.read_text(), tables) != file.read_text()
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


def test_holm_adjusts_p_values_for_their_number():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_difference_must_hold_among_all_that_are_tested():
    near = [0.1, 0.2, 0.3, 0.4]  # p = 0.03
    noise = {str(i): [1.0, -1.0, 0.5, -0.5] for i in range(9)}
    assert beyond_noise({"near": near}) == {"near": 1}
    mixed = {"a": [0.1, 0.11, 0.12], "b": [0.1, -0.1, 0.1], "c": [1.0, 1.0]}
    assert beyond_noise(mixed) == {"a": 1, "b": 0, "c": 0}
    assert beyond_noise({"near": near} | noise) == dict.fromkeys(["near", *noise], 0)
    assert beyond_noise({"down": [-1.0, -1.1, -0.9], "two": [1.0, 1.0]}) == {"down": -1, "two": 0}


def test_numbers_are_written_for_readers():
    assert [percent(v) for v in (1.0, 0.5, 0.0235, 0.00126, 0.0)] == ["100 %", "50 %", "2.4 %", "0.13 %", "0 %"]
    assert [spread(dict(enumerate(v))) for v in ([0.25, 0.75], [0.5], [])] == ["50.00 ± 35.36", "50.00", ""]
    assert difference(Difference(-0.001, -0.002, 0.003, 4)) == "−0.10 (−0.20 to +0.30)"
    assert difference(Difference.of([0.01])) == "+1.00"
    assert difference(Difference(nan, nan, nan, 0)) == ""
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


def row(name, density):
    """Cells of the table at equal density."""
    text = (HERE / name / "README.md").read_text().replace("\u00a0", " ")
    return re.search(rf"^\| {density} \| (.*) \|$", text, re.MULTILINE)[1].split(" | ")


def at_a_tenth(run):
    """Accuracy at a density of 10 % of a method that keeps 80 % in each round: 0.8^10 > 0.1 > 0.8^11."""
    (d, a), (e, b) = ((run[t]["retrained"]["density"], run[t]["test"]["accuracy"]) for t in (10, 11))
    return 100 * (a + (b - a) * (log(d) - log(0.1)) / (log(d) - log(e)))


def students(pairs):
    """Mean and 95 % interval of four pairs, as a page has them."""
    center, half = statistics.fmean(pairs), 3.18245 * statistics.stdev(pairs) / 2
    return f"{center:+.2f} ({center - half:+.2f} to {center + half:+.2f})".replace("-", "−")


def test_accuracy_at_equal_density_is_that_of_the_archive():
    values = [at_a_tenth(run) for run in records("fashionmnist-mlp", "lottery-ticket").values()]
    expected = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert len(values) == 16
    assert row("fashionmnist-mlp", "10 %")[2] == expected
    front = (HERE.parent / "README.md").read_text().partition("<!-- results: begin -->")[2]
    assert re.search(rf"^\| Lottery Ticket \| {re.escape(expected)} \|", front, re.MULTILINE)


@pytest.mark.parametrize("name", ["cifar10-mlp", "cifar10-cnn-20"])
def test_differences_on_cifar10_are_those_of_the_archive(name):
    fast, slow, one = (records(name, method) for method in ("sap-p1-q2", "lottery-ticket", "one-shot"))
    pairs = [100 * (fast[s][10]["test"]["accuracy"] - slow[s][25]["test"]["accuracy"]) for s in range(4)]
    assert students(pairs) in page("FINDINGS.md")
    assert students([at_a_tenth(one[s]) - at_a_tenth(slow[s]) for s in range(4)]) == row(name, "10 %")[-1].strip(
        "*"
    )


def test_the_difference_between_precisions_is_that_of_the_archive():
    wide, narrow = records("bfloat16", "lottery-ticket"), records("fashionmnist-mlp", "lottery-ticket")
    pairs = [narrow[s][8]["test"]["accuracy"] - wide[s][8]["test"]["accuracy"] for s in wide]
    assert len(pairs) == 8
    cells = re.search(r"^\| 8 \|(.*)$", (HERE / "bfloat16/README.md").read_text(), re.MULTILINE)[1].split(" | ")
    assert cells[1].startswith(f"{100 * statistics.fmean(pairs):+.2f} (".replace("-", "−"))


@pytest.mark.parametrize(("p", "q", "d"), [(0.5, 1, 0.1), (1, 2, 0.01)])
def test_neuron_scope_of_the_cnn_is_that_of_the_archive(p, q, d):
    both = pd.concat([read_runs(HERE / name) for name in ("cifar10-cnn-ablations", "cifar10-cnn-20")])
    usual = {"method": "sap", "p": p, "q": q, "eta": 0, "gamma": 1, "seed": 0}

    def accuracy(scope, at):
        wanted = pd.Series(usual | {"scope": scope})
        run = both[(both[list(wanted.index)] == wanted).all(axis=1)].sort_values("round")
        reached = run["density"].min() <= at
        return 100 * np.interp(-log(at), -np.log(run["density"]), run["test_accuracy"]) if reached else nan

    found = {at: [accuracy(s, at) for s in ("neuron", "layer", "global")] for at in DENSITIES}
    assert d == min(at for at, values in found.items() if not np.isnan(values).any())
    above, below = (f"{found[d][0] - other:+.2f}".replace("-", "−") for other in found[d][1:])
    assert re.search(
        rf"{re.escape(above)}(?: points)? (?:from layer )?and {re.escape(below)} ", page("FINDINGS.md")
    )


def test_bold_differences_are_those_of_two_published_networks():
    """Which densities are beyond the noise with 16 seeds, after Holm's correction."""
    found = {}
    for name in ("fashionmnist-mlp", "fashionmnist-linear"):
        header, _, *lines = equal_density(study(name)).replace("\u00a0", " ").splitlines()
        titles = header.strip("| ").split(" | ")
        for cells in (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines):
            for title, cell in zip(titles, cells, strict=True):
                if "**" in cell and ONE_SHOT not in title:
                    found[name, title, cells[0]] = cell.strip("*")[0]
    assert found == {
        ("fashionmnist-mlp", f"{SAP2} − {LT}", "5 %"): "+",
        ("fashionmnist-mlp", f"{SAP2} − {LT}", "1 %"): "−",
        ("fashionmnist-mlp", f"{SAP2} − {LT}", "0.5 %"): "−",
        ("fashionmnist-linear", f"{SAP2} − {LT}", "50 %"): "+",
    }
    assert not any(SAP in title for _, title, _ in found)
