"""Cut a language model by Wanda's score: how much a weight moves its layer's output on real sentences.

:math:`|W_{ij}| \\cdot \\|X_j\\|_2`, of Sun et al. 2024, A Simple and Effective Pruning Approach for Large Language
Models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from palmette.checkpoints.formats.safetensors import masks_file, tensors_of
from palmette.checkpoints.prune import CheckpointCut, LayerCut
from palmette.checkpoints.read_errors import readable
from palmette.checkpoints.writing import output_file
from palmette.compression.packing import save
from palmette.errors import first_line
from palmette.measures.pq import index_of_rows
from palmette.measures.rows import Rows
from palmette.pruning.budgets import Budget, Sap
from palmette.pruning.choosing.patterns import as_patterns
from palmette.pruning.choosing.zeros import as_zeros, masks_of_zeros
from palmette.pruning.masks import Masks
from palmette.pruning.methods import Scope, Zeros
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import input_norms, weighted_by_inputs
from palmette.pruning.weights import prunable

MOST_TOKENS = 2048  # of a sentence, where the model itself sets no limit


def prune_calibrated(
    source: str | Path,
    out: str | Path,
    text: str | Path,
    *,
    scope: Scope = "neuron",
    budget: Budget | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    zeros: Zeros = "pruned",
    pack: bool = False,
) -> CheckpointCut:
    """Cut a folder of Transformers once, ranking weights by Wanda's score on the sentences of `text`.

    Arguments are those of `prune_checkpoint`; the model is loaded, in memory, with its tokenizer.

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
    source, out, text = Path(source), Path(out), Path(text)
    include, exclude = as_patterns(include, exclude)
    if not (source / "config.json").is_file():
        raise ValueError(f"--calibrate needs a folder of Transformers with a config.json, got {str(source)!r}")
    if not text.is_file():
        raise FileNotFoundError(f"no text at {str(text)!r} to calibrate with")
    sentences = [line for line in _text(text).splitlines() if line.strip()]
    if not sentences:
        raise ValueError(f"{str(text)!r} has no text to calibrate with; put one sentence on each line")
    budget = Sap() if budget is None else budget
    with output_file(source, out, folder=not pack) as file:  # told before the model is loaded, if it will not do
        earlier = _earlier_masks(source)
        model, tokenizer = _loaded(source)
        weights = prunable(model, include=include, exclude=exclude)
        try:
            norms = input_norms(model, _batches(model, tokenizer, sentences))
        except Exception as error:  # whatever a model says that is made for images, or for two texts at once
            raise ValueError(
                f"the model in {str(source)!r} does not accept text alone, which --calibrate needs "
                f"({first_line(error)}); prune it without --calibrate"
            ) from error
        if as_zeros(zeros) == "pruned":
            earlier = masks_of_zeros(weights) | earlier
        before = Masks({n: earlier.get(n, mask) for n, mask in Masks.ones_like(weights).items()})
        zero = {n: w.values.detach() == 0 for n, w in weights.items()}
        pruner = Pruner(
            model,
            budget=budget,
            scope=scope,
            saliency=weighted_by_inputs(norms, model),
            include=include,
            exclude=exclude,
            masks=before,
        )
        index_before = pruner.step().index
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        if pack:
            save(file, model)
        else:
            model.save_pretrained(file.parent, max_shard_size=2**62)  # in one file, as its masks are
            pruner.masks.save(masks_file(file))
    kept = Rows(
        tuple(w.values.detach().reshape(1, -1) for w in weights.values()),
        tuple(pruner.masks[n].reshape(1, -1) for n in weights),
    )
    layers = tuple(
        LayerCut(n, m.numel(), int(before[n].sum()), int(m.sum()), int((before[n] & ~m & zero[n]).sum()))
        for n, m in pruner.masks.items()
    )
    written = out if pack else out / "model.safetensors"
    return CheckpointCut(
        layers,
        index_before,
        float(index_of_rows(kept, p=budget.p, q=budget.q)),
        written,
        None if pack else masks_file(written),
        size,
    )


def _earlier_masks(source: Path) -> dict[str, Tensor]:
    """What earlier cuts have kept of the weights, by name; nothing where there was none."""
    file = source / "model.safetensors"
    with readable(file):
        stored = tensors_of(file)[0] if file.is_file() else []
        return {t.name: t.kept(0, t.shape[0]) for t in stored if t.kept is not None}


def _loaded(source: Path) -> tuple[Any, Any]:
    try:
        import transformers
    except ImportError as error:
        raise ImportError("--calibrate needs transformers: pip install 'palmette[transformers]'") from error
    try:  # before the model, which takes its time
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except Exception as error:  # it lists all kinds of files that it looked for
        raise ValueError(
            f"{str(source)!r} has no tokenizer that can be loaded, which --calibrate needs; "
            "tokenizer.save_pretrained writes it into the folder"
        ) from error
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
        return kind.from_pretrained(source), tokenizer
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
            yield {name: values for name, values in found.items() if name in ("input_ids", "attention_mask")}
