from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import palmette as pm
from palmette.errors import MaskMismatch, NotFinite, NothingToPrune, ParameterGone
from palmette.pruning.budgets import Budget
from palmette.pruning.methods import SCOPES
from palmette.pruning.weights import Weight


class TenWeights:
    """A model of ten weights that one step of training takes from its start to wherever it is told."""

    def __init__(self, **settings):
        self.model = nn.Linear(10, 1, bias=False)
        nn.init.constant_(self.model.weight, 0.5)
        self.start = copy.deepcopy(self.model.state_dict())
        self.pruner = pm.Pruner(self.model, scope="global", **settings)

    def train(self, target):
        """Start again, and take one step: the gradient of the output is the input."""
        self.pruner.rewind(self.start)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.pruner.hold(optimizer)
        optimizer.zero_grad()
        self.model(0.5 - torch.tensor([target])).sum().backward()
        optimizer.step()
        return self.weights

    @property
    def weights(self):
        return self.model.weight[0].tolist()

    @property
    def mask(self):
        return "".join("1" if kept else "." for kept in self.pruner.masks["weight"][0])


# Algorithm 1, Lottery Ticket and One Shot by hand.


def test_algorithm_1_by_hand():
    ten = TenWeights(budget=pm.Sap(p=0.5, q=1))
    assert ten.train([9.0, 1, -1, 0, 1, -9, 1, 0, 1, 1]) == [9, 1, -1, 0, 1, -9, 1, 0, 1, 1]
    first = ten.pruner.step()
    # r = (3 + 3 + 6)^2 / (9 + 9 + 6) = 6: the zeros and the first two ones go.
    (unit,) = first.groups
    assert (unit.d.item(), unit.c.item()) == (10, 4)
    assert unit.r.item() == 6
    assert unit.index.item() == first.index == pytest.approx(0.4, rel=1e-15)
    assert ten.mask == "1...11" + "1.11"
    assert ten.weights == [9, 0, 0, 0, 1, -9, 1, 0, 1, 1]

    # The pruned stay pruned, however large they would have become.
    assert ten.train([0.0, 7, 7, 7, 9, 1, 0, 7, -1, 1]) == [0, 0, 0, 0, 9, 1, 0, 0, -1, 1]
    second = ten.pruner.step()
    # r = (3 + 3)^2 / (9 + 3) = 3: the zeros and the first one go.
    (unit,) = second.groups
    assert (unit.d.item(), unit.c.item()) == (6, 3)
    assert unit.r.item() == 3
    assert unit.index.item() == pytest.approx(0.5, rel=1e-15)
    assert ten.mask == "....1...11"
    assert (second.density_before, second.density_after) == (0.6, 0.3)
    assert ten.pruner.density == 0.3

    ten.pruner.rewind(ten.start)
    assert ten.weights == [0, 0, 0, 0, 0.5, 0, 0, 0, 0.5, 0.5]


def test_lottery_ticket_by_hand():
    ten = TenWeights(budget=pm.FixedRatio(0.2))
    ten.train([3.0, -1, 2, 5, 4, 6, 7, 8, 9, 10])
    assert ten.pruner.step().cut == 2
    assert ten.mask == "1..1111111"
    ten.train([3.0, 1, 1, 5, 4, 6, -2, 8, 9, 10])
    assert ten.pruner.step().cut == 1  # floor(8 * 0.2), the smallest of what was trained now
    assert ten.mask == "1..111.111"


def test_one_shot_by_hand():
    ten = TenWeights(budget=pm.FixedRatio(0.2))
    ten.train([3.0, -1, 2, 5, 4, 6, 7, 8, 9, 10])
    ten.pruner.saliency = pm.magnitude_of(ten.model.state_dict())
    assert ten.pruner.step().cut == 2
    ten.train([30.0, 1, 1, 5, 4, 6, -2, 8, 9, 10])
    assert ten.pruner.step().cut == 1  # the smallest of what was trained first
    assert ten.mask == "...1111111"


# One cut, over a table.

BUDGETS = [
    pm.Sap(),
    pm.Sap(p=1, q=2, gamma=2),
    pm.FixedRatio(0.29),
    pm.FixedRatio(1),
    pm.TailMass(),
    pm.FixedRatio(0),
]
WEIGHTS = {
    "random": {"a": torch.randn(5, 4, 3, 3), "b": torch.randn(7, 20)},
    "ties": {"a": torch.randint(-2, 3, (5, 36)).float(), "b": torch.randint(0, 2, (7, 20)).float()},
    "equal": {"a": torch.full((5, 6), 0.3), "b": torch.full((7, 20), -0.3)},
    "zero": {"a": torch.zeros(5, 6), "b": torch.zeros(7, 2)},
    "dtypes": {
        "a": torch.randn(5, 36).half(),
        "b": torch.randn(7, 20).double(),
        "c": torch.randn(3, 3).bfloat16(),
    },
    "transposed": {"a": Weight(torch.randn(4, 5, 2), True, 2), "b": Weight(torch.randn(4, 6), True)},
    "one": {"a": torch.ones(1, 1)},
}


def tensor(weight):
    return weight.tensor if isinstance(weight, Weight) else weight


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_every_unit_loses_exactly_what_was_decided(kind, scope, budget):
    weights = WEIGHTS[kind]
    before = copy.deepcopy(weights)
    masks = pm.Masks.ones_like({name: tensor(w) for name, w in weights.items()})
    for _ in range(3):
        narrowed, decision = pm.prune(weights, masks, scope=scope, budget=budget)
        assert masks & narrowed == narrowed  # nothing comes back
        assert decision.cut == masks.kept - narrowed.kept
        assert decision.kept_before == masks.kept
        assert decision.total == masks.total
        assert decision.density_after == narrowed.density
        if scope == "neuron":
            for group in decision.groups:
                weight = weights[group.name]
                rows = (weight if isinstance(weight, Weight) else Weight(weight)).rows
                left = rows(narrowed[group.name]).sum(1)
                assert (group.d - group.c).tolist() == left.tolist()
        if scope == "layer":
            assert [g.c.item() for g in decision.groups] == [int((masks[n] & ~narrowed[n]).sum()) for n in weights]
        everything = torch.cat([tensor(w)[masks[n]].double() for n, w in weights.items()])
        assert decision.index == pytest.approx(pm.pq_index(everything, p=budget.p, q=budget.q), nan_ok=True)
        masks = narrowed
    assert all(torch.equal(tensor(w), tensor(before[n])) for n, w in weights.items())


@pytest.mark.parametrize("scope", SCOPES)
def test_no_masks_are_masks_that_keep_everything(scope):
    weights = WEIGHTS["ties"]
    with_masks = pm.prune(weights, pm.Masks.ones_like(weights), scope=scope, budget=pm.Sap())
    without = pm.prune(weights, scope=scope, budget=pm.Sap())
    assert with_masks[0] == without[0]
    assert str(with_masks[1]) == str(without[1])


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_an_all_zero_or_an_empty_unit_is_left_alone(budget):
    weights = {"w": torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [1.0, 2.0, 40.0]])}
    old = pm.Masks({"w": torch.tensor([[True] * 3, [False] * 3, [True] * 3])})
    masks, decision = pm.prune(weights, old, scope="neuron", budget=budget)
    assert masks["w"][:2].tolist() == [[True] * 3, [False] * 3]
    (group,) = decision.groups
    assert group.index.isnan().tolist() == [True, True, False]
    assert group.c.tolist()[:2] == [0, 0]


def test_what_a_pruned_weight_has_become_does_not_count():
    weights = {"w": torch.tensor([[100.0, 1.0, 2.0, 3.0]])}
    masks = pm.Masks({"w": torch.tensor([[False, True, True, True]])})
    narrowed, decision = pm.prune(weights, masks, scope="layer", budget=pm.FixedRatio(0.34))
    assert narrowed["w"].tolist() == [[False, False, True, True]]
    assert decision.index == pytest.approx(pm.pq_index([1.0, 2.0, 3.0]))


# Saliency.


def test_scores_decide_which_and_weights_decide_how_many():
    weights = {"w": torch.tensor([[3.0, 4.0, 0.0, 0.0]])}
    scores = torch.tensor([[1, 2, -4, 3]], dtype=torch.float64, requires_grad=True)
    masks, decision = pm.prune(
        weights, scope="layer", budget=pm.Sap(p=1, q=2), saliency=lambda name, weight: scores
    )
    assert masks["w"].tolist() == [[False, False, True, True]]
    assert decision.cut == 2


def test_scores_of_pruned_weights_may_be_anything():
    weights = {"w": torch.tensor([[0.0, 3.0, 1.0, 2.0]])}
    masks = pm.Masks({"w": torch.tensor([[False, True, True, True]])})
    narrowed, _ = pm.prune(
        weights, masks, scope="layer", budget=pm.FixedRatio(0.34), saliency=lambda n, w: w * (w / w)
    )
    assert narrowed["w"].tolist() == [[False, True, False, True]]


def test_magnitude_of_keeps_a_copy():
    weight = torch.tensor([[1.0, 2.0]])
    saliency = pm.magnitude_of({"w": weight})
    weight.zero_()
    assert saliency("w", weight).tolist() == [[1.0, 2.0]]
    assert pickle.loads(pickle.dumps(saliency))("w", weight).tolist() == [[1.0, 2.0]]
    with pytest.raises(ValueError, match="magnitude_of has no weight named 'v'; it has w"):
        saliency("v", weight)


# Errors change nothing.


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def set_up(**settings):
    """A network, its Pruner and its optimizer in the middle of a run."""
    model = network()
    pruner = pm.Pruner(model, **{"budget": pm.FixedRatio(0.3)} | settings)
    optimizer = torch.optim.Adam(model.parameters())
    pruner.hold(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().sum().backward()
        optimizer.step()
        pruner.step()
    return model, pruner, optimizer


def snapshot(model, pruner, optimizer):
    gradients = {f"gradient.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    masks = {f"mask.{name}": mask for name, mask in pruner.masks.items()}
    memory = {f"{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()}
    everything = dict(model.state_dict()) | gradients | masks | memory
    return {name: value.clone() for name, value in everything.items()} | {
        "decisions": torch.tensor(len(pruner.decisions)),
        "density": torch.tensor(pruner.density),
    }


def break_weight(value):
    def do(model, pruner):
        with torch.no_grad():
            model[3].weight[0, 0] = value

    return do


def break_saliency(answer):
    def saliency(name, weight):
        return weight if name == "0.weight" else answer(weight)

    def do(model, pruner):
        pruner.saliency = saliency

    return do


def out_of_memory(weight):
    raise MemoryError("half way")


class Failing(pm.FixedRatio):
    def plan(self, rows):
        if rows.width != 6:  # the first layer, neuron by neuron, is counted
            raise RuntimeError("half way")
        return super().plan(rows)


def break_budget(model, pruner):
    pruner.budget = Failing(0.2)


def set_scope(model, pruner):
    pruner.scope = "filter"


@pytest.mark.parametrize(
    ("break_it", "error", "says"),
    [
        (break_weight(math.nan), NotFinite, "1 NaN or infinite in '3.weight' of shape (3, 8)"),
        (break_weight(math.inf), NotFinite, "1 NaN or infinite in '3.weight' of shape (3, 8)"),
        (break_saliency(out_of_memory), MemoryError, "half way"),
        (break_saliency(lambda w: w * math.nan), NotFinite, "every score must be finite"),
        (break_saliency(lambda w: w.T), ValueError, "(3, 8) for '3.weight', got shape (8, 3)"),
        (break_saliency(lambda w: w.long()), TypeError, "every score must be a tensor"),
        (break_saliency(lambda w: None), ValueError, "for '3.weight', got None"),
        (break_budget, RuntimeError, "half way"),
        (set_scope, ValueError, "'neuron', 'layer', 'global', 'n:m', got 'filter'"),
    ],
    ids=[
        "NaN",
        "infinity",
        "raises",
        "NaN score",
        "shape of score",
        "kind of score",
        "no score",
        "budget",
        "scope",
    ],
)
@pytest.mark.parametrize("scope", SCOPES)
def test_an_error_during_a_step_leaves_everything_as_it_was(scope, break_it, error, says):
    model, pruner, optimizer = set_up(scope=scope)
    break_it(model, pruner)
    before = snapshot(model, pruner, optimizer)
    with pytest.raises(error) as caught:
        pruner.step()
    assert says in str(caught.value)
    after = snapshot(model, pruner, optimizer)
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"weights": {}}, NothingToPrune, "at least one tensor"),
        ({"weights": nn.Linear(2, 2)}, TypeError, "as prunable(model) returns them, got Linear"),
        (
            {"weights": {"w": torch.ones(2, 2, dtype=torch.int64)}},
            TypeError,
            "torch.int64 of shape (2, 2) for 'w'",
        ),
        ({"weights": {"w": torch.ones(0, 2)}}, TypeError, "shape (0, 2) for 'w'"),
        ({"weights": {"w": torch.tensor(1.0)}}, TypeError, "shape () for 'w'"),
        ({"weights": {"w": [1.0]}}, TypeError, "[1.0] for 'w'"),
        ({"weights": {"w": torch.tensor([[math.nan]])}}, NotFinite, "'w'"),
        ({"masks": {"w": torch.ones(2, 3, dtype=torch.bool)}}, MaskMismatch, "w ((2, 3) instead of (2, 2))"),
        ({"masks": {"v": torch.ones(2, 2, dtype=torch.bool)}}, MaskMismatch, "missing: w; not in this model: v"),
        ({"masks": {"w": torch.ones(2, 2)}}, TypeError, "torch.float32 for 'w'"),
        ({"budget": 0.2}, TypeError, "budget must be a Budget such as Sap() or FixedRatio(0.2), got 0.2"),
        ({"budget": pm.Sap}, TypeError, "got <class"),
    ],
    ids=str,
)
def test_what_cannot_be_pruned_is_refused(arguments, error, says):
    good = {"weights": {"w": torch.ones(2, 2)}, "scope": "layer", "budget": pm.Sap()}
    pm.prune(**good)
    with pytest.raises(error) as caught:
        pm.prune(**good | arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize("thing", [None, "model", {"w": torch.ones(2, 2)}], ids=str)
def test_only_a_module_gets_a_pruner(thing):
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got "):
        pm.Pruner(thing)


def replace_layer(model):
    model[3] = nn.Linear(8, 3)


def remove_layer(model):
    model[3] = nn.Identity()


def widen_layer(model):
    model[3].weight.data = torch.zeros(5, 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (replace_layer, "was replaced by another parameter"),
        (remove_layer, "is no longer part of the model"),
        (widen_layer, r"has the shape \(5, 8\) now, not \(3, 8\)"),
    ],
    ids=["replaced", "removed", "of another shape"],
)
@pytest.mark.parametrize("call", ["step", "hold", "rewind", "load_state_dict"])
def test_a_held_parameter_that_disappears_is_named(change, says, call):
    model, pruner, optimizer = set_up()
    arguments = {"hold": optimizer, "rewind": model.state_dict(), "load_state_dict": pruner.state_dict()}
    change(model)
    before = snapshot(model, pruner, optimizer)
    with pytest.raises(ParameterGone, match=rf"'3\.weight' {says}"):
        getattr(pruner, call)(*[arguments[call]] if call in arguments else [])
    after = snapshot(model, pruner, optimizer)
    assert all(torch.equal(before[name], after[name]) for name in before)


# Rewinding.


def test_rewinding_brings_back_all_of_the_model_but_what_is_pruned():
    model = network()
    start = copy.deepcopy(model.state_dict())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5))
    model(torch.randn(16, 6))  # moves the statistics of the batch norm
    pruner.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    pruner.rewind(start)
    for name, value in model.state_dict().items():
        wanted = start[name] * pruner.masks[name] if name in pruner.masks else start[name]
        assert torch.equal(value, wanted)
    assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize("compiled_start", [True, False])
def test_a_compiled_model_is_rewound_to_its_own_state_or_to_that_of_the_model_inside(compiled_start):
    model = network()
    compiled = torch.compile(model, backend="eager")
    start = copy.deepcopy((compiled if compiled_start else model).state_dict())
    pruner = pm.Pruner(compiled, budget=pm.FixedRatio(0.5), scope="neuron")
    pruner.step()
    pruner.rewind(start)
    assert (model[0].weight == 0).sum() == 24


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (lambda model: model.state_dict(), "copy.deepcopy"),
        (lambda model: {}, "missing: 0.weight"),
        (lambda model: copy.deepcopy(model.state_dict()) | {"x": torch.ones(1)}, "not in this model: x"),
        (lambda model: nn.Linear(6, 8).state_dict(), "missing: 0.weight"),
        (
            lambda model: copy.deepcopy(model.state_dict()) | {"0.weight": torch.ones(8, 7)},
            "0.weight ((8, 7) instead of (8, 6))",
        ),
    ],
    ids=["not a copy", "empty", "one too many", "another model", "another shape"],
)
def test_a_state_that_cannot_be_rewound_to_is_refused(state, says):
    model, pruner, optimizer = set_up()
    state = state(model)
    before = snapshot(model, pruner, optimizer)
    with pytest.raises(ValueError) as caught:
        pruner.rewind(state)
    assert says in str(caught.value)
    after = snapshot(model, pruner, optimizer)
    assert all(torch.equal(before[name], after[name]) for name in before)


# Keeping and copying.


def test_a_state_is_loaded_into_a_fresh_pruner():
    _, pruner, _ = set_up()
    file = io.BytesIO()
    torch.save(pruner.state_dict(), file)
    file.seek(0)
    fresh = network()
    other = pm.Pruner(fresh)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.masks == pruner.masks
    assert [str(d) for d in other.decisions] == [str(d) for d in pruner.decisions]
    assert torch.equal(fresh[0].weight == 0, ~pruner.masks["0.weight"])


def test_decisions_of_many_cuts_take_few_tensors_and_earlier_states_are_read():
    pruner = pm.Pruner(network(), scope="neuron", budget=pm.FixedRatio(0.1))
    for _ in range(5):
        pruner.step()
    state = pruner.state_dict()
    joined = torch.load(io.BytesIO(state["decisions"]), weights_only=True)
    assert sum(isinstance(value, torch.Tensor) for value in joined.values()) == 4
    torch.save([d.state_dict() for d in pruner.decisions], earlier := io.BytesIO())
    for decisions in (state["decisions"], earlier.getvalue()):
        other = pm.Pruner(network(), scope="neuron")
        other.load_state_dict(state | {"decisions": decisions})
        assert [str(d) for d in other.decisions] == [str(d) for d in pruner.decisions]
        assert [g.d.dtype for g in other.decisions[0].groups] == [g.d.dtype for g in pruner.decisions[0].groups]


@pytest.mark.parametrize("damaged", [b"", b"no archive", [1], {"decisions": "[7]"}, {"decisions": "["}])
def test_damaged_decisions_are_refused_and_change_nothing(damaged):
    pruner = pm.Pruner(network(), scope="neuron", budget=pm.FixedRatio(0.1))
    pruner.step()
    if not isinstance(damaged, bytes):
        torch.save(damaged, written := io.BytesIO())
        damaged = written.getvalue()
    other = pm.Pruner(network(), scope="neuron")
    with pytest.raises(ValueError, match="the decisions in this state are damaged"):
        other.load_state_dict(pruner.state_dict() | {"decisions": damaged})
    assert other.density == 1
    assert other.decisions == []


def of_another_model(pruner):
    other = pm.Pruner(nn.Sequential(nn.Linear(6, 8)))
    return other.state_dict()


def with_a_broken_decision(pruner):
    decisions = [d.state_dict() for d in pruner.decisions]
    decisions[-1]["groups"][0].pop("d")
    torch.save(decisions, file := io.BytesIO())
    return pruner.state_dict() | {"decisions": file.getvalue()}


@pytest.mark.parametrize(
    ("state", "error", "says"),
    [
        (of_another_model, MaskMismatch, "missing: 3.weight"),
        (with_a_broken_decision, ValueError, "damaged"),
        (lambda pruner: {}, ValueError, "['decisions', 'masks']"),
        (lambda pruner: pruner.model.state_dict(), ValueError, "['decisions', 'masks']"),
    ],
    ids=["another model", "a broken decision", "empty", "the model's"],
)
def test_a_state_that_cannot_be_loaded_is_refused_and_changes_nothing(state, error, says):
    model, pruner, optimizer = set_up()
    state = state(pruner)
    before = snapshot(model, pruner, optimizer)
    with pytest.raises(error) as caught:
        pruner.load_state_dict(state)
    assert says in str(caught.value)
    after = snapshot(model, pruner, optimizer)
    assert all(torch.equal(before[name], after[name]) for name in before)


def through_pickle(things):
    return pickle.loads(pickle.dumps(things))


def through_torch_save(things):
    file = io.BytesIO()
    torch.save(things, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("saliency", [pm.magnitude, pm.magnitude_of(network().state_dict())], ids=["w", "w_0"])
def test_a_copy_of_model_and_pruner_goes_its_own_way(way, saliency):
    model, pruner, optimizer = set_up(saliency=saliency)
    before = snapshot(model, pruner, optimizer)
    its_model, its_pruner = way((model, pruner))
    assert its_pruner.model is its_model
    assert its_pruner.masks == pruner.masks
    its_optimizer = torch.optim.AdamW(its_model.parameters())
    its_pruner.hold(its_optimizer)
    for _ in range(2):
        its_model(torch.randn(16, 6)).square().sum().backward()
        for name, kept in its_pruner.masks.items():
            assert not bool(its_model.get_parameter(name).grad[~kept].any())
        its_optimizer.step()
        for name, kept in its_pruner.masks.items():
            assert not bool(its_model.get_parameter(name)[~kept].any())
        its_pruner.step()
    assert its_pruner.masks.kept < pruner.masks.kept
    after = snapshot(model, pruner, optimizer)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle])
def test_a_model_that_owns_its_pruner_is_copied_with_it(way):
    model = network()
    model.pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="layer")
    model.pruner.step()
    twin = way(model)
    assert twin.pruner.model is twin
    twin.pruner.step()
    assert (twin.pruner.density, model.pruner.density) == (0.25, 0.5)
    assert (twin[0].weight == 0).sum() == 36
    assert (model[0].weight == 0).sum() == 24


# A whole language model.


def test_a_language_model_with_tied_embeddings_is_pruned_and_trained():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16, vocab_size=11))
    start = copy.deepcopy(model.state_dict())
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5), scope="neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    pruner.hold(optimizer)
    tokens = torch.arange(22).reshape(2, 11) % 11
    for _ in range(2):
        decision = pruner.step()
        assert "transformer.h.0.attn.c_attn.weight" in str(decision)
        for _ in range(2):
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            for name, kept in pruner.masks.items():
                assert not bool(model.get_parameter(name)[~kept].any())
    assert pruner.density == 0.25
    pruner.rewind(start)
    assert model.lm_head.weight is model.transformer.wte.weight


# What a decision says.


def test_a_cut_that_takes_the_last_weight_of_a_layer_says_so_once():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    model[0].weight.data.copy_(torch.tensor([[4.0, 3.0], [2.0, 5.0]]))
    model[1].weight.data.copy_(torch.tensor([[0.1, 0.2]]))
    pruner = pm.Pruner(model, budget=pm.FixedRatio(0.5))
    with pytest.warns(
        UserWarning, match=r"^no weight is left in 1\.weight: outputs are constant; exclude it, or cut less"
    ):
        pruner.step()
    assert pruner.step().cut == 1  # no second warning
    assert dict(pruner.masks.counts) == {"0.weight": 2, "1.weight": 0}


def test_a_decision_prints_as_a_table():
    weights = {
        "first.weight": torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 7.0]]),
        "second": torch.zeros(1, 2),
    }
    _, decision = pm.prune(weights, scope="neuron", budget=pm.Sap(p=1, q=2))
    assert str(decision).splitlines() == [
        "Sap(p=1, q=2, eta=0.0, gamma=1.0, beta=0.9), scope neuron",
        "              units  kept                PQ Index  to keep  cut           density",
        "first.weight      3    12  0.3000 (0.0000–0.5000)      7.0    5  1.0000 -> 0.5833",
        "second            1     2                    none      2.0    0  1.0000 -> 1.0000",
        "all               4    14                  0.4553             5  1.0000 -> 0.6429",
    ]


def test_a_decision_is_kept_as_plain_values():
    _, decision = pm.prune(WEIGHTS["random"], scope="neuron", budget=pm.TailMass())
    file = io.BytesIO()
    torch.save(decision.state_dict(), file)
    file.seek(0)
    again = pm.Decision.from_state_dict(torch.load(file, weights_only=True))
    assert str(again) == str(decision)
    assert [g.r.tolist() for g in again.groups] == [g.r.tolist() for g in decision.groups]
    assert decision != again  # a decision is one event; its values are compared by state_dict
    state = decision.state_dict()
    state["groups"][0]["name"] = "changed"
    assert decision.groups[0].name == "a"


def test_the_default_is_sap_in_global_scope():
    pruner = pm.Pruner(network())
    assert pruner.budget == pm.Sap(p=0.5, q=1.0, eta=0.0, gamma=1.0, beta=0.9)
    assert pruner.scope == "global"
    assert pruner.density == 1.0
    assert pruner.masks == pm.Masks.ones_like({n: p for n, p in network().named_parameters() if p.dim() > 1})
    assert isinstance(pruner.budget, Budget)


def test_a_pruner_can_start_from_masks_in_a_file(tmp_path):
    first = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    pm.Pruner(first, budget=pm.FixedRatio(0.5)).step()
    pruner = pm.Pruner(first, budget=pm.FixedRatio(0.5), zeros="count")
    pruner.step()
    pruner.masks.save(tmp_path / "masks.safetensors")
    second = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    loaded = pm.Masks.load(tmp_path / "masks.safetensors", like=pm.prunable(second))
    assert pm.Pruner(second, masks=loaded).masks == pruner.masks
    assert int(second[0].weight.count_nonzero()) == int(pruner.masks["0.weight"].sum())
    with pytest.raises(MaskMismatch, match="another shape"):
        pm.Pruner(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)), masks=loaded)
