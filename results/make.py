"""`python -m results.make`: the pages and pictures of results/, and the README's table, from the records."""

from __future__ import annotations

from results import ablation_runs, ablations, four_methods, overview, precision


def main() -> None:
    """Write all of them; under a minute on a CPU."""
    for ablation in ablation_runs.ABLATIONS:
        ablations.write(ablation)
    precision.write()
    for study in overview.studies():
        if study not in (*(a.study for a in ablation_runs.ABLATIONS), precision.STUDY):
            four_methods.write(study)
    overview.write()


if __name__ == "__main__":
    main()
