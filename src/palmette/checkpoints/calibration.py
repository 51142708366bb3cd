"""Cut a language model by Wanda's score: how much a weight moves its layer's output on real sentences.

:math:`|W_{ij}| \\cdot \\|X_j\\|_2`, of Sun et al. 2024, A Simple and Effective Pruning Approach for Large Language
Models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palmette.checkpoints.hub import on_disk
from palmette.checkpoints.open import open_checkpoint
from palmette.checkpoints.prune import CheckpointCut, prune_checkpoint
from palmette.checkpoints.writing import check_output
from palmette.errors import extra, first_line
from palmette.pruning.budgets import Budget
from palmette.pruning.choosing.patterns import as_patterns
from palmette.pruning.methods import Scope, Zeros
from palmette.pruning.repair.blocks import repair_
from palmette.pruning.repair.solving import check_by
from palmette.pruning.saliency import Saliency, input_norms, weighted_by_inputs
from palmette.pruning.sources.file import FileCut
from palmette.pruning.sources.stored import StoredWeight

MOST_TOKENS = 2048  # of a sentence, where the model itself sets no limit


def prune_calibrated(
    source: str | Path,
    out: str | Path,
    text: str | Path,
    *,
    scope: Scope = "neuron",
    budget: Budget | None = None,
    saliency: Saliency | str = "input-weighted",
    repair: str = "",
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    zeros: Zeros = "pruned",
    pack: bool = False,
    device: str = "cpu",
) -> CheckpointCut:
    """Cut a Transformers folder once, ranking weights by Wanda's score on the sentences of `text`.

    Other arguments are those of `prune_checkpoint`; the model is loaded, in memory, with its tokenizer.

    Args:
        text: file with one sentence on each line.
        saliency: "input-weighted", Wanda's score, or another one, where `repair` needs the sentences.
        repair: how to update the remaining weights to preserve the outputs of layers: a name in `REPAIRS`, see
            `palmette.pruning.repair.solving.repaired`; by default they are not changed.
        device: where the model runs, such as "cuda".

    >>> import palmette, tempfile, transformers
    >>> config = transformers.GPT2Config(vocab_size=384, n_embd=8, n_layer=1, n_head=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = transformers.GPT2LMHeadModel(config).save_pretrained(f"{folder}/model")
    ...     _ = transformers.ByT5Tokenizer().save_pretrained(f"{folder}/model")
    ...     _ = Path(f"{folder}/text").write_text("The cat sat on the mat.")
    ...     half = palmette.FixedRatio(0.5)
    ...     cut = prune_calibrated(f"{folder}/model", f"{folder}/cut", f"{folder}/text", budget=half)
    >>> cut.whole.density_after
    0.5
    """
    source, out, text = on_disk(source, "pruning"), Path(out), Path(text)
    include, exclude = as_patterns(include, exclude)
    if repair:
        check_by(repair, scope)
    if not (source / "config.json").is_file():
        raise ValueError(f"--calibrate needs a folder of Transformers with a config.json, got {str(source)!r}")
    if not text.is_file():
        raise FileNotFoundError(f"no text at {str(text)!r} to calibrate with")
    sentences = [line for line in _text(text).splitlines() if line.strip()]
    if not sentences:
        raise ValueError(f"{str(text)!r} has no text to calibrate with; put one sentence on each line")
    check_output(source, out, folder=not pack)  # fail before the model is loaded
    loaded = _Loaded.of(source, sentences, device)
    return prune_checkpoint(
        source,
        out,
        scope=scope,
        budget=budget,
        saliency=loaded.saliency(saliency),
        repair=partial(loaded.repair, by=repair, scope=scope) if repair else None,
        include=include,
        exclude=exclude,
        zeros=zeros,
        pack=pack,
    )


@dataclass(frozen=True)
class _Loaded:
    """A model, the sentences to calibrate with, and the names of its parameters by those in the file."""

    source: Path
    model: Any
    tokenizer: Any
    sentences: Sequence[str]
    parameters: Mapping[str, Tensor]
    named: Mapping[str, str]

    @staticmethod
    def of(source: Path, sentences: Sequence[str], device: str) -> _Loaded:
        """The model of a folder."""
        model, tokenizer, names = _loaded(source)
        model.to(device)
        # A tied weight has several names in a model and one in a file, which may be of the model without its head.
        parameters, prefix = dict(model.named_parameters(remove_duplicate=False)), f"{model.base_model_prefix}."
        named = {}
        for name in names:
            candidates = (name, prefix + name, name.removeprefix(prefix))
            named[name] = next((n for n in candidates if n in parameters), name)
        return _Loaded(source, model, tokenizer, sentences, parameters, named)

    def batches(self) -> Iterator[dict[str, Tensor]]:
        """Inputs of the model, sentence by sentence."""
        return _batches(self.model, self.tokenizer, self.sentences)

    def norms(self, most: int | None = None) -> dict[str, Tensor]:
        """Norms of the inputs of layers on the first sentences, all by default; raise if there are none."""
        try:
            found = input_norms(self.model, islice(self.batches(), most))
        except Exception as error:  # whatever a model says that is made for images, or for two texts at once
            raise ValueError(
                f"the model in {str(self.source)!r} does not accept text alone, which --calibrate needs "
                f"({first_line(error)}); prune it without --calibrate"
            ) from error
        there = {id(self.parameters[n]) for n in self.named.values() if n in self.parameters}
        if lost := [n for n in found if n in self.parameters and id(self.parameters[n]) not in there]:
            raise ValueError(
                f"the file in {str(self.source)!r} has another name for {lost[0]!r} of its model, so --calibrate "
                "cannot rank it; prune it without --calibrate"
            )
        return found

    def saliency(self, given: Saliency | str) -> Saliency | str:
        """Wanda's score of each weight by its name in the file, unless another saliency is given."""
        if given != "input-weighted":
            self.norms(1)
            return given
        norms = {name: norm.cpu() for name, norm in self.norms().items()}  # files are read on the CPU
        score, named = weighted_by_inputs(norms, self.model), self.named
        return lambda name, weight: score(named[name], weight)

    def repair(self, weights: Sequence[StoredWeight], cut: FileCut, *, by: str, scope: Scope) -> FileCut:
        """The cut with the values that a repair gives to weights of the blocks of the model."""
        there = {n: w for w in weights if (n := self.named[w.name]) in self.parameters}
        masks, left = repair_(
            self.model,
            {n: torch.cat([mask for _, mask in cut.masks(w)]) for n, w in there.items()},
            self.batches(),
            by=by,
            allowed={n: _kept(w) for n, w in there.items()},
            scope=scope,
        )
        done = {w.name: (self.parameters[n], masks[n].cpu()) for n, w in there.items() if n not in left}
        return replace(cut, repaired=done)


def _kept(weight: StoredWeight) -> Tensor:
    """Mask of the weights that no earlier cut pruned."""
    return torch.ones(weight.shape, dtype=torch.bool) if weight.kept is None else weight.kept(0, weight.shape[0])


def _loaded(source: Path) -> tuple[Any, Any, list[str]]:
    """Model, tokenizer, and the names of the tensors in the file."""
    with extra("transformers", "--calibrate needs transformers"):
        import transformers
    try:  # before the model, which takes its time
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except Exception as error:  # it lists all kinds of files that it looked for
        raise ValueError(
            f"{str(source)!r} has no tokenizer that can be loaded, which --calibrate needs; "
            "tokenizer.save_pretrained writes it into the folder"
        ) from error
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        names = [stored.name for stored in open_checkpoint(source).tensors]
        kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        return kind.from_pretrained(source), tokenizer, names
    except Exception as error:  # whatever a library says about a folder that is not complete
        raise ValueError(
            f"the model in {str(source)!r} could not be loaded to calibrate it: {first_line(error)}"
        ) from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(file)!r} is not UTF-8 text; save it as UTF-8") from error


def _batches(model: Any, tokenizer: Any, sentences: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    limit = getattr(model.config, "max_position_embeddings", None) or MOST_TOKENS
    for sentence in sentences:
        found = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=min(limit, MOST_TOKENS))
        if found["input_ids"].numel():
            given = {name: values for name, values in found.items() if name in ("input_ids", "attention_mask")}
            yield {name: values.to(model.device) for name, values in given.items()}
