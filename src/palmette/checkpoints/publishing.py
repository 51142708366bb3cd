"""Publish a pruned model on the Hugging Face Hub, with a card that says what is left of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from palmette.checkpoints.compressibility import Compressibility
from palmette.checkpoints.hub import explained
from palmette.checkpoints.report import how_compressible
from palmette.compression.packing import load, save
from palmette.errors import NotWritten, extra
from palmette.measures.parameters import is_number
from palmette.words import measured

FILE = "model.safetensors"
_CARD = Path(__file__).with_name("card.md")


def push_to_hub(
    model: nn.Module | Mapping[str, Tensor] | str | Path,
    repo_id: str,
    *,
    accuracy: float | None = None,
    private: bool = False,
) -> str:
    """Upload a pruned model to the Hugging Face Hub as a packed file, with a model card.

    The card gives density, PQ Index, accuracy and size, of the model and of each layer, and shows how to load the
    file. The repository is created if necessary; an existing model and card are replaced, but stay in its history.
    Log in first with a token that may write: `hf auth login`.

    Args:
        model: a module, a `state_dict`, or a file of `save`.
        repo_id: organization or user, and model, such as "org/model".
        accuracy: accuracy of the pruned model, for the card.
        private: whether a new repository is private.

    Returns:
        The address of the repository.

    >>> import palmette as pm
    >>> pm.push_to_hub(nn.Linear(64, 10), "org/model", accuracy=0.91)  # doctest: +SKIP
    'https://huggingface.co/org/model'
    """
    with extra("hub", "push_to_hub needs huggingface_hub"):
        from huggingface_hub import HfApi
    if not (accuracy is None or is_number(accuracy)):
        raise TypeError(f"accuracy must be a number, got {accuracy!r}")
    with tempfile.TemporaryDirectory(prefix="palmette-hub-") as folder:
        file = Path(folder, FILE)
        if isinstance(model, str | Path):
            load(model)  # refuses other and damaged files
            shutil.copyfile(model, file)
        else:
            save(file, model)
        card = model_card(how_compressible(file), repo_id, packed=file.stat().st_size, accuracy=accuracy)
        Path(folder, "README.md").write_text(card, encoding="utf-8")
        api = HfApi()
        with explained(api.endpoint, repo_id, kind=NotWritten):
            api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Upload a pruned model")
    return f"{api.endpoint}/{repo_id}"


def model_card(report: Compressibility, repo_id: str, *, packed: int, accuracy: float | None = None) -> str:
    """Text of README.md for a repository on the Hub.

    Args:
        report: of the pruned model.
        repo_id: organization or user, and model.
        packed: bytes of the uploaded file.
        accuracy: accuracy of the pruned model.
    """
    whole = report.whole
    layers = [
        f"| {one.name} | {' × '.join(map(str, one.shape))} | {one.density:.1%} | {measured(one.pq_index)} |"
        for one in report.layers
    ]
    return _CARD.read_text(encoding="utf-8").format(
        name=repo_id.split("/")[-1],
        repo=repo_id,
        file=FILE,
        density=whole.density,
        kept=whole.d - whole.zeros,
        entries=whole.entries,
        accuracy="" if accuracy is None else f"| accuracy | {accuracy:.4g} |\n",
        p=report.budget.p,
        q=report.budget.q,
        index=measured(whole.pq_index),
        packed=packed,
        dense=whole.bytes,
        layers="\n".join(layers),
    )
