"""Scope "channel": which channels go together, which go first, and what their masks leave for `compact`."""

import copy

import pytest
import torch
from compact_cases import same_outputs, settle_
from random_networks import Drawn
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import palmette as pm
from palmette.errors import NothingToPrune
from palmette.pruning.channels.groups import ChannelGroups, norm_scale
from palmette.training.models import build

X = torch.ones(1, 3)


def ten_weights():
    """Two hidden neurons: one of five twos, the other of five sixes."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[2.0, -2.0, 2.0], [6.0, 6.0, -6.0]])
    model[2].weight.data = torch.tensor([[2.0, 6.0], [-2.0, 6.0]])
    return model


def of_channels(model, inputs, **settings):
    return pm.Pruner(model, scope="channel", inputs=inputs, **settings)


def groups_of(model, inputs, **settings):
    return ChannelGroups.of(model, inputs, pm.prunable(model, **settings))


def expected_shapes(pruner):
    """Shape of each weight without the rows and columns that are masked as a whole."""
    found = {}
    for name, mask in pruner.masks.items():
        shape = list(mask.shape)
        for axis in pruner.channels.members.get(name, ()):
            shape[axis] = int(mask.any([d for d in range(mask.dim()) if d != axis]).sum())
        found[name] = tuple(shape)
    return found


def assert_compacts_as_predicted(model, pruner, *inputs):
    small, report = pm.compact(model, inputs)
    assert {n: tuple(small.get_parameter(n).shape) for n in pruner.masks} == expected_shapes(pruner)
    assert same_outputs(model, small, *inputs)
    return small, report


# Groups.


def test_a_hidden_neuron_is_a_row_and_a_column():
    groups = groups_of(ten_weights(), X)
    assert groups.count == 2
    assert groups.members["0.weight"][0].tolist() == groups.members["2.weight"][1].tolist() == [0, 1]
    assert groups.members["0.weight"][1].tolist() == [-1, -1, -1]  # inputs stay
    assert groups.members["2.weight"][0].tolist() == [-1, -1]
    assert groups.notes == ("2 channels stay: they reach the output",)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.norm(self.body(x))).mean((2, 3)))


def test_a_residual_sum_couples_both_sides_and_the_batch_norm():
    groups = groups_of(Residual(), torch.ones(1, 3, 2, 2))
    assert groups.count == 4
    rows, (inputs, outputs) = groups.members["stem.weight"][0], (groups.members["body.weight"][a] for a in (1, 0))
    columns, gains = groups.members["head.weight"][1], groups.gains["norm.weight"]
    assert [g.tolist() for g in (rows, inputs, outputs, columns, gains)] == [[0, 1, 2, 3]] * 5


class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(9, 2)

    def forward(self, x):
        first, second = self.a(x).chunk(2, 1)
        return self.b(torch.cat([first, second, second], 1))


def test_chunks_lose_the_same_positions():
    groups = groups_of(Chunked(), X)
    assert groups.count == 3
    assert groups.members["a.weight"][0].tolist() == [0, 1, 2] * 2
    assert groups.members["b.weight"][1].tolist() == [0, 1, 2] * 3


def test_a_grouped_convolution_keeps_or_loses_whole_groups():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1, groups=2), nn.Flatten(), nn.Linear(6, 1))
    groups = groups_of(model, torch.ones(1, 3, 1, 1))
    assert groups.count == 2
    assert groups.members["0.weight"][0].tolist() == [0, 0, 1, 1]
    assert groups.members["1.weight"].keys() == {0}
    for rows_or_columns in (groups.members["1.weight"][0], groups.members["3.weight"][1]):
        assert rows_or_columns.tolist() == [0, 0, 0, 1, 1, 1]


def test_every_pixel_behind_a_flatten_belongs_to_its_channel():
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 10))
    columns = groups_of(model, torch.ones(1, 1, 8, 8)).members["3.weight"][1]
    assert columns.tolist() == [channel for channel in range(32) for _ in range(36)]


def test_transposed_layers_have_their_outputs_along_the_second_axis():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(Conv1D(5, 3), nn.GELU(), Conv1D(2, 5))
    groups = groups_of(model, X)
    assert groups.members["0.weight"][1].tolist() == groups.members["2.weight"][0].tolist() == [0, 1, 2, 3, 4]
    assert [layer.tolist() for layer in groups.layers] == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(("name", "stay", "free"), [("0.weight", 2, 9), ("1.weight", 6, 5), ("2.weight", 9, 2)])
def test_channels_of_an_excluded_weight_stay(name, stay, free):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4), nn.Linear(4, 5), nn.Linear(5, 1))
    groups = groups_of(model, X, exclude=[name])
    assert groups.count == free
    assert f"{stay} channels stay: they reach {name}, which is not pruned" in groups.notes


def test_a_shift_by_an_excluded_vector_keeps_no_channel():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.scale, self.b = nn.Conv2d(3, 2, 1), nn.Parameter(torch.ones(2, 1, 1)), nn.Conv2d(2, 1, 1)

        def forward(self, x):
            return self.b(self.a(x) * self.scale)

    assert groups_of(Scaled(), torch.ones(1, 3, 2, 2), include=["a.weight", "b.weight"]).count == 2


# Scores and masks.


def test_scores_are_root_mean_squares_over_the_mean_of_the_layer():
    model = ten_weights()
    pruner = of_channels(model, X)
    weights = {name: weight.tensor.detach() for name, weight in pruner.weights.items()}
    assert pruner.channels.scores(weights, pruner.masks).tolist() == [0.5, 1.5]  # 2 and 6 over 4


def test_rows_and_columns_of_the_least_salient_group_go():
    model = ten_weights()
    pruner = of_channels(model, X, budget=pm.FixedRatio(0.5))
    decision = pruner.step()
    assert model[0].weight.tolist() == [[0, 0, 0], [6, 6, -6]]
    assert model[2].weight.tolist() == [[0, 6], [0, 6]]
    assert (decision.total, decision.cut, decision.left) == (2, 1, 0.5)
    assert str(decision).splitlines()[-1] == "0.5000 of the weights remain"
    assert pruner.density == decision.summary(1).density == 0.5
    _, report = assert_compacts_as_predicted(model, pruner, X)
    assert report.parameters == (10, 5)


def test_a_wide_layer_of_small_weights_does_not_go_first():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].weight.data *= 100
    pruner = of_channels(model, X, budget=pm.FixedRatio(0.5))
    pruner.step()
    first, second = (int((~m.any(1)).sum()) for m in list(pruner.masks.values())[:2])
    assert first + second == 8
    assert first > 0


def test_sap_counts_on_the_vector_of_scores():
    model = build("cnn", shape=(1, 8, 8), classes=10)
    budget = pm.Sap(p=1, q=2, gamma=20)
    pruner = of_channels(model, torch.ones(1, 1, 8, 8), budget=budget)
    weights = {name: weight.tensor.detach() for name, weight in pruner.weights.items()}
    scores = pruner.channels.scores(weights, pruner.masks)
    cut = int(budget(scores))
    assert 0 < cut == pruner.step().cut < len(scores)


@pytest.mark.parametrize("budget", [pm.FixedRatio(1.0), pm.TailMass(p=1, eta=1e9)], ids=repr)
def test_one_channel_of_each_layer_stays(budget):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    pruner = of_channels(model, X, budget=budget)
    assert pruner.step().cut == 7
    assert_compacts_as_predicted(model, pruner, X)
    assert expected_shapes(pruner) == {"0.weight": (1, 3), "2.weight": (1, 1), "4.weight": (2, 1)}
    assert pruner.step().cut == 0


def test_a_saliency_of_entries_ranks_groups():
    ranked = {"0.weight": torch.tensor([[9.0] * 3, [1.0] * 3]), "2.weight": torch.tensor([[9.0, 1.0]] * 2)}
    model = ten_weights()
    of_channels(model, X, budget=pm.FixedRatio(0.5), saliency=pm.magnitude_of(ranked)).step()
    assert model[0].weight.tolist() == [[2, -2, 2], [0, 0, 0]]


def test_signed_scores_that_belong_together_are_added():
    def signed(name, weight):
        return weight  # 2 - 2 + 2 + 2 - 2 = 2 and 6 + 6 - 6 + 6 + 6 = 18

    signed.together = "sum"
    pruner = of_channels(ten_weights(), X)
    weights = {name: weight.tensor.detach() for name, weight in pruner.weights.items()}
    assert pruner.channels.scores(weights, pruner.masks, together="sum").tolist() == [2, 18]
    balanced = ten_weights()
    balanced[2].weight.data[:, 1] = torch.tensor([-6.0, 0.0])  # 6 + 6 - 6 - 6 + 0 = 0
    of_channels(balanced, X, budget=pm.FixedRatio(0.5), saliency=signed, zeros="count").step()
    assert balanced[0].weight.tolist() == [[2, -2, 2], [0, 0, 0]]


def test_the_scale_of_a_batch_norm_ranks_its_channels():
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2))
    model[1].weight.data = torch.tensor([3.0, -1.0, 2.0])
    pruner = of_channels(model, torch.ones(1, 1, 1, 1), budget=pm.FixedRatio(0.4), saliency=norm_scale)
    pruner.step()
    assert pruner.masks["0.weight"].flatten().tolist() == [True, False, True]
    model[1].weight.data[0] = 0.5  # read anew in every step
    pruner.step(budget=pm.FixedRatio(0.5))
    assert pruner.masks["0.weight"].flatten().tolist() == [False, False, True]


def test_channels_without_a_batch_norm_stay_where_its_scale_ranks():
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 5, 1), nn.ReLU(), nn.Flatten(), nn.Linear(5, 2))
    )
    pruner = of_channels(model, torch.ones(1, 1, 1, 1), budget=pm.FixedRatio(1.0), saliency=norm_scale)
    assert pruner.step().cut == 1
    assert bool(pruner.masks["5.weight"].all())


def test_share_to_leaves_just_enough_weights():
    torch.manual_seed(0)
    model = build("cnn", shape=(1, 8, 8), classes=10)
    pruner = of_channels(model, torch.ones(1, 1, 8, 8))
    budget = pruner.channels.share_to(0.5, pruner.plan)
    masks, decision = pruner.plan(budget)
    assert masks.density >= 0.5
    more = pm.FixedRatio((decision.cut + 1) / decision.kept_before)
    assert pruner.plan(more)[0].density < 0.5


# Through compact.


def cut_and_compact(seed):
    """Cut half the channels of a random network, and compact it; None if no channel can go."""
    x = torch.randn(2, 4, 8, 8).double()
    model, _ = pm.compact(Drawn(seed, zeros=False).double().eval(), x)  # without channels that nobody reads
    try:
        pruner = of_channels(model, x, budget=pm.FixedRatio(0.5), zeros="count")
    except NothingToPrune:
        return None
    pruner.step()
    return assert_compacts_as_predicted(model, pruner, x)


def test_compact_removes_what_the_masks_of_random_networks_say():
    assert [seed for seed in range(6) if cut_and_compact(seed)]


@pytest.mark.slow
def test_compact_removes_what_the_masks_of_many_random_networks_say():
    assert len([seed for seed in range(6, 80) if cut_and_compact(seed)]) > 40


@pytest.mark.parametrize("name", ["resnet20", "cnn"])
def test_compact_removes_what_the_masks_say(name):
    torch.manual_seed(0)
    model = settle_(build(name, shape=(3, 16, 16), classes=10))
    x = torch.randn(2, 3, 16, 16)
    pruner = of_channels(model, x[:1], budget=pm.FixedRatio(0.3))
    for _ in range(3):
        before = pruner.masks
        pruner.step()
        assert pruner.masks == before & pruner.masks
        _, report = assert_compacts_as_predicted(model, pruner, x)
        assert report.notes == ()
    assert report.flops[1] < report.flops[0] / 2


@pytest.mark.slow
def test_half_the_channels_of_resnet56_are_half_the_flops():
    torch.manual_seed(0)
    model = settle_(build("resnet56", shape=(3, 32, 32), classes=10))
    pruner = of_channels(model, torch.zeros(1, 3, 32, 32), budget=pm.FixedRatio(0.5))
    pruner.step()
    _, report = assert_compacts_as_predicted(model, pruner, torch.randn(2, 3, 32, 32))
    assert 0.45 < report.flops[1] / report.flops[0] < 0.55


def test_a_second_pruner_finds_the_groups_that_are_gone():
    torch.manual_seed(0)
    model = settle_(build("resnet20", shape=(3, 16, 16), classes=10))
    x = torch.zeros(1, 3, 16, 16)
    first = of_channels(model, x, budget=pm.FixedRatio(0.5))
    first.step()
    with pytest.warns(UserWarning, match="count as pruned before"):
        second = of_channels(model, x)
    assert int(second.channels.alive(second.masks).sum()) == 168
    assert second.masks.kept == first.masks.kept


# As any Pruner.


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_masks_hold_while_training_and_after_compaction_training_continues(kind):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
    )
    x, y = torch.randn(6, 1, 4, 4), torch.arange(6) % 3
    settings = {"lr": 0.05, "weight_decay": 0.01} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    optimizer = kind(model.parameters(), **settings)

    def train(network, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    pruner = of_channels(model, x[:1], budget=pm.FixedRatio(0.5), hold=optimizer)
    train(model, optimizer)
    pruner.step()
    for _ in range(3):
        train(model, optimizer)
        pruner.check()
    small, _ = assert_compacts_as_predicted(model, pruner, x)
    assert small[0].weight.shape == (4, 1, 3, 3)
    again = kind(small.train().parameters(), **settings)
    losses = [train(small, again) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_a_state_and_a_copy_continue_with_the_same_groups():
    torch.manual_seed(0)
    x = torch.zeros(1, 3, 16, 16)
    pruner = of_channels(build("cnn", shape=(3, 16, 16), classes=4), x, budget=pm.FixedRatio(0.2))
    pruner.step()
    other = of_channels(copy.deepcopy(pruner.model), x, budget=pm.FixedRatio(0.2), zeros="count")
    other.load_state_dict(pruner.state_dict())
    twin = copy.deepcopy(pruner)
    assert [d.left for d in other.decisions] == [pruner.density]
    for one in (pruner, other, twin):
        one.step()
    assert pruner.masks == other.masks == twin.masks


def test_a_stop_rule_about_density_reads_that_of_the_weights():
    pruner = of_channels(ten_weights(), X, budget=pm.FixedRatio(0.5), stop=pm.AtDensity(0.5))
    assert not pruner.stopped
    assert pruner.step().density_after == 0.5
    assert pruner.stopped


def test_a_compiled_model_is_followed_inside():
    model = torch.compile(ten_weights())
    assert of_channels(model, X, budget=pm.FixedRatio(0.5)).step().left == 0.5


# Refusals.


def test_scope_and_inputs_need_each_other():
    with pytest.raises(ValueError, match="give example inputs, as inputs="):
        pm.Pruner(ten_weights(), scope="channel")
    with pytest.raises(ValueError, match="inputs are for scope 'channel', got scope 'layer'"):
        pm.Pruner(ten_weights(), scope="layer", inputs=X)


def test_the_scope_is_refused_where_there_is_no_graph():
    weights, sentence = pm.prunable(ten_weights()), 'use pm.Pruner(model, scope="channel", inputs=example)'
    with pytest.raises(ValueError) as refused:
        pm.prune(weights, scope="channel", budget=pm.Sap())
    assert sentence in str(refused.value)
    with pytest.raises(ValueError) as refused:
        pm.PQPenalty(ten_weights(), strength=1, scope="channel")
    assert sentence in str(refused.value)


def test_shares_of_layers_are_refused():
    shared = pm.Allocated(pm.FixedRatio(0.5))
    with pytest.raises(ValueError, match="scope 'channel' ranks them together"):
        of_channels(ten_weights(), X, budget=shared)
    with pytest.raises(ValueError, match="scope 'channel' ranks them together"):
        of_channels(ten_weights(), X).step(budget=shared)


def test_a_sharded_model_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(ten_weights(), mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(TypeError, match=r"scope 'channel' takes an unsharded model, but '0\.weight' is"):
            of_channels(model, X)
    finally:
        dist.destroy_process_group()


def test_a_model_without_free_channels_is_refused_with_reasons():
    with pytest.raises(NothingToPrune, match="2 channels stay: they reach the output"):
        of_channels(nn.Linear(3, 2), X)


class Untraceable(nn.Sequential):
    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)


def test_a_model_that_cannot_be_traced_is_refused():
    model = Untraceable(*ten_weights())
    with pytest.raises(
        ValueError, match=r"scope 'channel' follows the graph of the model, but torch\.export cannot"
    ):
        of_channels(model, X)


def test_wrong_example_inputs_are_named():
    with pytest.raises(ValueError, match="the model fails on the example inputs"):
        of_channels(ten_weights(), torch.ones(1, 7))


def test_norm_scale_is_refused_elsewhere():
    with pytest.raises(ValueError, match="use it in scope 'channel'"):
        pm.Pruner(ten_weights(), saliency=norm_scale).step()
    with pytest.raises(ValueError, match="none follows a channel"):
        of_channels(ten_weights(), X, saliency=norm_scale).step()


def test_scores_that_are_not_finite_are_refused():
    pruner = of_channels(ten_weights(), X, saliency=lambda name, weight: weight * torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        pruner.step()
    assert pruner.density == 1
