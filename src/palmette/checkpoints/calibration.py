"""Wanda's score: how much a weight moves its layer's output, by the inputs that real sentences bring.

:math:`|W_{ij}| \\cdot \\|X_j\\|_2`, of Sun et al. 2024, A Simple and Effective Pruning Approach for Large Language
Models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palmette.checkpoints.formats.safetensors import masks_file, read
from palmette.checkpoints.open import readable
from palmette.checkpoints.prune import CheckpointCut, LayerCut, place_for
from palmette.compression.packing import save
from palmette.errors import first_line
from palmette.measures.pq import index_of_rows
from palmette.measures.rows import Rows
from palmette.pruning.budgets import Budget, Sap
from palmette.pruning.masks import Masks
from palmette.pruning.pruner import Pruner
from palmette.pruning.saliency import Saliency
from palmette.pruning.scopes import Scope
from palmette.pruning.weights import (
    LAYERS,
    as_patterns,
    evaluating,
    is_transformers_conv1d,
    prunable,
    uncompiled,
)

MOST_TOKENS = 2048  # of a sentence, where the model itself sets no limit


def input_norms(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    r"""For each Linear, convolution and Conv1D of `model`, by the name of its weight: the norm of every input.

    .. math:: \|X_j\|_2 = \sqrt{\textstyle\sum_t x_{tj}^2}

    over all tokens (of a convolution: over all pixels) of all `batches`, which are keyword arguments of the model.
    A layer that no batch reaches is not among them.

    >>> input_norms(nn.Linear(2, 1), [{"input": torch.tensor([[3.0, 0.0], [4.0, 1.0]])}])
    {'weight': tensor([5., 1.], dtype=torch.float64)}

    Sun et al. 2024, Section 3.
    """
    squares: dict[str, Tensor] = {}
    model = uncompiled(model)
    with ExitStack() as hooks, evaluating(model), torch.no_grad():
        for name, layer, _ in _layers(model):
            add = partial(_add_squares, squares, name)
            hooks.enter_context(layer.register_forward_pre_hook(add, with_kwargs=True))
        for batch in batches:
            model(**batch)
    return {name: total.sqrt() for name, total in squares.items()}


def weighted_by_inputs(norms: Mapping[str, Tensor], model: nn.Module) -> Saliency:
    r"""Scores for `Pruner(model, saliency=…)`: :math:`|W_{ij}| \cdot \|X_j\|_2` where the norm is known, else W.

    Args:
        norms: as `input_norms` gives them.
        model: the one that is pruned.

    >>> saliency = weighted_by_inputs({"weight": torch.tensor([5.0, 1.0])}, nn.Linear(2, 1))
    >>> saliency("weight", torch.tensor([[1.0, -2.0]]))
    tensor([[ 5., -2.]])
    """
    axes = {name: axis for name, _, axis in _layers(uncompiled(model))}

    def saliency(name: str, weight: Tensor) -> Tensor:
        norm, axis = norms.get(name), axes.get(name)
        if norm is None or axis is None or norm.numel() != weight.shape[axis]:
            return weight  # a layer that was not reached, or in groups, whose inputs are not all its own
        shape = [1] * weight.dim()
        shape[axis] = -1
        return weight.detach().float() * norm.reshape(shape).float()

    return saliency


def prune_calibrated(
    source: str | Path,
    out: str | Path,
    text: str | Path,
    *,
    scope: Scope = "neuron",
    budget: Budget | None = None,
    include: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    pack: bool = False,
) -> CheckpointCut:
    """Cut a folder of Transformers once, ranking weights by Wanda's score on the sentences of `text`.

    Arguments are those of `prune_checkpoint`; the model is loaded, in memory, with the tokenizer beside it.

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
        raise ValueError(f"{str(text)!r} has no sentence to calibrate with; one on each line is needed")
    budget = Sap() if budget is None else budget
    with place_for(source, out, folder=not pack) as file:  # told before the model is loaded, if it will not do
        earlier = _masks_beside(source)
        model, tokenizer = _loaded(source)
        weights = prunable(model, include=include, exclude=exclude)
        try:
            norms = input_norms(model, _batches(model, tokenizer, sentences))
        except Exception as error:  # whatever a model says that is made for images, or for two texts at once
            raise ValueError(
                f"the model in {str(source)!r} does not read sentences alone, as --calibrate needs it "
                f"({first_line(error)}); prune it without --calibrate"
            ) from error
        before = Masks({n: earlier.get(n, mask) for n, mask in Masks.ones_like(weights).items()})
        zero = {n: w.tensor.detach() == 0 for n, w in weights.items()}
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
        tuple(w.tensor.detach().reshape(1, -1) for w in weights.values()),
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


def _masks_beside(source: Path) -> dict[str, Tensor]:
    """What earlier cuts have kept of the weights, by name; nothing where there was none."""
    file = source / "model.safetensors"
    with readable(file):
        stored = read(file)[0] if file.is_file() else []
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
            f"{str(source)!r} has no tokenizer that could be loaded, and --calibrate needs one; "
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
        raise ValueError(f"{str(file)!r} is no text in UTF-8; save it anew in that encoding") from error


def _batches(model: Any, tokenizer: Any, sentences: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    limit = getattr(model.config, "max_position_embeddings", None) or MOST_TOKENS
    for sentence in sentences:
        found = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=min(limit, MOST_TOKENS))
        if found["input_ids"].numel():
            yield {name: values for name, values in found.items() if name in ("input_ids", "attention_mask")}


def _add_squares(
    squares: dict[str, Tensor], key: str, module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> None:
    x = next(iter((*args, *kwargs.values()))).detach().double()
    # Of a Linear layer the last axis, of a convolution that before the pixels, with or without a batch in front.
    feature = x.dim() + 1 - module.weight.dim()
    total = x.square().sum([d for d in range(x.dim()) if d != feature])
    squares[key] = squares[key] + total if key in squares else total


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Each layer by the name of its weight, and the axis of that which counts the layer's inputs."""
    for name, module in model.named_modules():
        usual = isinstance(module, LAYERS)
        if usual or is_transformers_conv1d(module):
            yield f"{name}.weight" if name else "weight", module, int(usual)
