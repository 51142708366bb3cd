import pytest
import torch
import transformers
from torch import nn

import palmette as pm
from palmette.pruning.saliency import input_norms, weighted_by_inputs


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.unused = nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 3)

    def forward(self, x):
        return self.norm(self.layer(x))


BATCHES = [{"x": torch.tensor([[3.0, 0.0]])}, {"x": torch.tensor([[4.0, 0.0], [0.0, 1.0]])}]


@pytest.mark.parametrize("wrapped", [lambda m: m, nn.DataParallel])
def test_weights_count_by_the_norms_of_their_inputs(wrapped):
    model = wrapped(Network())
    norms = input_norms(model, BATCHES)
    assert {name: norm.tolist() for name, norm in norms.items()} == {"layer.weight": [5.0, 1.0]}
    saliency = weighted_by_inputs(norms, model)
    assert saliency("layer.weight", torch.tensor([[1.0, -2.0]])).tolist() == [[5.0, -2.0]]
    pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="global", saliency=saliency).step()


def test_each_module_has_its_mode_again_even_if_a_batch_fails():
    model = Network()
    model.norm.eval()
    with pytest.raises(TypeError):
        input_norms(model, [{"y": torch.ones(1, 2)}])
    assert (model.training, model.layer.training, model.norm.training) == (True, True, False)
    input_norms(model, BATCHES)
    assert (model.training, model.layer.training, model.norm.training) == (True, True, False)
    assert not model.layer._forward_pre_hooks


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(2, 3), (4, 5, 2)),
        (nn.Conv1d(2, 3, 1), (4, 2, 5)),
        (nn.Conv1d(2, 3, 1), (2, 5)),  # without a batch
        (nn.Conv2d(2, 3, 1), (4, 2, 5, 5)),
        (nn.Conv3d(2, 3, 1), (4, 2, 3, 3, 3)),
    ],
    ids=repr,
)
def test_the_inputs_of_a_layer_are_where_it_has_them(layer, shape):
    x = torch.zeros(shape)
    x.select(shape.index(2), 1).fill_(2.0)
    (norm,) = input_norms(layer, [{"input": x}]).values()
    assert norm.tolist() == [0.0, (4 * x.numel() / 2) ** 0.5]


class OfTransformers(transformers.pytorch_utils.Conv1D):
    """A subclass: inputs first, as in its parent."""


class Conv1D(nn.Module):
    """A class of one's own that has only the name of that of Transformers: outputs first."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return x @ self.weight.T


def test_a_subclass_of_the_conv1d_of_transformers_counts_and_another_class_of_that_name_does_not():
    model = nn.Sequential(OfTransformers(2, 2), Conv1D())
    norms = input_norms(model, [{"input": torch.tensor([[3.0, 0.0], [4.0, 1.0]])}])
    assert {name: norm.tolist() for name, norm in norms.items()} == {"0.weight": [5.0, 1.0]}
    saliency = weighted_by_inputs(norms | {"1.weight": torch.tensor([5.0, 1.0])}, model)
    assert saliency("0.weight", torch.ones(2, 2)).tolist() == [[5.0, 5.0], [1.0, 1.0]]
    assert saliency("1.weight", torch.ones(2, 2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_compact_subclass_of_the_conv1d_of_transformers_says_its_new_size():
    model = nn.Sequential(OfTransformers(4, 2), nn.ReLU(), OfTransformers(3, 4))
    model[0].weight.data[:, :1] = 0
    small, _ = pm.compact(model, torch.randn(5, 2))
    assert [(layer.nx, layer.nf) for layer in (small[0], small[2])] == [(2, 3), (3, 3)]
