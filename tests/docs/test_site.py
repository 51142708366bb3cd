"""The site that `make docs` makes: without a network, without a warning, and it opens from disk in a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import CHROMIUM, Browser

pytestmark = pytest.mark.slow
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")
ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"  # a proxy that is not there: whoever asks the network fails


class Parsed(HTMLParser):
    """What a page of the site links to, what it loads, and the names of its places."""

    def __init__(self, page):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif given.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.loads += [given[name] for name in ("href", "src") if given.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", folder]
    offline = os.environ | dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    done = subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The pages by name, but for the report, which is a page of its own, and the one that leads to the first."""
    named = {str(page.relative_to(site).with_suffix("")): page for page in sorted(site.rglob("*.html"))}
    return {name: page for name, page in named.items() if name != "index" and "example-report" not in name}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.end()


def opened(browser, page, *, width=1600, query="", scheme="light"):
    browser.events.clear()
    browser("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    address = page.as_uri() + query
    browser("Page.navigate", url=address)
    browser.until(f"document.readyState === 'complete' && location.href === '{address}'")
    return browser


def test_there_is_a_page_for_each_page(pages):
    sources = [*(ROOT / "docs").glob("*.md"), *(ROOT / "results").rglob("*.md"), ROOT / "CHANGELOG.md"]
    assert {str(page.relative_to(ROOT).with_suffix("")) for page in sources} <= pages.keys()


def test_every_link_and_every_file_that_is_loaded_is_part_of_the_site(site, pages):
    parsed = {page: Parsed(page) for page in pages.values()}
    missing = []
    for page, found in parsed.items():
        assert [address for address in found.loads if urlsplit(address).scheme not in ("", "data")] == []
        for address in (*found.links, *found.loads):
            link = urlsplit(address)
            if link.scheme:
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            there = target.is_file() and target.is_relative_to(site.resolve())
            if there and link.fragment and target in parsed:
                there = unquote(link.fragment) in parsed[target].ids
            if not there:
                missing.append((page.name, address))
    assert missing == []


@needs_browser
@pytest.mark.parametrize("width", [400, 1600])
def test_every_page_opens_from_disk_without_a_complaint(browser, pages, width):
    for page in pages.values():
        opened(browser, page, width=width)
        assert browser.complaints() == [], page.name
        asked = [e["params"]["request"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
        assert {urlsplit(request["url"]).scheme for request in asked} <= {"file", "data"}, page.name
        assert browser.js("document.documentElement.scrollWidth") <= width, page.name
        assert browser.js("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)") == [], page.name


@needs_browser
@pytest.mark.parametrize("name", ["measure", "algorithm", "axioms", "api-measures", "api-pruning"])
def test_equations_are_drawn(browser, pages, name):
    opened(browser, pages[f"docs/{name}"])
    assert browser.js("document.querySelectorAll('math').length") > 4
    empty = "[...document.querySelectorAll('math')].filter(m => m.getBoundingClientRect().height < 5).length"
    assert browser.js(empty) == 0
    words = (
        "(page => { page.querySelectorAll('pre, code').forEach(e => e.remove()); return page.textContent })"
        "(document.querySelector('article').cloneNode(true))"
    )
    text = browser.js(words)
    assert [mark for mark in ("\\", "$", ":math:", "^{") if mark in text] == []


@needs_browser
def test_a_fraction_has_its_parts_one_above_the_other(browser, pages):
    opened(browser, pages["docs/measure"])
    place = "(e => [e.getBoundingClientRect().top, e.getBoundingClientRect().bottom])"
    fraction = "document.querySelector('math[display=block] mfrac')"
    (_, upper), (lower, _) = (browser.js(f"{place}({fraction}.children[{i}])") for i in (0, 1))
    assert upper <= lower


@needs_browser
def test_the_search_finds_a_name_from_disk(browser, pages):
    opened(browser, pages["search"], query="?q=tail_mass_count")
    browser.until("document.querySelectorAll('#search-results li').length > 0")
    found = browser.js("[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href'))")
    assert any(address.startswith("docs/api-measures.html") for address in found)
    assert browser.complaints() == []


@needs_browser
def test_the_site_is_light_or_dark_as_the_reader_wants(browser, pages):
    shades = []
    for scheme in ("light", "dark"):
        opened(browser, pages["docs/index"], scheme=scheme)
        colour = browser.js("getComputedStyle(document.body).backgroundColor")
        shades.append(sum(map(int, colour[4:-1].split(",")[:3])))
    assert shades[0] > 600
    assert shades[1] < 150


@needs_browser
def test_the_top_of_the_site_leads_to_the_first_page(browser, site):
    browser("Page.navigate", url=(site / "index.html").as_uri())
    browser.until("location.pathname.endsWith('/docs/index.html') && document.querySelector('h1') !== null")


@needs_browser
def test_the_example_report_is_one_click_away(browser, pages):
    opened(browser, pages["docs/index"])
    browser.click("document.querySelector('article a[href=\"../example-report.html\"]')")
    browser.until("document.documentElement?.dataset.drawn === 'yes'")
    assert browser.complaints() == []
    assert browser.js("document.querySelectorAll('figure').length") == 10


def test_the_example_report_is_small():
    assert (ROOT / "docs/example-report.html").stat().st_size < 3_000_000
