"""`how_compressible(model, evaluate=…)`: the largest cut without retraining, on ten weights; nothing changes."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import palmette as pm
from palmette.checkpoints.headroom import HALVINGS
from palmette.pruning.methods import SCOPES


def ten_weights():
    """The weights 1 to 10, which add up to 55."""
    model = nn.Linear(10, 1, bias=False)
    model.weight.data = torch.arange(1.0, 11.0)[None]
    return model


def total(model):
    return float(model.weight.detach().sum())


def ratio_kept(model):
    return float((model.weight != 0).double().mean())


@pytest.mark.parametrize(("tolerance", "cut"), [(0, 0), (1, 1), (9.9, 3), (10, 4), (14.9, 4), (15, 5), (54, 9)])
def test_the_largest_cut_that_costs_no_more_than_the_tolerance_is_found(tolerance, cut):
    report = pm.how_compressible(ten_weights(), evaluate=total, tolerance=tolerance)
    assert [found.scope for found in report.headroom] == list(SCOPES)
    for found in report.headroom:  # one neuron is the layer and the network
        assert found.share == pytest.approx(cut / 10)
        assert found.largest.density == pytest.approx(1 - cut / 10)
        assert found.largest.score.value == 55 - cut * (cut + 1) / 2
        assert found.dense.score.value == 55


def test_smaller_scores_are_better_without_maximize():
    report = pm.how_compressible(
        ten_weights(), evaluate=lambda m: 100 - total(m), tolerance="10%", maximize=False
    )  # 45 may become 49.5
    assert [found.share for found in report.headroom] == pytest.approx([0.2] * 3)


def test_the_suggested_cut_is_the_one_that_sap_makes():
    model = nn.Linear(10, 1, bias=False)
    model.weight.data = torch.tensor([[9.0, 1.0, 1.0, 1.0, 4.0, 4.0, 0.0, 0.0, 1.0, 4.0]])  # |w|^.5: 3, 2 and 1
    settings = {"tolerance": 3, "scopes": ["global"], "zeros": "count"}
    found = pm.how_compressible(model, evaluate=total, **settings).headroom[0]
    assert found.suggested.share == pytest.approx(0.3)  # 1 - 13² / (10 · 25) = .324
    assert found.suggested.score.value == 24
    assert found.suggested.allowed
    assert found.loss(found.suggested) == 1
    assert found.share == pytest.approx(0.5)


def test_every_scope_costs_at_most_eight_evaluations():
    calls = []
    model = nn.Linear(40, 40)

    def evaluate(model):
        calls.append(model)
        return ratio_kept(model)

    report = pm.how_compressible(model, evaluate=evaluate, tolerance=0.3)
    assert HALVINGS + 1 == 8
    assert [found.evaluations for found in report.headroom] == [6, 8, 8]  # neurons of 40 weights have 41 cuts
    assert len(calls) == 1 + 6 + 8 + 8
    assert all(0.29 <= found.share <= 0.3 for found in report.headroom)
    found = report.headroom[2]
    assert [cut.share for cut in found.curve] == sorted(cut.share for cut in found.curve)
    assert len(found.curve) == HALVINGS + 1


def test_cuts_of_the_same_weights_are_scored_once():
    calls = []
    pm.how_compressible(
        ten_weights(), evaluate=lambda m: calls.append(1) or total(m), tolerance=3, scopes=["layer"]
    )
    assert len(calls) == 5  # dense, 5, 2 and 3 of the weights, and the suggested cut


def test_larger_good_cuts_beyond_a_bad_one_do_not_count():
    scores = {10: 1.0, 5: 0.0, 4: 1.0, 3: 1.0}
    found = pm.how_compressible(
        ten_weights(), evaluate=lambda m: scores.get(int((m.weight != 0).sum()), 1.0), scopes=["global"]
    ).headroom[0]
    assert found.share == pytest.approx(0.4)


class Restless(nn.Module):
    """Batch norm, dropout, a pruned and a frozen part: everything that an evaluation may disturb."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last = torch_prune.l1_unstructured(nn.Linear(8, 2), "weight", amount=0.25)
        self.register_buffer("seen", torch.tensor([-0.0, float("nan")]), persistent=False)
        self.first.weight.data[0, 0] = -0.0
        self.drop.eval()

    def forward(self, x):
        self.seen = self.seen + 1
        return self.last(self.drop(self.norm(self.first(x))))


def everything(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), "weight": model.last.weight}
    return {
        "places": [(id(t), t.data_ptr(), t.dtype) for t in tensors.values()],
        "bytes": [t.detach().numpy().tobytes() for t in tensors.values()],
        "modes": [module.training for module in model.modules()],
        "random": (torch.rand(3).tolist(), random.random(), np.random.random()),
    }


def disturb(model):
    model.train()
    random.random(), np.random.random()
    value = ratio_kept(model.first) + 0.0 * float(model(torch.randn(16, 6)).detach().sum())
    model.half()
    return value


def broken(model):
    disturb(model)
    if ratio_kept(model.first) < 0.6:
        raise KeyboardInterrupt
    return 0.5


@pytest.mark.parametrize("evaluate", [disturb, broken])
def test_the_model_and_the_random_state_are_as_before(evaluate):
    model = Restless()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    before = everything(model)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    try:
        pm.how_compressible(model, evaluate=evaluate, tolerance=0.2)
    except KeyboardInterrupt:
        assert evaluate is broken
    else:
        assert evaluate is disturb
    assert everything(model) == before


def test_every_evaluation_sees_the_same_random_numbers_and_evaluation_mode():
    model, drawn = nn.Linear(8, 8).train(), set()

    def evaluate(model):
        assert not model.training
        drawn.add((float(torch.rand(())), random.random(), np.random.random()))
        return ratio_kept(model)

    pm.how_compressible(model, evaluate=evaluate, tolerance=0.5)
    assert len(drawn) == 1
    assert model.training


def test_weights_that_masks_have_pruned_do_not_count():
    masks = {"weight": torch.tensor([[False] * 5 + [True] * 5])}  # 6 to 10 are left, 40 together
    found = pm.how_compressible(
        ten_weights(), evaluate=total, masks=masks, tolerance=13, scopes=["global"]
    ).headroom[0]
    assert found.dense.score.value == 40
    assert found.share == pytest.approx(2 / 5)
    assert found.largest.density == pytest.approx(3 / 10)


def test_masks_of_torch_prune_are_respected():
    model = torch_prune.l1_unstructured(ten_weights(), "weight", amount=5)
    found = pm.how_compressible(
        model, evaluate=lambda m: m(torch.ones(1, 10)).sum(), tolerance=13, scopes=["global"]
    ).headroom[0]
    assert (found.dense.score.value, found.share) == (40, pytest.approx(2 / 5))
    assert model.weight_orig.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]]


def test_not_worse_takes_a_number_for_each_example():
    def evaluate(model):  # 55 at first, then 55 less than the weights cut; standard error 1
        return torch.tensor([total(model) - 2**0.5, total(model) + 2**0.5]) / 2**0.5

    found = pm.how_compressible(
        ten_weights(), evaluate=evaluate, tolerance="not-worse:0.95", scopes=["global"]
    ).headroom[0]
    assert found.dense.score.error == pytest.approx(1)
    assert found.share == pytest.approx(0.2)  # 1 + 2 over 2^.5 is below 1.645 · 2^.5 = 2.33; 6 over 2^.5 is not


def test_report_shows_the_headroom_in_table_sentence_and_plain_values():
    report = pm.how_compressible(ten_weights(), evaluate=lambda m: total(m) / 55, tolerance=0.2)
    lines = repr(report).splitlines()
    assert lines[3].split() == ["without", "retraining", "can", "go", "score", "index", "suggests", "score"]
    assert lines[6].split() == ["global", "40.0%", "0.8182", "0.0%", "1.0000"]
    assert report.verdict[2] == (
        "Without retraining, 40% of the weights can go at a cost of at most 0.2 (scope neuron); the index "
        "suggests 0%."
    )
    plain = json.loads(json.dumps(report.to_dict()))["headroom"][2]
    assert (plain["scope"], plain["share"], len(plain["curve"])) == ("global", pytest.approx(0.4), 5)
    assert str(report.headroom[2]).splitlines() == [
        "scope global                    cut  density   score",
        "                               0.0%   100.0%  1.0000",
        "suggested by the index         0.0%   100.0%  1.0000",
        "                              20.0%    80.0%  0.9455",
        "                              30.0%    70.0%  0.8909",
        "largest within the tolerance  40.0%    60.0%  0.8182",
        "outside the tolerance         50.0%    50.0%  0.7273",
    ]


def test_score_that_ignores_the_model_is_warned_about():
    said = pm.how_compressible(ten_weights(), evaluate=lambda m: 1.0).warnings
    assert any("Does evaluate run the model that it is given" in text for text in said)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"evaluate": 3}, TypeError, "evaluate must be a function of the model that returns a score, got 3"),
        (
            {"evaluate": lambda m: None},
            TypeError,
            "evaluate must return one number, .* got None",
        ),
        ({"evaluate": lambda m: "0.9"}, TypeError, "evaluate must return one number, .* got '0.9'"),
        ({"evaluate": lambda m: [[1.0]]}, TypeError, r"evaluate must return one number, .* got \[\[1.0\]\]"),
        ({"evaluate": lambda m: float("nan")}, ValueError, "a finite number for the model as given, got nan"),
        ({"evaluate": lambda m: 91.3}, ValueError, "evaluate returned 91.3: unless it is an accuracy"),
        ({"evaluate": lambda m: 0.4, "maximize": False}, ValueError, "returned 0.4, smaller is better: unless"),
        (
            {"evaluate": total, "tolerance": "much"},
            ValueError,
            "tolerance must be points .* got 'much'",
        ),
        ({"evaluate": total, "scopes": "global"}, TypeError, r"scopes must be a list .* got 'global'"),
        ({"evaluate": total, "scopes": ["world"]}, ValueError, "scope must be one of .* got 'world'"),
        ({"evaluate": total, "scopes": ["layer", "layer"]}, ValueError, "scopes must differ, got"),
        ({"tolerance": 0.02}, ValueError, "tolerance needs evaluate, .* got 0.02"),
    ],
)
def test_wrong_arguments_are_refused_with_a_way_out(arguments, error, words):
    with pytest.raises(error, match=words):
        pm.how_compressible(ten_weights(), **arguments)


def test_evaluate_with_a_file_is_refused():
    with pytest.raises(ValueError, match=r"evaluate needs a model that can be run, got the path 'a.pt'; load it"):
        pm.how_compressible("a.pt", evaluate=total)
