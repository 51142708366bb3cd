"""The page about shares of a cut says what its file says."""

import make_shares
import pytest

ROWS = make_shares.recorded()
FOUND = {(row["network"], row["cut"], row["shares"]): float(row["result"]) for row in ROWS}


@pytest.mark.parametrize("part", [make_shares.table, make_shares.sap_table])
def test_page_shows_the_rows_on_file(part):
    assert part(ROWS) in make_shares.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("network", "cut", "way"), [key for key in FOUND if key[2] == "uniform"])
def test_shares_by_the_index_beat_uniform_ones(network, cut, way):
    sign = -1 if network.startswith("SmolLM2") else 1  # a perplexity
    if (network, cut, "index 0.5 1") in FOUND:
        assert sign * FOUND[network, cut, "index 0.5 1"] > sign * FOUND[network, cut, way]


@pytest.mark.parametrize("network", ["ResNet-20", "SmolLM2-135M"])
@pytest.mark.parametrize("cut", [f"{cut:g}" for cut in make_shares.CUTS])
def test_the_direction_of_sap_is_far_behind(network, cut):
    uniform, sap = FOUND[network, cut, "uniform"], FOUND[network, cut, "sap 0.5 1"]
    assert sap > 2 * uniform if network.startswith("SmolLM2") else sap < uniform - 0.05
