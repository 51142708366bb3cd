"""`make pages`: every page and picture of docs/ that is computed."""

import runpy
from pathlib import Path

for script in (
    "make_axioms.py",
    "make_bound.py",
    "make_smaller.py",
    "make_renda.py",
    "make_figure.py",
    "make_accuracies.py",
    "make_run.py",
    "make_paper.py",
    "make_example_report.py",
):
    runpy.run_path(str(Path(__file__).with_name(script)), run_name="__main__")
