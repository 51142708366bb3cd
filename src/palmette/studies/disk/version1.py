"""Frozen defaults of version 1, whose run folders contain only non-default settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

OWN_DATA = "own data"
"""Value of `data` in runs of `prune_and_retrain`."""

SALIENCIES = {"sap": "magnitude", "lottery-ticket": "magnitude", "one-shot": "dense-magnitude"}
"""Methods of version 1 and their saliencies."""

DEFAULTS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "method": "sap",
    "p": 0.5,
    "q": 1.0,
    "eta": 0.0,
    "gamma": 1.0,
    "beta": 0.9,
    "ratio": 0.2,
    "scope": "global",
    "rounds": 30,
    "seed": 0,
    "rewind": "init",
    "stop": "",
    "validation": 0,
    "epochs": 200,
    "batch": 250,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 5e-4,
    "schedule": "cosine",
    "warm_up": 0,
    "clip": 1.0,
    "label_smoothing": 0.0,
    "precision": "float32",
    "compile": False,
}


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run with the settings `given` in its folder."""
    return {**DEFAULTS, **{name: value for name, value in given.items() if name != "version"}}


def id_of(settings: Mapping[str, Any], prefix: str) -> str | None:
    """Id and folder name of a run in version 1; None for settings that version 1 did not have.

    `prefix` is the readable part of the id.
    """
    added = {name: value for name, value in settings.items() if name not in DEFAULTS}
    if added != {"saliency": SALIENCIES.get(settings["method"]), "own": ""}:
        return None
    changed = {name: value for name, value in settings.items() if value != DEFAULTS.get(name, value)}
    plain = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in changed.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
