"""The pages of results/ say what the records say: some of their numbers, computed here in another way."""

import functools
import json
import re
import shutil
import statistics
import tarfile
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from results import ablation_runs, ablation_turns, ablations, epochs, four_methods, overview, precision
from results.answers import DENSITIES, SAP, SAP2, Difference, Spread, holm
from results.keep import keep
from results.study import Study, difference, page, percent, points, prose, spread, true
from results.tables import accuracy_at, largest_gap

from palmette import read_runs
from palmette.studies.sweep import read

RESULTS = Path(__file__).parent.parent / "results"
STUDIES = sorted(file.parent.name for file in RESULTS.glob("*/runs.tar.xz"))


@functools.cache
def records(study, wanted):
    """Rounds of the runs whose folder has `wanted` in its name, by seed, straight from the archive."""
    found = {}
    with tarfile.open(RESULTS / study / "runs.tar.xz") as archive:
        for member in archive:
            if wanted in member.name and member.name.endswith("/records.jsonl"):
                lines = archive.extractfile(member).read().decode().splitlines()
                seed = int(re.search(r"-s(\d+)-[0-9a-f]+/", member.name)[1])
                found[seed] = [json.loads(line) for line in lines]
    return found


def table(study, heading):
    """The rows of the table below a heading, by their first cell."""
    page = (RESULTS / study / "README.md").read_text().replace("\u00a0", " ")
    lines = page.partition(f"## {heading}\n")[2].partition("\n| ")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0]: row for row in cells[: next(i for i, line in enumerate(lines) if not line)]}


def test_an_accuracy_says_how_many_runs_have_it_if_not_all():
    numbers = {"density": [0.1, 0.05, 0.02], "accuracy": [0.9, 0.8, np.nan], "sd": [0.01, 0.02, np.nan]}
    equal = pd.DataFrame({"method": SAP, **numbers, "n": [4, 3, 0]})
    assert [accuracy_at(equal, SAP, d, 4) for d in numbers["density"]] == [
        "90.00 ± 1.00",
        "80.00 ± 2.00 (n = 3)",
        "",
    ]
    assert accuracy_at(equal, SAP2, 0.1, 4) == ""


@pytest.fixture(scope="module")
def lottery():
    return records("fashionmnist-mlp", "lottery-ticket")


def test_accuracy_by_round_is_that_of_the_records(lottery):
    last = [100 * run[30]["test"]["accuracy"] for run in lottery.values()]
    density = statistics.fmean(100 * run[30]["retrained"]["density"] for run in lottery.values())
    expected = f"{statistics.fmean(last):.2f} ± {statistics.stdev(last):.2f} at {density:.2f} %"
    assert len(last) == 16
    assert table("fashionmnist-mlp", "Round by round")["Lottery Ticket"][-1] == expected


def test_accuracy_at_equal_density_is_that_of_the_records(lottery):
    values = []
    for run in lottery.values():  # 0.8^10 > 0.1 > 0.8^11
        (d, a), (e, b) = ((run[t]["retrained"]["density"], run[t]["test"]["accuracy"]) for t in (10, 11))
        values.append(100 * (a + (b - a) * (log(d) - log(0.1)) / (log(d) - log(e))))
    expected = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
    assert table("fashionmnist-mlp", "At equal density")["10 %"][3] == expected
    front = (RESULTS.parent / "README.md").read_text().partition("<!-- results: begin -->")[2]
    assert re.search(rf"^\| Lottery Ticket \| {re.escape(expected)} \|", front, re.MULTILINE)


def students(pairs):
    """Mean and 95 % interval of four pairs, as they stand on a page."""
    mean, half = statistics.fmean(pairs), 3.18245 * statistics.stdev(pairs) / 2
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})".replace("-", "−")


@pytest.mark.parametrize(
    ("study", "verdict"), [("cifar10-mlp", "**No,** it is behind."), ("cifar10-cnn-20", "**Yes,")]
)
def test_claims_about_cifar10_are_those_of_the_records(study, verdict):
    fast, slow, one = (records(study, name) for name in ("sap-p1-q2", "lottery-ticket", "one-shot"))
    pairs = [100 * (fast[s][10]["test"]["accuracy"] - slow[s][25]["test"]["accuracy"]) for s in range(4)]
    claim = table(study, "Beside the paper")[
        "SAP (1, 2) at about T = 10 performs like Lottery Ticket at about T = 25"
    ]
    assert claim[1].startswith(verdict)
    assert students(pairs) in claim[1]
    share = log(slow[0][10]["retrained"]["density"] / 0.1) / log(1.25)  # 0.8^10 > 0.1 > 0.8^11
    weighted = [
        [
            100 * ((1 - share) * run[s][10]["test"]["accuracy"] + share * run[s][11]["test"]["accuracy"])
            for s in range(4)
        ]
        for run in (one, slow)
    ]
    shown = (RESULTS / study / "README.md").read_text().partition("| One Shot − Lottery Ticket |")[2]
    row = re.search(r"^\| 10\s% \|(.*)\|$", shown, re.MULTILINE)[1].split(" | ")
    assert students([a - b for a, b in zip(*weighted, strict=True)]) in row[2]


@pytest.mark.parametrize("study", ["cifar10-mlp", "cifar10-cnn-20", "cifar10-resnet18-20", "fashionmnist-linear"])
def test_words_about_equal_density_are_those_of_the_table(study):
    text = (RESULTS / study / "README.md").read_text().replace("\u00a0", " ")
    lines = text.partition("| One Shot − Lottery Ticket |\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    sap = [cell.strip("*").partition(" ")[0] for row in cells for cell in row[1:3] if cell]
    largest = max(sap, key=lambda cell: abs(float(cell.replace("−", "-"))))
    assert f"the largest of {len(sap)} differences is {largest} points" in words(text.encode())
    claim = table(study, "Beside the paper")["Lottery Ticket outperforms One Shot"][1]
    surely = {row[0]: row[3].startswith("**−") for row in cells}
    first = next((density for density, sure in surely.items() if sure), None)
    assert claim.startswith(f"**Yes, from {first} of the weights down:**" if first else "One Shot less")
    below = list(surely)[list(surely).index(first) :] if first else []
    assert re.findall("noise at (.*)", claim) == [density for density in below if not surely[density]]


def test_what_more_epochs_do_to_a_sparse_network_is_that_of_the_records():
    (long,), short = records("cifar10-cnn", "lottery-ticket").values(), records("cifar10-cnn-20", "lottery-ticket")
    accuracy = [[run[t]["test"]["accuracy"] for run in (long, *short.values())] for t in range(31)]
    below = [t for t, (many, *few) in enumerate(accuracy) if many < min(few)]
    most = max(below, key=lambda t: statistics.fmean(accuracy[t][1:]) - accuracy[t][0])
    text = words((RESULTS / "cifar10-cnn/README.md").read_bytes())
    assert f"below each of 4 runs with 20 in {len(below)} rounds, from T = {below[0]} to {below[-1]};" in text
    many, *few = (100 * value for value in accuracy[most])
    assert f"with {many:.2f} and {statistics.fmean(few):.2f} ± {statistics.stdev(few):.2f} %" in text
    dead = statistics.fmean(run[most]["retrained"]["dead_neurons"] for run in short.values())
    assert f"{long[most]['retrained']['dead_neurons']} and {dead:.0f} of its neurons" in text
    (run,) = records("cifar10-cnn", "sap-p0.5").values()
    lost = [run[0]["test"]["accuracy"] - one["test"]["accuracy"] > 0.05 for one in run]
    first = len(lost) - lost[::-1].index(False)
    kept = 100 * run[first]["retrained"]["density"]
    said = f"more than five points below dense from T = {first} on, where {kept:.1f} % of the weights remain"
    for name in ("../README.md", "README.md", "cifar10-cnn-20/README.md"):
        assert said in words((RESULTS / name).read_bytes())


def test_runs_whose_index_falls_again_are_counted():
    runs = [[r["retrained"]["pq_index"] for r in run] for run in records("fashionmnist-mlp", "one-shot").values()]
    fallen = sum(max(index) > 2 * index[-1] for index in runs)
    claim = table("fashionmnist-mlp", "Beside the paper")["The index falls, rises and falls, as One Shot shows"][1]
    assert claim.endswith(f", in {fallen} of {len(runs)} runs at less than half of its highest")


def test_the_difference_between_precisions_is_that_of_the_records(lottery):
    single = records("bfloat16", "lottery-ticket")
    pairs = [lottery[s][8]["test"]["accuracy"] - single[s][8]["test"]["accuracy"] for s in single]
    assert len(pairs) == 8
    shown = (RESULTS / "bfloat16/README.md").read_text()
    row = re.search(r"^\| 8 \|(.*)$", shown, re.MULTILINE)[1].split(" | ")
    assert row[1].startswith(f"{100 * statistics.fmean(pairs):+.2f} (".replace("-", "−"))


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_a_page_with_its_command_hardware_versions_and_date(study):
    text = " ".join((RESULTS / study / "README.md").read_text().split())
    about = Study(study).about
    known = [about["title"], about["hardware"], about["versions"], about["date"]]
    known += [part["command"] for part in about["commands"]]
    assert [words for words in known if words not in text] == []
    assert f"]({study}/README.md)" in (RESULTS / "README.md").read_text()
    assert all(file.stat().st_size < 300_000 for file in (RESULTS / study).glob("*.png"))


def test_no_line_of_a_page_begins_like_something_else():
    assert prose("a" * 122, "5 % of it").splitlines() == ["a" * 122, "5\u00a0% of it"]
    texts = [file.read_text() for file in RESULTS.rglob("README.md")]
    assert [line for text in texts for line in text.splitlines() if line.startswith("%")] == []


def test_what_does_not_hold_any_more_is_not_written():
    assert true(1 < 2, "Yes.") == "Yes."
    with pytest.raises(ValueError, match=r"rewrite it: Yes\."):
        true(2 < 1, "Yes.")


def test_p_values_are_adjusted_for_their_number():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_few_pairs_have_students_interval_and_many_the_bootstrap():
    four = Difference.of([0.0, 1.0, 2.0, 3.0])
    assert (four.mean, four.pairs, four.sign) == (1.5, 4, 0)
    assert four.high - four.mean == pytest.approx(3.18245 * np.std([0, 1, 2, 3], ddof=1) / 2, rel=1e-5)
    assert four.high > 3  # wider than a bootstrap can be
    many = Difference.of([1.0] * 16)
    assert (many.low, many.high, many.sign) == (1.0, 1.0, 1)


@pytest.mark.parametrize(
    ("adjusted", "verdict"),
    [
        ((0.2, 0.3), "none is beyond the noise of 8 seeds"),
        ((0.2, 0.01), "it alone is beyond the noise of 8 seeds"),
        ((0.01, 0.2), "beyond the noise of 8 seeds is +0.10 (SAP (p=0.5, q=1) at 50 %)"),
    ],
)
def test_what_is_beyond_the_noise_is_named_and_need_not_be_what_is_largest(adjusted, verdict):
    rows = [(SAP, 0.5, 0.001, 8), (SAP2, 0.1, -0.004, 4)]
    equal = pd.DataFrame(rows, columns=["method", "density", "difference", "pairs"]).assign(adjusted=adjusted)
    largest = "the largest of 2 differences is −0.40 points (SAP (p=1, q=2) at 10 %)"
    assert largest_gap(equal) == f"{largest}, and {verdict}"


def test_numbers_for_eyes():
    assert [percent(v) for v in (1.0, 0.5, 0.0235, 0.00126, 0.0)] == ["100 %", "50 %", "2.4 %", "0.13 %", "0 %"]
    assert spread(Spread(0.5, 0.25, 3)) == "50.00 ± 25.00"
    assert difference(Difference(-0.001, -0.002, 0.003, 4)) == "−0.10 (−0.20 to +0.30)"
    assert difference(Difference.of([0.01])) == "+1.00"  # one pair has no interval
    assert points("one", "two") == "- one\n- two"
    assert page("a", "b") == b"a\n\nb\n"


def stand_in(place, name, *, reach=99, without=(), index=1.0, accuracy=1.0):
    """A study that was not run, in `place`: by its grid, with rounds 0 to `reach` of the CNN's records.

    `without` names methods and scopes.
    """
    known = {}
    for method in ("sap-p0.5", "sap-p1", "lottery-ticket", "one-shot"):
        known[method] = records("cifar10-cnn-20", f"-{method}-")[0]
    study, runs = place / name, place / f"runs of {name}"
    study.mkdir()
    shutil.copy(RESULTS / name / "grid.toml", study)
    for e in read(RESULTS / name / "grid.toml"):
        if {e.method, e.scope} & set(without):
            continue
        rounds = known[e.method if e.method != "sap" else f"sap-p{1 if e.p == 1 else 0.5}"]
        rounds = json.loads(json.dumps(rounds[: min(reach, e.rounds) + 1]))
        for record in rounds:
            record["retrained"]["pq_index"] *= index
            record["test"]["accuracy"] *= accuracy
        if rounds[-1]["round"] in (reach, e.rounds):
            rounds[-1]["stopped"] = None if reach < e.rounds else "as many rounds as planned"
        folder = runs / e.id
        folder.mkdir(parents=True)
        (folder / "experiment.toml").write_text(e.to_toml())
        (folder / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in rounds))
        times = ({"round": t, "seconds": 1.0, "images_per_second": 1.0, "members": 1} for t in range(len(rounds)))
        (folder / "timings.jsonl").write_text("".join(f"{json.dumps(time)}\n" for time in times))
    keep(runs, study)
    about = {"title": f"CIFAR10, stand-in: {name}", "hardware": "none", "versions": "none", "date": "never"}
    (study / "study.toml").write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in about.items())
        + '[[commands]]\ncommand = "none"\nwhat = "nothing"\n'
    )
    return Study(name)


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
        with tarfile.open(study / "runs.tar.xz") as archive:
            found = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}
        names = {path.partition("/")[0] for path in found}
        return {n: (found[f"{n}/experiment.toml"], found[f"{n}/records.jsonl"].count("\n")) for n in names}

    (study := tmp_path / "study").mkdir()
    keep(piece("first", a=3, b=3, c=3), study)
    keep(piece("second", b=5, c=1, d=2), study)
    first, second = "# from first\n", "# from second\n"
    assert on_record() == {"a": (first, 3), "b": (second, 5), "c": (first, 3), "d": (second, 2)}
    before = (study / "runs.tar.xz").read_bytes()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no run in '.*empty'"):
        keep(tmp_path / "empty", study)
    assert (study / "runs.tar.xz").read_bytes() == before


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("results.study.HERE", tmp_path)
    (tmp_path / "cifar10-cnn-20").symlink_to(RESULTS / "cifar10-cnn-20")
    return tmp_path


def words(page):
    """The page in a line, which has no heading and no table without content."""
    text = page.decode()
    assert "nan" not in text
    assert re.findall(r"^## .*\n+(?=## |\Z)", text, re.MULTILINE) == []
    assert re.findall(r"^\|[-:| ]+\|\n(?!\|)", text, re.MULTILINE) == []
    return " ".join(text.split())


@pytest.fixture
def unread(monkeypatch):
    """Nothing was written about the CNN with all epochs, whose records a stand-in has others of."""
    monkeypatch.delitem(four_methods.READ, four_methods.CIFAR_CNN)


@pytest.mark.usefixtures("unread")
def test_a_study_of_one_seed_stands_beside_the_one_with_fewer_epochs(place):
    study = stand_in(place, "cifar10-cnn", index=1.5)
    text = words(four_methods.text(study))
    assert study.so_far == ""
    assert "From one seed no interval and no test can be had" in text
    dense = records("cifar10-cnn-20", "-sap-p0.5-")[0][0]
    index, accuracy = 1.5 * dense["retrained"]["pq_index"], 100 * dense["test"]["accuracy"]
    assert f"index of 0.212 ± 0.000 and {index:.3f} after 20 and 200 epochs" in text
    assert f"| SAP (p=0.5, q=1) | 200 | {index:.3f}; {accuracy:.2f} at 100 % |" in text


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("reach", [2, 8])
def test_a_study_under_way_says_how_far_it_is(place, reach):
    study = stand_in(place, "cifar10-cnn", reach=reach, without=("lottery-ticket",))
    text = words(four_methods.text(study))
    assert "**This study is not complete:** 0 of its 4 runs are." in text
    assert f"One Shot: T = {reach} of 30. Not begun: Lottery Ticket." in text
    assert f"rounds 0 to {reach} (the paper has 30)" in text
    assert re.search(r"Nothing can be said here of \[\d more\]", text)
    assert "Cannot be said" not in text
    assert ("| not yet |" in text) == ("## The hypothesis" in text) == (reach == 8)


FEW = {
    "cifar100-wresnet28x8": ("Figure 17", "20 epochs", "1 %"),
    "tinyimagenet-resnet50": ("Figure 18", "5", "0.5 %"),
}


@pytest.mark.parametrize("name", FEW)
def test_a_study_of_few_rounds_says_whether_the_network_trains_and_what_is_cut(place, name):
    study = stand_in(place, name)
    four_methods.write(study)
    text = words((study.folder / "README.md").read_bytes())
    figure, epochs, guess = FEW[name]
    assert f"{figure} of the paper with {epochs}" in text
    assert "rounds 0 to 2 (the paper has 15) and one seed" in text
    sap, lottery = (records("cifar10-cnn-20", f"-{method}-")[0] for method in ("sap-p0.5", "lottery-ticket"))
    assert (
        f"right for {100 * sap[0]['test']['accuracy']:.2f} % of the test images, where guessing is for {guess}"
        in text
    )
    assert text.count("**It trains:**") == 1
    cuts = [f"{100 * r['cut']['weights'] / r['retrained']['kept']:.1f} %" for r in sap[:3]]
    assert f"SAP (0.5, 1) cuts {cuts[0]}, {cuts[1]} and {cuts[2]}; Lottery Ticket cuts 20 % each time" in text
    indices = [", ".join(f"{r['retrained']['pq_index']:.3f}" for r in run[:3]) for run in (sap, lottery)]
    assert f"{indices[0]} with SAP (0.5, 1); {indices[1]} with Lottery Ticket: so it falls" in text
    last = sap[2]
    row = f"| 2 | {percent(last['retrained']['density'])} | {100 * last['test']['accuracy']:.2f} |"
    assert f"| SAP (p=0.5, q=1) {row}" in text
    assert not any(part in text for part in ("At equal density", "The hypothesis", "Cannot be said", "One Shot"))
    pictures = {file.name for file in study.folder.glob("*.png")}
    assert pictures == set(re.findall(r"\((\w+\.png)\)", text)) == {f"fig{figure.split()[1]}.png"}
    (row, *_) = [line for line in overview.single([study])[-1].splitlines() if "SAP" in line]
    assert row.startswith(f"| [{study.network}]({name}/README.md) | SAP (p=0.5, q=1) |")


def test_a_network_that_guesses_does_not_train(place):
    study = stand_in(place, "cifar100-wresnet28x8", reach=0, accuracy=0.05)
    text = words(four_methods.text(study))
    assert "**It hardly trains:** after 20 epochs the dense network is right for 4.4" in text
    assert "SAP lowers its ratio" not in text  # one cut does not tell


def test_resnet18_stands_beside_the_published_values():
    study, short = Study("cifar10-resnet18"), Study("cifar10-resnet18-20")
    text, other = words(four_methods.text(study)), " ".join(epochs.section(short))
    sap, lottery = (records(study.name, f"-{method}-")[0] for method in ("sap-p0.5", "lottery-ticket"))
    here = lottery[2]["pruned"]["pq_index"]  # published: 0.187
    assert f"| {here:.3f} (0.187) | 64.0 (64.1†) |" in text
    assert re.search(r"\| SAP \(p=1, q=2\) \| 1 \| \S+ \(94\.7\\\*\) ", text)  # 93.9 pruned, and 0.8 more
    assert re.search(r"\| SAP \(p=0\.5, q=1\) \| 0 \| \S+ \(95\.3†\\\*\) \| [\d.]+ \| ", text)  # cut, its own
    fast = records(study.name, "-sap-p1-")[0][3]
    assert f"| **{100 * fast['retrained']['density']:.1f}** (4.8) |" in text  # further apart than a ruler can tell
    ratios = [f"{100 * r['cut']['weights'] / r['retrained']['kept']:.1f} %" for r in sap]
    assert f"it cuts {', '.join(ratios[:3])} and {ratios[3]} of what is left, in the paper 30.2 %, 28.2 %" in text
    assert "(../cifar10-resnet18/epochs.png)" in other
    assert "(../cifar10-resnet18/README.md#beside-the-published-values)" in other
    assert "(0.187)" not in other
    first, second = (
        f"{100 * r['retrained']['density']:.1f} ({there}): "
        for r, there in zip(sap[1:3], (69.8, 50.1), strict=True)
    )
    accuracy = [f"{100 * r['test']['accuracy']:.2f}" for r in sap]
    assert f"| SAP (p=0.5, q=1) | {first}{accuracy[1]} | {second}{accuracy[2]} | 37.2 (37.2): " in overview.front()


@pytest.mark.parametrize("reach", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_scopes_and_settings_of_one_seed(place, reach):
    stand_in(place, "cifar10-cnn-ablations", reach=reach, without=() if reach == 30 else ("global",))
    ablation = replace(ablation_runs.CNN, study=Study("cifar10-cnn-ablations"), base=Study("cifar10-cnn-20"))
    text = words(ablations.text(ablation))
    assert "From one seed no interval and no test can be had." in text
    assert ("is not complete" in text) == ("## p and q" not in text) == (reach == 3)
    assert ("Not known yet" in text) == ("rounds 0 to 3 of its 30" in text) == (reach == 3)
    assert (ablation.ends["round"].max(), len(ablation.many("Lottery Ticket")[0])) == (reach, reach + 1)
    ablations.write(ablation)
    assert len(list((place / "cifar10-cnn-ablations").glob("*.png"))) == (5 if reach == 30 else 2)


@pytest.mark.parametrize(("p", "q"), [(0.5, 1), (1, 2)])
def test_what_neuron_scope_is_to_the_others_is_that_of_the_records(p, q):
    study, base = (read_runs(RESULTS / name) for name in ("cifar10-cnn-ablations", "cifar10-cnn-20"))
    both = pd.concat([study, base[base["round"] <= study["round"].max()]])
    usual = {"method": "sap", "p": p, "q": q, "eta": 0, "gamma": 1}

    def accuracy(frame, d, scope, seed):
        wanted = pd.Series(usual | {"scope": scope, "seed": seed})
        run = frame[(frame[list(wanted.index)] == wanted).all(axis=1)].sort_values("round")
        reached = run["density"].min() <= d
        return 100 * np.interp(-log(d), -np.log(run["density"]), run["test_accuracy"]) if reached else np.nan

    found = {d: [accuracy(both, d, s, 0) for s in ("neuron", "layer", "global")] for d in DENSITIES}
    d = min(d for d, values in found.items() if not np.isnan(values).any())
    gaps = [found[d][0] - other for other in found[d][1:]]
    layer, whole = ((f"{abs(gap):.2f}", "above" if gap > 0 else "below") for gap in gaps)
    sd = statistics.stdev(accuracy(base, d, "global", seed) for seed in range(4))
    verdict = (
        "the best" if min(gaps) > 3 * sd else "not the best" if min(gaps) < -3 * sd else "not clearly the best"
    )
    said = (
        f"SAP ({p:g}, {q:g}), at {percent(d)} of the weights: neuron scope is {layer[0]} points {layer[1]} layer "
        f"scope and {whole[0]} {whole[1]} global scope; seeds differ by {sd:.2f}, so it is {verdict}."
    )
    for file in ("README.md", "cifar10-cnn-ablations/README.md"):
        assert said in words((RESULTS / file).read_bytes())


@pytest.mark.parametrize(
    ("index", "as_said"),
    [
        ([0.20, 0.10, 0.30, 0.40, 0.10], True),
        ([0.20, 0.19, 0.30, 0.40, 0.10], False),  # no first fall
        ([0.20, 0.10, 0.15, 0.18, 0.05], False),  # not above its start
        ([0.20, 0.10, 0.30, 0.40, 0.30], False),  # no second fall
    ],
)
def test_an_index_does_as_said_if_it_falls_rises_and_falls(index, as_said):
    run = pd.DataFrame({"round": range(5), "pq_index": index, "test_accuracy": [0.9, 0.91, 0.8, 0.3, 0.1]})
    found = ablation_turns.turns_of(run)
    assert (found.index, found.accuracy) == (tuple(index[t] for t in (0, 1, 3, 4)), (0.9, 0.91, 0.3, 0.1))
    assert (found.peak, found.steepest, found.near, found.as_said) == (3, 3, True, as_said)
    assert ablation_turns.turns_of(run.assign(test_accuracy=0.9)) is None


def test_the_turns_of_a_setting_are_those_of_the_records():
    (run,) = records("cifar10-cnn-ablations", "-sap-p1-q1.8-").values()
    index, accuracy = ([r[a][b] for r in run] for a, b in (("retrained", "pq_index"), ("test", "accuracy")))
    standing = max(t for t, value in enumerate(accuracy) if value >= accuracy[0] - 0.05) + 1
    low = index.index(min(index[:standing]))
    high = index.index(max(index[low:]))
    steepest = min(range(1, len(run)), key=lambda t: accuracy[t] - accuracy[t - 1])
    cells = [f"{index[t]:.3f} ({100 * accuracy[t]:.1f})" for t in (0, low, high, -1)]
    row = table("cifar10-cnn-ablations", "The hypothesis")["q = 1.8"]
    assert row == ["q = 1.8", *cells, str(high), str(steepest), "yes"]


@pytest.mark.parametrize("study", [a.study.name for a in ablation_runs.ABLATIONS])
def test_how_many_settings_do_as_said_is_what_the_table_says(study):
    cells = [row[-1] for name, row in table(study, "The hypothesis").items() if " = " in name]
    counts = [cell.split(" of ") if " of " in cell else (cell == "yes", 1) for cell in cells]
    done, all_of_them = (sum(map(int, column)) for column in zip(*counts, strict=True))
    text = words((RESULTS / study / "README.md").read_bytes())
    assert f"**The index falls, rises and falls in {done} of {all_of_them} " in text
    assert f"[in {done} of {all_of_them}](#the-hypothesis)" in text


@pytest.mark.parametrize("study", [a.study.name for a in ablation_runs.ABLATIONS])
def test_words_about_p_and_q_are_those_of_the_table(study):
    rows = [row for name, row in table(study, "p and q, η_r and γ").items() if re.match("[pq] = ", name)]
    text = words((RESULTS / study / "README.md").read_bytes())
    for column, density in zip(range(7, 11), ("10 %", "5 %", "2 %", "1 %"), strict=True):
        found = [row[column].partition(" ")[0] for row in rows if len(row) > column and row[column]]
        assert f"{min(found)}–{max(found)} % at {density}" in text


@pytest.mark.parametrize(
    ("a", "verdict"),
    [(ablation_runs.CNN, "Cannot be told, as it depends on the measure"), (ablation_runs.FASHION, "No")],
)
def test_the_index_of_layers_is_judged_by_two_measures(a, verdict):
    claim = table(a.study.name, "Beside the paper")["The index of layers is more stable in neuron scope"][1]
    assert claim.startswith(f"**{verdict}.**")
    curves = a.layers.sort_values("round").groupby(["scope", "layer", "seed"])["pq_index"].agg(list)
    for name, measure in (("range", lambda x: max(x) - min(x)), ("standard deviation", statistics.stdev)):
        means = {s: statistics.fmean(map(measure, curves[s])) for s in ("neuron", "layer", "global")}
        assert f"a {name} of " + ", ".join(f"{value:.3f} ({s})" for s, value in means.items()) in claim


def test_two_runs_are_apart_by_three_standard_deviations_of_seeds():
    a, pair = ablation_runs.CNN, ((SAP2, "neuron"), ("Lottery Ticket", "neuron"))
    gaps = {d: (a.gap(*pair, d).mean, max(a.noise[n, d] for n, _ in pair)) for d in DENSITIES if d >= 0.01}
    signs = {d: a.clear(*pair, d) for d in gaps}
    assert signs == {d: int(gap > 3 * sd) - int(gap < -3 * sd) for d, (gap, sd) in gaps.items()}
    assert set(signs.values()) >= {0, 1}
    assert {d: verdict for (_, d), (_, verdict) in a.judged({"": pair}).items()} == signs


def test_lines_on_each_other_are_named():
    def many(*rounds):
        return [[{"retrained": {"density": d}, "test": {"accuracy": a}} for d, a in rounds]]

    one, low, lower = (1.0, 0.9), (0.1, 0.5), (0.05, 0.1)
    lines = {"a": many(one, low, lower), "b": many(one, low), "c": many(one, (0.1, 0.85))}
    assert ablations.one_line(lines, 78) == ["a and b are one line"]
    assert ablations.one_line(lines, 20) == []


@pytest.mark.slow
def test_the_picture_of_both_numbers_of_epochs_lies_with_the_larger(place):
    full, short = "cifar10-resnet18", "cifar10-resnet18-20"
    shutil.copytree(RESULTS / short, place / short)
    (place / short / "epochs.png").write_bytes(b"older")
    shutil.copytree(RESULTS / full, place / full, ignore=shutil.ignore_patterns("*.png"))
    for name in (short, full):
        four_methods.write(Study(name))
    found = sorted(str(file.relative_to(place)) for file in place.glob("cifar10-resnet18*/*.png"))
    alone, both = ("fig3", "overview"), ("clipped-first", "epochs", "fig3")
    assert found == [*(f"{short}/{name}.png" for name in alone), *(f"{full}/{name}.png" for name in both)]


@pytest.mark.slow
def test_the_overview_says_which_study_is_under_way(place, monkeypatch):
    monkeypatch.setattr("results.overview.HERE", place)
    under_way = "cifar10-resnet18-20"
    for name in STUDIES:
        if name != under_way and not (place / name).exists():
            (place / name).symlink_to(RESULTS / name)
    stand_in(place, under_way, reach=12)
    text = words(overview.text())
    assert f"({under_way}/README.md), under way | 4 | 1 | 15 | 20 |" in text
    assert "on CIFAR10 with four or one, on CIFAR100 and TinyImageNet with one and a few rounds" in text
    assert "ResNet18 on FashionMNIST and Linear on CIFAR10 too" in text


@pytest.mark.slow
def test_the_pages_are_what_the_records_give():
    apart = {a.study: a for a in ablation_runs.ABLATIONS}
    texts = {overview.HERE: overview.text()}
    for study in overview.studies():
        if study != precision.STUDY:
            text = ablations.text(apart[study]) if study in apart else four_methods.text(study)
            texts[study.folder] = text
    assert [folder for folder, text in texts.items() if (folder / "README.md").read_bytes() != text] == []
    assert overview.front() in overview.FRONT.read_text()
