"""How far can a neural network be pruned? Measure it with the PQ Index, and prune it there.

>>> import palmette as pm
>>> pm.pq_index([3.0, 4.0, 0.0, 0.0], p=1, q=2)
0.3
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from palmette.measures.bound import eta_of_cut as eta_of_cut
    from palmette.measures.bound import retained_lower_bound as retained_lower_bound
    from palmette.measures.bound import tail_mass_count as tail_mass_count
    from palmette.measures.classic import MEASURES as MEASURES
    from palmette.measures.gini import gini_index as gini_index
    from palmette.measures.pq import pq_index as pq_index

# Where each public name lives. It is loaded when first asked for, so that `import palmette` and
# `palmette --help` do not wait for torch.
_HOME = {
    "MEASURES": "measures.classic",
    "eta_of_cut": "measures.bound",
    "gini_index": "measures.gini",
    "pq_index": "measures.pq",
    "retained_lower_bound": "measures.bound",
    "tail_mass_count": "measures.bound",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'palmette' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}"
        )
    return getattr(importlib.import_module(f"palmette.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
