import numpy as np
import pytest
import torch

from palmette.pruning.methods import REPAIRS
from palmette.pruning.repair.solving import repaired

CHOOSING = ("admm-gradual", "gradual", "sparsegpt")


def layer(*, neurons=6, inputs=20, density=0.5, dtype=torch.float64, seed=0):
    """Dense weights, a mask by Wanda's score with the same count in each neuron, and the second moment."""
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(inputs, inputs, generator=draw, dtype=torch.float64) + 2 * torch.eye(inputs)
    x = torch.randn(200, inputs, generator=draw, dtype=torch.float64) @ mixed
    weight = torch.randn(neurons, inputs, generator=draw, dtype=torch.float64).to(dtype)
    order = (weight.abs() * x.norm(dim=0)).argsort(1, descending=True).argsort(1)
    return weight, order < density * inputs, x.T @ x


def loss(weight, values, gram):
    change = (values - weight).double()
    return float((change @ gram * change).sum())


def test_two_inputs_that_are_equal_are_one_but_for_the_damping():
    values, _ = repaired(torch.tensor([[2.0, 1.0]]), torch.tensor([[True, False]]), torch.full((2, 2), 10.0))
    assert values.tolist() == [[pytest.approx((2 * 1.1 + 1) / 1.1), 0.0]]


def test_least_squares_solves_the_normal_equations_of_each_neuron():
    weight, kept, gram = layer()
    w, h = weight.numpy(), (gram + 0.1 * gram.diagonal().diag()).numpy()
    exact = np.zeros_like(w)
    for i, row in enumerate(kept.numpy()):
        exact[i, row] = np.linalg.solve(h[np.ix_(row, row)], (h @ w[i])[row])
    values, mask = repaired(weight, kept, gram, by="least-squares")
    assert torch.equal(mask, kept)
    np.testing.assert_allclose(values.numpy(), exact, rtol=0, atol=1e-7)
    once, _ = repaired(weight, kept, gram, by="admm")
    assert 0 < np.abs(once.numpy() - exact).max() < 0.1 * np.abs(exact).max()


def test_sparsegpt_makes_up_for_each_input_with_the_later_ones():
    weight, kept, gram = layer(neurons=1, inputs=6)
    values, mask = repaired(weight, kept, gram, by="sparsegpt")
    h = gram.numpy() + 0.01 * np.trace(gram.numpy()) / 6 * np.eye(6)
    scores, expected = [], weight.numpy()[0].copy()
    for j in range(6):  # the inverse of what is left after the first j inputs, as the paper defines it
        scores.append(abs(expected[j]) / np.sqrt(np.linalg.inv(h[j:, j:])[0, 0]))
    chosen = np.argsort(scores)[-3:]
    for j in set(range(6)) - set(chosen):
        inverse = np.linalg.inv(h[j:, j:])
        expected[j:] -= expected[j] / inverse[0, 0] * inverse[0]
    assert np.flatnonzero(mask[0]).tolist() == sorted(chosen)
    np.testing.assert_allclose(values[0].numpy(), expected * mask[0].numpy(), atol=1e-9)


@pytest.mark.parametrize("by", REPAIRS)
def test_a_repair_lowers_the_error_of_the_outputs(by):
    weight, kept, gram = layer(neurons=32, inputs=64)
    values, _ = repaired(weight, kept, gram, by=by)
    assert loss(weight, values, gram) < loss(weight, weight * kept, gram)


def test_choosing_anew_and_solving_exactly_are_better_each():
    weight, kept, gram = layer(neurons=32, inputs=64)
    by = {name: loss(weight, repaired(weight, kept, gram, by=name)[0], gram) for name in REPAIRS}
    assert by["gradual"] < by["admm-gradual"] < by["least-squares"] < by["admm"]


@pytest.mark.parametrize("by", REPAIRS)
@pytest.mark.parametrize("scope", ["neuron", "layer"])
@pytest.mark.parametrize("inputs", [20, 300])  # more than SparseGPT takes at a time
def test_exactly_as_many_weights_remain_and_only_allowed_ones(by, scope, inputs):
    weight, kept, gram = layer(inputs=inputs, density=0.3)
    kept[0], kept[1] = False, True
    allowed = kept | (torch.rand(kept.shape, generator=torch.Generator().manual_seed(1)) < 0.5)
    values, mask = repaired(weight, kept, gram, by=by, allowed=allowed, scope=scope)
    assert mask.sum() == kept.sum()
    if scope == "neuron" or by not in CHOOSING:
        assert torch.equal(mask.sum(1), kept.sum(1))
    assert torch.equal(mask, kept) == (by not in CHOOSING)
    assert torch.equal(values != 0, mask)
    assert not bool((mask & ~allowed).any())


@pytest.mark.parametrize("by", REPAIRS)
def test_weights_of_an_input_that_is_always_zero_stay_or_go_first(by):
    weight, kept, gram = layer()
    kept[:, 3], gram[3], gram[:, 3] = True, 0.0, 0.0
    values, mask = repaired(weight, kept, gram, by=by)
    assert torch.isfinite(values).all()
    if by in CHOOSING:
        assert not mask[:, 3].any()
    else:
        torch.testing.assert_close(values[:, 3], weight[:, 3])
    nothing, _ = repaired(weight, kept, torch.zeros_like(gram), by=by)
    assert torch.isfinite(nothing).all()


@pytest.mark.parametrize("by", REPAIRS)
def test_a_repair_of_float32_is_that_of_float64(by):
    weight, kept, gram = layer(neurons=16, inputs=64)
    fine, _ = repaired(weight, kept, gram, by=by)
    coarse, _ = repaired(weight.float(), kept, gram, by=by)
    again, _ = repaired(weight.float(), kept, gram, by=by)
    assert coarse.dtype == torch.float32
    assert torch.equal(coarse, again)
    assert loss(weight, coarse, gram) == pytest.approx(loss(weight, fine, gram), rel=1e-3)


def test_half_precision_is_repaired_in_float32():
    weight, kept, gram = layer(dtype=torch.bfloat16)
    values, _ = repaired(weight, kept, gram)
    fine, _ = repaired(weight.float(), kept, gram)
    assert torch.equal(values, fine.bfloat16())


def test_what_is_given_is_not_changed():
    weight, kept, gram = layer()
    before = weight.clone(), kept.clone(), gram.clone()
    for by in REPAIRS:
        repaired(weight, kept, gram, by=by)
    assert all(map(torch.equal, before, (weight, kept, gram)))


def test_wrong_arguments_are_named():
    weight, kept, gram = layer()
    with pytest.raises(ValueError, match=r"repair must be one of least-squares, admm, .*, got 'obs'"):
        repaired(weight, kept, gram, by="obs")
    with pytest.raises(ValueError, match=r"of its inputs, got shapes \(6, 20\), \(6, 20\) and \(6, 6\)"):
        repaired(weight, kept, gram[:6, :6])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("by", REPAIRS)
def test_cuda_repairs_as_the_cpu_does(by):
    weight, kept, gram = layer(neurons=16, inputs=300)
    values, mask = repaired(weight.cuda(), kept.cuda(), gram.cuda(), by=by)
    there, chosen = repaired(weight, kept, gram, by=by)
    assert torch.equal(mask.cpu(), chosen)
    torch.testing.assert_close(values.cpu(), there, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("by", REPAIRS)
def test_a_pattern_is_kept_or_the_repair_refused(by):
    weight, _, gram = layer()
    kept = (torch.arange(20) % 4 < 2).expand(6, 20)
    if by in CHOOSING:
        with pytest.raises(
            ValueError, match=rf"repair '{by}' chooses .* scope '2:4'; use 'least-squares' or 'admm'"
        ):
            repaired(weight, kept, gram, by=by, scope="2:4")
    else:
        assert torch.equal(repaired(weight, kept, gram, by=by, scope="2:4")[1], kept)
