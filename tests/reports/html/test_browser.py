"""HTML report in a real browser: charts, controls, downloads, layout and print."""

from __future__ import annotations

import base64
import itertools
import json
import time

import pandas as pd
import pytest
from ablation_runs import ablations
from browser import CHROMIUM, WAIT_S, Browser
from report_runs import embedded, made_of, rows_of, run_of, small_runs

from palmette.reports.html.page import page
from palmette.studies.experiment import Experiment

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")
FIGURE = "document.querySelector('[data-panel={}]')"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return made_of(small_runs(folder / "runs"), folder / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.end()


@pytest.fixture
def opened(browser, made):
    browser.open(made)
    return browser


def lines(browser, panel):
    return browser.js(f"{FIGURE.format(panel)}.querySelectorAll('.mark-line path').length")


def drawn(browser, panel, name):
    return browser.js(f"palmette.views.get({FIGURE.format(panel)}).view.data('{name}')")


def test_every_chart_is_drawn_without_errors_or_network(opened, made):
    assert opened.js("document.querySelectorAll('figure').length") == 10
    assert opened.js(
        "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg .mark-symbol, svg .mark-rect'))"
    )
    assert opened.complaints() == []
    asked = [
        e["params"]["request"]["url"] for e in opened.events if e.get("method") == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith("data:")] == [made.as_uri()]


def test_charts_draw_the_embedded_numbers(opened, made):
    (study,) = embedded(made.read_text())["studies"]
    for panel, table in (("accuracy", "curves"), ("phases", "rounds"), ("cut", "layers"), ("map", "maps")):
        found = drawn(opened, panel, table)
        rows = rows_of(study["tables"][table])
        assert [{key: one[key] for key in row} for one, row in zip(found, rows, strict=True)] == rows
    assert lines(opened, "accuracy") == 2
    bands = opened.js(f"{FIGURE.format('accuracy')}.querySelectorAll('.mark-area path').length")
    assert bands == 2  # one per method, not one per point


def test_method_can_be_switched_off_and_on(opened):
    box = "document.querySelector('input[value=\"Lottery Ticket\"]')"
    for count in (1, 2):
        opened.click(box)
        for panel in ("accuracy", "pq_index", "density", "gini_index", "trade_off"):
            opened.until(f"{FIGURE.format(panel)}.querySelectorAll('.mark-line path').length === {count}")
    assert opened.complaints() == []


def test_last_method_cannot_be_switched_off(opened):
    boxes = "[...document.querySelectorAll('input[type=checkbox]')]"
    assert opened.js(f"{boxes}.map(box => box.disabled)") == [False, False]
    for number in (0, 1):
        opened.click(f"{boxes}[{number}]")
    opened.until(f"{FIGURE.format('trade_off')}.querySelectorAll('.mark-line path').length === 1")
    assert opened.js(f"{boxes}.map(box => [box.checked, box.disabled])") == [[False, False], [True, True]]
    opened.click(f"{boxes}[0]")
    opened.until(f"{FIGURE.format('trade_off')}.querySelectorAll('.mark-line path').length === 2")
    assert opened.js(f"{boxes}.some(box => box.disabled)") is False
    assert opened.complaints() == []


@pytest.fixture
def many(browser, tmp_path):
    """Page of more series than looks."""
    file = tmp_path / "many.html"
    file.write_text(page(ablations()), encoding="utf-8")
    browser.open(file, width=400)
    return browser


SHOWN = "[...document.querySelectorAll('[data-signal=shown]')].filter(b => b.checked)"
NAMED = "[...document.querySelectorAll('label:has([data-signal=shown])')].filter(l => l.offsetParent)"


def test_series_of_a_large_study_can_be_chosen_with_the_keyboard(many):
    assert many.js(f"{NAMED}.length") == lines(many, "accuracy") == 7
    assert many.js(f"{SHOWN}.map(b => b.dataset.look)") == list("0123456")
    many.js("document.querySelector('[data-all]').focus()")
    many.press(" ", 32)
    many.until(f"{NAMED}.length === 17")
    many.js("document.querySelector('[data-signal=shown]:checked').focus()")
    many.press(" ", 32)
    many.until(f"{FIGURE.format('accuracy')}.querySelectorAll('.mark-line path').length === 6")
    last = "[...document.querySelectorAll('[data-signal=shown]')].at(-1)"
    many.js(f"{last}.focus()")
    many.press(" ", 32)
    many.until(f"{FIGURE.format('accuracy')}.querySelectorAll('.mark-line path').length === 7")
    assert many.js(f"{last}.dataset.look") == "0"  # the one that became free
    colours = (
        f"[...{FIGURE.format('accuracy')}.querySelectorAll('.mark-line path')].map(p => p.getAttribute('stroke'))"
    )
    assert len(set(many.js(colours))) == 7
    assert many.js("document.documentElement.scrollWidth") <= 400
    assert many.complaints() == []


def test_at_most_seven_series_are_shown_at_once(many):
    many.js("document.querySelector('[data-all]').focus()")
    many.press(" ", 32)
    many.until(f"{NAMED}.length === 17")
    many.until(f"{FIGURE.format('trade_off')}.querySelectorAll('.mark-line path').length === 7")
    assert sorted(many.js(f"{SHOWN}.map(b => b.dataset.look)")) == list("0123456")
    assert many.js("document.querySelectorAll('[data-signal=shown]:disabled').length") == 10
    assert many.js("document.querySelector('[data-full]').offsetParent !== null")
    many.click("document.querySelector('[data-signal=shown]:checked')")
    many.until(f"{FIGURE.format('trade_off')}.querySelectorAll('.mark-line path').length === 6")
    assert many.js("document.querySelectorAll('[data-signal=shown]:disabled').length") == 0
    assert many.complaints() == []


def test_slider_changes_the_round_of_the_map(opened, made):
    colours = (
        f"[...{FIGURE.format('map')}.querySelectorAll('.mark-rect path')].map(p => p.getAttribute('fill')).join()"
    )
    before = opened.js(colours)
    opened.js("document.querySelector('input[type=range]').focus()")
    for _ in range(2):
        opened.press("ArrowRight", 39)
    opened.until("document.querySelector('output').value === '2'")
    opened.until(f"palmette.views.get({FIGURE.format('map')}).view.signal('round') === 2")
    opened.until(f"{colours} !== {json.dumps(before)}")
    labels = (
        f"[...{FIGURE.format('map')}.querySelectorAll('.mark-rect path')].map(p => p.getAttribute('aria-label'))"
    )
    (study,) = embedded(made.read_text())["studies"]
    row = rows_of(study["tables"]["maps"])[2]
    assert len(opened.js(labels)) == 110
    assert f"PQ Index: {row['pq_index'][1]:.4f}"[:14] in next(
        x for x in opened.js(labels) if "q: 1.1;" in x and "p: 0.1;" in x
    )
    assert opened.complaints() == []


def test_method_of_the_layer_charts_can_be_chosen(opened):
    paths = f"{FIGURE.format('layer_density')}.querySelector('.mark-line path').getAttribute('d')"
    before = opened.js(paths)
    opened.js("document.querySelector('select[data-signal=method]').focus()")
    opened.press("ArrowDown", 40)
    opened.until("document.querySelector('select[data-signal=method]').value === 'Lottery Ticket'")
    opened.until(f"{paths} !== {json.dumps(before)}")
    assert opened.complaints() == []


@pytest.mark.parametrize(("steps", "title"), [(1, "density: weights that remain"), (2, "parameters that remain")])
def test_x_axis_can_be_chosen(opened, steps, title):
    opened.js("document.querySelector('select[data-x]').focus()")
    for _ in range(steps):
        opened.press("ArrowDown", 40)
    for panel in ("accuracy", "pq_index", "density", "gini_index"):
        opened.until(f"{FIGURE.format(panel)}.textContent.includes('{title}')")
    assert lines(opened, "accuracy") == 2
    assert opened.complaints() == []


def test_hovering_over_a_point_shows_its_values(opened, made):
    (study,) = embedded(made.read_text())["studies"]
    row = rows_of(study["tables"]["curves"])[3]
    at = opened.place(f"[...{FIGURE.format('density')}.querySelectorAll('.points_marks path')][3]")
    opened("Input.dispatchMouseEvent", type="mouseMoved", **at)
    opened.until("document.querySelector('#vg-tooltip-element.visible') !== null")
    text = opened.js("document.querySelector('#vg-tooltip-element').textContent")
    assert text.startswith(f"method{row['series']}round3density{100 * row['density']:.2f}%")
    assert f"± sd{100 * row['density_sd']:.2f}%seeds2" in text


@pytest.mark.parametrize(
    ("panel", "word"), [("accuracy", "method"), ("trade_off", "method"), ("layer_index", "layer")]
)
def test_nearest_point_shows_its_tooltip(opened, panel, word):
    figure = FIGURE.format(panel)
    rings = f"[...{figure}.querySelectorAll('.points_marks path')].filter(p => p.getAttribute('opacity') === '1')"
    opened.place(figure)
    box = opened.js(
        f"(b => [b.x, b.y, b.width, b.height])({figure}.querySelector('.background').getBoundingClientRect())"
    )
    found = []
    for step in range(25):
        right, down = (step % 5 + 0.5) / 5, (step // 5 + 0.5) / 5
        at = {"x": box[0] + right * box[2], "y": box[1] + down * box[3]}
        opened("Input.dispatchMouseEvent", type="mouseMoved", **at)
        opened.until(f"document.querySelector('#vg-tooltip-element.visible') && {rings}.length === 1")
        found.append(opened.js("document.querySelector('#vg-tooltip-element').textContent"))
    assert all(text.startswith(word) and "undefined" not in text for text in found)
    assert len(set(found)) > 3
    opened("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    opened.until(f"{rings}.length === 0")
    assert opened.complaints() == []


def downloaded(browser, panel, folder):
    session, browser.session = browser.session, None
    browser("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    browser.session = session
    browser.click(f"{FIGURE.format(panel)}.querySelector('button')")
    file = folder / f"digits-mlp-{panel}.csv"
    end = time.monotonic() + WAIT_S
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return pd.read_csv(file)


def test_data_of_a_chart_can_be_downloaded(opened, made, tmp_path):
    (study,) = embedded(made.read_text())["studies"]
    table = downloaded(opened, "accuracy", tmp_path)
    rows = rows_of(study["tables"]["curves"])
    assert list(table.columns) == list(rows[0])
    assert table["accuracy"].tolist() == [row["accuracy"] for row in rows]
    assert table["series"].tolist() == [row["series"] for row in rows]


def test_downloaded_maps_have_one_row_per_p_and_q(opened, made, tmp_path):
    (study,) = embedded(made.read_text())["studies"]
    table = downloaded(opened, "map", tmp_path)
    assert list(table.columns) == ["series", "round", "n", "p", "q", "pq_index"]
    assert len(table) == 2 * 4 * 110
    of = table[(table["series"] == "Lottery Ticket") & (table["round"] == 3) & (table["p"] == 0.5)]
    row = rows_of(study["tables"]["maps"])[7]
    assert of["pq_index"].tolist() == row["pq_index"][44:55]


def test_headings_skip_no_level(opened):
    levels = opened.js("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert set(levels) == {1, 2, 3, 4}


def test_buttons_and_charts_have_names_of_their_own(opened):
    names = opened.js("[...document.querySelectorAll('button')].map(b => b.ariaLabel ?? b.textContent)")
    assert len(names) > 10
    assert len(set(names)) == len(names)
    charts = opened.js("[...document.querySelectorAll('.chart')].map(c => c.ariaLabel)")
    assert len(set(charts)) == 10
    assert any("Lottery Ticket from " in chart and " in round 3" in chart for chart in charts)


def test_a_click_on_a_heading_sorts_a_table(opened):
    heads = "[...document.querySelectorAll('[data-table] th')]"
    opened.click(f"{heads}.find(h => h.textContent === 'density kept').firstChild")
    cells = "[...document.querySelectorAll('[data-table] tbody')][0].rows"
    shares = f"[...{cells}].map(row => parseFloat(row.cells[3].textContent))"
    found = opened.js(shares)
    assert found == sorted(found, reverse=True)
    opened.click(f"{heads}.find(h => h.textContent === 'density kept').firstChild")
    assert opened.js(shares) == found[::-1]
    assert opened.js(f"{heads}.find(h => h.textContent === 'density kept').ariaSort") == "ascending"


def test_the_trade_off_shows_the_difference_from_dense_and_the_tolerance(browser, tmp_path):
    (tmp_path / "near.html").write_text(page([run_of(Experiment(), [0.9, 0.895, 0.86, 0.1])]))
    browser.open(tmp_path / "near.html")
    assert browser.js(f"{FIGURE.format('trade_off')}.querySelectorAll('.mark-rule.role-mark line').length") == 1
    low, high = browser.js(f"palmette.views.get({FIGURE.format('trade_off')}).view.scale('y').domain()")
    assert -0.05 <= low <= -0.04 < 0 <= high


@pytest.mark.parametrize("width", [400, 900, 1600])
def test_nothing_is_wider_than_the_window(browser, made, width):
    browser.open(made, width=width)
    assert browser.js("document.documentElement.scrollWidth") <= width
    too_wide = (
        "[...document.querySelectorAll('figure')].filter(f => f.querySelector('svg').clientWidth > f.clientWidth)"
    )
    assert browser.js(f"{too_wide}.length") == 0


def test_first_column_stays_visible_while_scrolling(browser, tmp_path):
    runs = [Experiment(), Experiment(scope="neuron", weight_decay=0.001, clip=None, label_smoothing=0.1)]
    (tmp_path / "names.html").write_text(page([run_of(e, [0.9, 0.9]) for e in runs]))
    browser.open(tmp_path / "names.html", width=400)
    browser.js("document.querySelectorAll('.scroll').forEach(table => table.scrollLeft = 9999)")
    places = "[...document.querySelectorAll('.scroll td:first-child')].map(cell => cell.getBoundingClientRect())"
    for left, right in browser.js(f"{places}.map(place => [place.left, place.right])"):
        assert 0 <= left < right <= 200


def test_method_names_do_not_break_within_parentheses(browser, tmp_path):
    runs = [Experiment(), Experiment(scope="neuron"), Experiment(scope="layer", gamma=3)]
    (tmp_path / "names.html").write_text(page([run_of(e, [0.9, 0.9]) for e in runs]))
    browser.open(tmp_path / "names.html", width=400)
    top = """(cell, i) => {
        const range = document.createRange();
        range.setStart(cell.firstChild, i);
        range.setEnd(cell.firstChild, i + 1);
        return range.getBoundingClientRect().top;
    }"""
    cells = "[...document.querySelectorAll('.scroll td:first-child')].filter(c => c.textContent.includes('),'))"
    places = f"{cells}.map(c => [0, c.textContent.indexOf('),') + 1].map(i => ({top})(c, i)))"
    found = browser.js(places)
    assert len(found) == 4
    assert all(first == comma for first, comma in found)


def axes_of(browser, file, runs):
    """Visible labels along the two axes of each chart."""
    file.write_text(page(runs), encoding="utf-8")
    browser.open(file)
    labels = "[...a.querySelectorAll('text')].filter(t => t.style.opacity !== '0').map(t => t.textContent)"
    axes = f"[...f.querySelectorAll('.role-axis-label')].map(a => {labels}.filter(Boolean))"
    found = browser.js(f"[...document.querySelectorAll('figure')].map(f => [f.dataset.panel, {axes}])")
    return dict(found)


@pytest.mark.slow
def test_axis_of_few_rounds_has_whole_rounds_only(browser, tmp_path):
    for count in (1, 2, 4):
        found = axes_of(browser, tmp_path / "few.html", [run_of(Experiment(), [0.9] * count)])
        for panel in ("accuracy", "pq_index", "density", "phases", "layer_density", "cut"):
            assert found[panel][0] == [str(t) for t in range(count)], panel


@pytest.mark.parametrize(
    ("last", "numbers"), [(30, range(0, 31, 5)), (15, range(0, 16, 3)), (11, (0, 2, 4, 6, 8, 11))]
)
def test_round_axis_ends_with_a_labelled_last_round(browser, tmp_path, last, numbers):
    file = tmp_path / "rounds.html"
    # The charts of one method show the run that ended early.
    runs = [run_of(Experiment(), [0.9] * 3), run_of(Experiment(method="one-shot"), [0.9] * (last + 1))]
    found = axes_of(browser, file, runs)
    for panel in ("accuracy", "phases", "layer_density", "cut"):
        assert found[panel][0] == [str(t) for t in numbers], panel
    assert browser.js(f"palmette.views.get({FIGURE.format('accuracy')}).view.scale('x').domain()") == [0, last]


def test_log_axis_within_a_decade_has_even_labels(browser, tmp_path):
    runs = [run_of(Experiment(), [0.9] * 4, [0.17, 0.11, 0.09, 0.075])]
    found = axes_of(browser, tmp_path / "narrow.html", runs)
    assert found["pq_index"][1] == [f"{n / 100:g}" for n in range(8, 18)]
    assert axes_of(browser, tmp_path / "one.html", [run_of(Experiment(), [0.9], [0.1221335])])["pq_index"][1] == [
        "0.122"
    ]


@pytest.mark.parametrize(
    ("least", "numbers"),
    [
        (0.051, ["0.05", "0.07", "0.1", "0.2", "0.3"]),
        (0.016, ["0.02", "0.03", "0.05", "0.07", "0.1", "0.2", "0.3"]),
        (0.0049, ["0.005", "0.01", "0.02", "0.05", "0.1", "0.2"]),
        (0.00049, ["0.001", "0.01", "0.1"]),
    ],
)
def test_log_axis_labels_depend_on_its_span(browser, tmp_path, least, numbers):
    found = axes_of(browser, tmp_path / "wide.html", [run_of(Experiment(), [0.9] * 3, [0.31, 0.09, least])])
    assert found["pq_index"][1] == numbers


def test_layer_legend_fits_a_narrow_panel(browser, tmp_path):
    layers = [f"convolution{number}.weight" for number in range(5)]
    (tmp_path / "layers.html").write_text(page([run_of(Experiment(), [0.9, 0.9], layers=layers)]))
    browser.open(tmp_path / "layers.html", width=400)
    for panel in ("layer_density", "layer_index", "cut"):
        figure = FIGURE.format(panel)
        names = f"[...{figure}.querySelectorAll('.role-legend-label text')]"
        assert browser.js(f"{names}.map(name => name.textContent)") == [f"convolution{n}" for n in range(5)]
        inside = f"Math.max(...{names}.map(name => name.getBoundingClientRect().right))"
        assert browser.js(f"{inside} < {figure}.getBoundingClientRect().right"), panel


def test_network_without_weights_is_not_drawn(browser, tmp_path):
    experiment, records = run_of(Experiment(), [0.9, 0.89, 0.1])
    records[2]["retrained"] |= {"kept": 0, "density": 0.0}
    records[2]["cut"] = {"weights": 0, "layers": {"a.weight": 0}}
    found = axes_of(browser, tmp_path / "nothing.html", [(experiment, records)])
    assert (found["trade_off"][0][0], found["trade_off"][0][-1]) == ("50%", "100%")
    bars = f"[...{FIGURE.format('cut')}.querySelectorAll('.mark-rect.role-mark path')]"
    assert browser.js(f"{bars}.map(bar => bar.getAttribute('opacity'))") == ["1", "1", "0"]


def test_long_layer_names_stay_distinct(browser, tmp_path):
    many = [f"model.decoder.layers.{number}.self_attention.query.weight" for number in range(9)]
    found = axes_of(
        browser, tmp_path / "long.html", [run_of(Experiment(), [0.9, 0.9], layers=[*many, "a.weight"])]
    )
    names = found["layer_density"][1]
    assert len(set(names)) == 10
    assert names[-1] == "a"


def test_charts_follow_the_window_width(browser, made):
    browser.open(made, width=1600)
    browser("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False)
    browser.until("[...document.querySelectorAll('figure svg')].every(s => s.clientWidth < 400)")


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_page_follows_the_colour_scheme(opened, scheme, dark):
    opened("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    paper, ink = (opened.js(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    label = opened.js("getComputedStyle(document.querySelector('svg .role-axis-label text')).fill")
    brightness = [sum(map(int, colour[4:-1].split(",")[:3])) for colour in (paper, ink)]
    assert (brightness[0] < brightness[1]) is dark
    assert label == ink
    opened("Emulation.setEmulatedMedia", features=[])


def test_print_stylesheet_avoids_page_breaks_inside_panels(opened):
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened("Emulation.setEmulatedMedia", media="print", features=dark)
    assert opened.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for part in ("figure", ".card", ".verdict", ".controls", ".scroll", "dl", "tr"):
        assert opened.js(f"getComputedStyle(document.querySelector('{part}')).breakInside") == "avoid", part
    opened("Emulation.setEmulatedMedia", media="", features=[])
    paper = base64.b64decode(opened("Page.printToPDF", printBackground=True)["data"])
    assert paper.startswith(b"%PDF")
    assert len(paper) > 20_000
