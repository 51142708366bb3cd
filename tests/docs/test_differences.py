"""The table about the order of clipping is that of the records and of the published figure."""

import re
from pathlib import Path

from on_record import CLIPPED, RESNET, density, index, line

PAGE = (Path(__file__).parents[2] / "docs/differences.md").read_text(encoding="utf-8")
SAP = "SAP (p=1, q=2)"


def test_indices_of_both_orders_are_those_of_the_records_and_of_figure_3():
    part = PAGE.partition("## Clipping order")[2].partition("\n## ")[0]
    shown = {
        int(row[0]): row[1:] for row in re.findall(r"^\| (\d) \| (\S+) \| (\S+) \| (\S+) \|$", part, re.MULTILINE)
    }
    assert set(shown) == {1, 2, 3}
    for t, cells in shown.items():
        measured = line("retrained/pq_index", "sap_p1_q2")[t], index(CLIPPED, SAP, t), index(RESNET, SAP, t)
        assert cells == tuple(f"{value:.3f}" for value in measured)
    kept = (100 * density(study, SAP, 3) for study in (CLIPPED, RESNET))
    assert "{:.1f} instead of {:.1f} % of the weights".format(*kept) in " ".join(part.split())
