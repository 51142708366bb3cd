"""Prune PyTorch models step by step, and find out how far each can go.

The PQ Index sizes each cut, accuracy decides when to stop, and a search finds the limit.

>>> import palmette as pm
>>> pm.pq_index([3.0, 4.0, 0.0, 0.0], p=1, q=2)
0.3
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from palmette.checkpoints.publishing import push_to_hub as push_to_hub
    from palmette.checkpoints.report import how_compressible as how_compressible
    from palmette.compression.compaction.compact import compact as compact
    from palmette.compression.packing import load as load
    from palmette.compression.packing import save as save
    from palmette.compression.speed import speed as speed
    from palmette.measures.bound import eta_of_cut as eta_of_cut
    from palmette.measures.bound import retained_lower_bound as retained_lower_bound
    from palmette.measures.bound import tail_mass_count as tail_mass_count
    from palmette.measures.classic import MEASURES as MEASURES
    from palmette.measures.gini import gini_index as gini_index
    from palmette.measures.pq import pq_index as pq_index
    from palmette.pruning.budgets import Allocated as Allocated
    from palmette.pruning.budgets import Densities as Densities
    from palmette.pruning.budgets import FixedRatio as FixedRatio
    from palmette.pruning.budgets import Sap as Sap
    from palmette.pruning.budgets import TailMass as TailMass
    from palmette.pruning.choosing.torch_prune import from_torch_prune as from_torch_prune
    from palmette.pruning.cut import TopK as TopK
    from palmette.pruning.cut import prune as prune
    from palmette.pruning.decision import Decision as Decision
    from palmette.pruning.gradients import Movement as Movement
    from palmette.pruning.gradients import gradients as gradients
    from palmette.pruning.gradients import synflow as synflow
    from palmette.pruning.masks import Masks as Masks
    from palmette.pruning.methods import METHODS as METHODS
    from palmette.pruning.methods import Method as Method
    from palmette.pruning.pruner import Pruner as Pruner
    from palmette.pruning.saliency import PerCut as PerCut
    from palmette.pruning.saliency import magnitude as magnitude
    from palmette.pruning.saliency import magnitude_of as magnitude_of
    from palmette.pruning.stopping import AfterSteps as AfterSteps
    from palmette.pruning.stopping import AtDensity as AtDensity
    from palmette.pruning.stopping import IndexTurnsUp as IndexTurnsUp
    from palmette.pruning.stopping import ScoreDrops as ScoreDrops
    from palmette.pruning.stopping import SmallCut as SmallCut
    from palmette.pruning.targets import Bisect as Bisect
    from palmette.pruning.targets import Interpolate as Interpolate
    from palmette.pruning.tolerance import Tolerance as Tolerance
    from palmette.pruning.weights import prunable as prunable
    from palmette.studies.experiment import Experiment as Experiment
    from palmette.studies.record import read_runs as read_runs
    from palmette.studies.record import replay as replay
    from palmette.studies.retraining import prune_and_retrain as prune_and_retrain
    from palmette.studies.running import run as run
    from palmette.studies.search import Limit as Limit
    from palmette.training.penalty import PQPenalty as PQPenalty

# Where each public name lives. It is loaded when first asked for, so that `import palmette` and
# `palmette --help` do not wait for torch.
_NAMES = {
    "measures.bound": "eta_of_cut retained_lower_bound tail_mass_count",
    "measures.classic": "MEASURES",
    "measures.gini": "gini_index",
    "measures.pq": "pq_index",
    "pruning.budgets": "Allocated Densities FixedRatio Sap TailMass",
    "pruning.choosing.torch_prune": "from_torch_prune",
    "pruning.cut": "TopK prune",
    "pruning.decision": "Decision",
    "pruning.gradients": "Movement gradients synflow",
    "pruning.masks": "Masks",
    "pruning.methods": "METHODS Method",
    "pruning.pruner": "Pruner",
    "pruning.saliency": "PerCut magnitude magnitude_of",
    "pruning.stopping": "AfterSteps AtDensity IndexTurnsUp ScoreDrops SmallCut",
    "pruning.targets": "Bisect Interpolate",
    "pruning.tolerance": "Tolerance",
    "pruning.weights": "prunable",
    "compression.compaction.compact": "compact",
    "compression.packing": "load save",
    "compression.speed": "speed",
    "checkpoints.publishing": "push_to_hub",
    "checkpoints.report": "how_compressible",
    "training.penalty": "PQPenalty",
    "studies.experiment": "Experiment",
    "studies.record": "read_runs replay",
    "studies.retraining": "prune_and_retrain",
    "studies.running": "run",
    "studies.search": "Limit",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'palmette' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    return getattr(importlib.import_module(f"palmette.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
