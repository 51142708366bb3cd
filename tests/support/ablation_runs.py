"""Made-up ablation runs for tests of the HTML report."""

from __future__ import annotations

from report_runs import run_of

from palmette.studies.experiment import Experiment


def ablations():
    """Three values of p, nine of gamma, and three scopes of two methods: 17 series."""
    many = [{"p": p} for p in (0.2, 0.4, 0.6)] + [{"gamma": gamma} for gamma in (2, 3, 4, 5, 6, 7, 8, 9, 10)]
    many += [{"scope": scope} for scope in ("global", "layer", "neuron")]
    many += [{"method": "one-shot", "scope": scope} for scope in ("layer", "neuron")]
    return [run_of(Experiment(seed=seed, **one), [0.9, 0.9, 0.3]) for one in many for seed in (0, 1)]
