"""The script that prunes and retrains a ResNet-20, for one small step; what it finds out takes a GPU."""

import runpy
from pathlib import Path

import pytest
import torch

import palmette as pm
from palmette.training.data.images import Images
from palmette.training.models.cifar_resnet import CifarResNet

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "docs/make_renda.py"))


def images():
    """Noise, in the shape of CIFAR10."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (48, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(48) % 10
    known = {"classes": 10, "name": "noise", "mean": (0.5,) * 3, "sd": (0.2,) * 3, "source": "drawn"}
    names = tuple("0123456789")
    return Images(pixels[:32], labels[:32], pixels[32:], labels[32:], augment=True, class_names=names, **known)


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
    text = SCRIPT["page"]({"lottery-ticket": [records]}, 1, device, "python docs/make_renda.py")
    assert "| a fifth of what is left | 1 | 0.800 |" in text
    assert "learning-rate rewind 91.23 %" in text
