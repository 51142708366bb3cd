"""The page about shares of a cut says what its file says."""

import re

import make_shares
import pytest

ROWS = make_shares.recorded()
FOUND = {(row["network"], row["cut"], row["shares"]): float(row["result"]) for row in ROWS}


@pytest.mark.parametrize("part", [make_shares.table, make_shares.sap_table])
def test_page_shows_the_rows_on_file(part):
    assert part(ROWS) in make_shares.PAGE.read_text(encoding="utf-8")


def test_the_page_counts_where_shares_by_the_index_beat_uniform_ones():
    page = make_shares.PAGE.read_text(encoding="utf-8")
    wins, tried = map(int, re.search(r"beats uniform shares\s+in (\d+) of the (\d+) cuts below", page).groups())
    cuts = [key[:2] for key in FOUND if key[2] == "uniform" and f"| {key[0]} | {float(key[1]):.0%} |" in page]
    sign = {cut: -1 if cut[0].startswith("SmolLM2") else 1 for cut in cuts}  # a perplexity
    won = [s * FOUND[*cut, "index 0.5 1"] > s * FOUND[*cut, "uniform"] for cut, s in sign.items()]
    assert (sum(won), len(won)) == (wins, tried)


@pytest.mark.parametrize("network", ["ResNet-20", "ResNet-32", "SmolLM2-135M"])
@pytest.mark.parametrize("cut", [f"{cut:g}" for cut in make_shares.CUTS])
def test_the_direction_of_sap_is_far_behind(network, cut):
    uniform, sap = FOUND[network, cut, "uniform"], FOUND[network, cut, "sap 0.5 1"]
    assert sap > 2 * uniform if network.startswith("SmolLM2") else sap < uniform - 0.04
