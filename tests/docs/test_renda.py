"""The script that prunes and retrains a ResNet-20, for one small step, and the page of what it found on a GPU."""

import json
import runpy
from pathlib import Path

import pytest
import torch

import palmette as pm
from palmette.training.data.images import Images
from palmette.training.models.cifar_resnet import CifarResNet

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "run_renda.py"))


def images():
    """Noise, in the shape of CIFAR10."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (48, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(48) % 10
    known = {"classes": 10, "name": "noise", "mean": (0.5,) * 3, "sd": (0.2,) * 3, "source": "drawn"}
    return Images(pixels[:32], labels[:32], pixels[32:], labels[32:], augment=True, **known)


CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_a_round_of_the_ladder_is_trained_recorded_and_written_down(tmp_path, device):
    recipe = SCRIPT["renda_recipe"](device)
    assert [recipe.learning_rate_at(epoch) for epoch in (90, 91, 136, 137)] == pytest.approx(
        [0.1, 0.01, 0.01, 0.001]
    )
    model = CifarResNet(3, 10, blocks=3)
    records = SCRIPT["ladder"](
        model,
        images(),
        tmp_path,
        budget=pm.FixedRatio(0.2),
        recipe=recipe,
        epochs=1,
        rounds=1,
        seed=0,
        device=device,
    )
    assert [record["retrained"]["kept"] for record in records] == [268336, 214669]
    zeros = [int((w.tensor == 0).sum()) for w in pm.prunable(model).values()]
    assert sum(zeros) in (0, 53667)  # that of the round that is good
    SCRIPT["about"](tmp_path, "a fifth of what is left", 0, 1, device)
    assert json.loads((tmp_path / "about.json").read_text())["epochs"] == 1


def test_the_page_has_the_numbers_of_the_records():
    page = (DOCS / "renda.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "make_renda.py"))["written"](page) == page
