"""`how_compressible`: its figures are those of the library."""

import dataclasses
import json
import math
import sys

import pytest
import torch
from mixed_model import mixed
from torch import nn

import palmette as pm
from palmette.checkpoints.measuring import measure, packed_bytes
from palmette.measures.pq import power_sums
from palmette.measures.rows import Rows
from palmette.pruning.methods import SCOPES
from palmette.pruning.sources import file, survey
from palmette.pruning.sources.file import FileSource
from palmette.pruning.sources.stored import stored_weights


def test_model_on_the_meta_device_is_refused():
    with pytest.raises(ValueError, match=r"'weight' is on the meta device, without values; load its weights"):
        pm.how_compressible(nn.Linear(3, 3, device="meta"))


def test_what_is_done_once_is_not_done_for_every_tensor(monkeypatch):
    calls = []
    for module, name in ((survey, "ThreadPoolExecutor"), (file, "_key_dtype")):
        plain = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, plain=plain, name=name, **kw: calls.append(name) or plain(*args, **kw)
        )

    def calls_for(count):
        calls.clear()
        assert len(pm.how_compressible(nn.ModuleList(nn.Linear(4, 4) for _ in range(count))).layers) == count
        return sorted(calls)

    assert "_key_dtype" in calls_for(2)
    assert calls_for(20) == calls_for(2)


BUDGETS = [pm.Sap(), pm.Sap(p=1.0, q=2.0, eta=0.1, gamma=1.5, beta=0.5)]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_predicted_cut_is_the_one_that_prune_makes(budget):
    model = mixed()
    report = pm.how_compressible(model, budget=budget, zeros="count")
    weights = pm.prunable(model)
    for scope in SCOPES:
        masks, decision = pm.prune(weights, scope=scope, budget=budget)
        assert [layer.sap_cut[scope] for layer in report.layers] == [int((~m).sum()) for m in masks.values()]
        assert report.whole.sap_cut[scope] == decision.cut


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_measures_are_those_of_the_library(budget):
    model = mixed()
    report = pm.how_compressible(model, budget=budget, zeros="count")
    weights = {n: w.tensor.detach() for n, w in pm.prunable(model).items()}
    everything = torch.cat([w.double().flatten() for w in weights.values()])
    for found, w in zip((*report.layers, report.whole), (*weights.values(), everything), strict=True):
        assert (found.d, found.entries, found.zeros) == (w.numel(), w.numel(), int((w == 0).sum()))
        assert found.pq_index == pytest.approx(float(pm.pq_index(w, p=budget.p, q=budget.q)), rel=1e-12)
        assert found.gini_index == pytest.approx(float(pm.gini_index(w)), rel=1e-12)
        assert found.hoyer == pytest.approx(float(pm.MEASURES["hoyer"](w)), rel=1e-12)
        bound = pm.retained_lower_bound(found.pq_index, w.numel(), p=budget.p, q=budget.q, eta=budget.eta)
        assert found.retained_lower_bound == pytest.approx(float(bound), rel=1e-12)
        assert found.removable == pytest.approx(1 - bound / w.numel(), rel=1e-10)
        eta = pm.eta_of_cut(w, math.ceil(found.retained_lower_bound), budget.p)
        assert found.tail_mass == pytest.approx(eta, rel=1e-12)
    assert (report.layers[0].neurons, report.layers[0].dead_neurons) == (30, 1)
    assert report.whole.dead_neurons == 1


@pytest.mark.parametrize("chunk", [1, 1000, 10**9])
def test_chunk_size_does_not_change_the_report(chunk):
    weights = stored_weights(pm.prunable(mixed()))
    whole = measure(weights, budget=pm.Sap())
    parts = measure(weights, budget=pm.Sap(), chunk=chunk)
    for ours, theirs in zip((*parts.layers, parts.whole), (*whole.layers, whole.whole), strict=True):
        for name, value in dataclasses.asdict(ours).items():
            if isinstance(value, float):
                assert value == pytest.approx(getattr(theirs, name), rel=1e-12), name
            else:
                assert value == getattr(theirs, name), name


def test_large_network_is_cut_where_prune_cuts_it(monkeypatch):
    """Beyond `EXACT` entries, a second pass over one bucket finds the threshold."""
    monkeypatch.setattr("palmette.measures.spectrum.EXACT", 100)
    looked = []
    inside = FileSource._read_between
    monkeypatch.setattr(
        FileSource,
        "_read_between",
        lambda self, scores, *args: looked.extend(one.name for one in scores) or inside(self, scores, *args),
    )
    test_predicted_cut_is_the_one_that_prune_makes(pm.Sap())
    assert looked == [name for name in pm.prunable(mixed()) if name != "narrow.weight"]  # known from its counts


def test_masked_weights_do_not_count():
    model = nn.Linear(20, 10)
    pruner = pm.Pruner(model, scope="global")
    pruner.step()
    report = pm.how_compressible(model, masks=pruner.masks)
    assert report.whole.d == pruner.masks.kept < report.whole.entries == 200
    assert report.whole.sap_cut["global"] == pruner.step().cut
    assert any("pruned before, according to a mask or their zeros" in text for text in report.warnings)
    with pytest.raises(ValueError, match="the masks belong to another model"):
        pm.how_compressible(model, masks={"other": torch.ones(2, dtype=torch.bool)})


def test_parameters_left_out_are_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    report = pm.how_compressible(model, exclude=["2.*"])
    assert [layer.name for layer in report.layers] == ["0.weight"]
    assert [tensor.name for tensor in report.left_out] == ["0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert report.whole.bytes == sum(p.numel() * 4 for p in model.parameters())


def test_report_prints_and_converts_to_plain_values():
    report = pm.how_compressible(mixed())
    lines = repr(report).splitlines()
    assert lines[0].split() == ["weights", "PQ", "Index", "Gini", "Hoyer", "neuron", "layer", "global", "dead"]
    assert [line.split()[0] for line in lines[1:7]] == [*(layer.name for layer in report.layers), "all"]
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["whole"]["d"] == report.whole.d


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_is_refused_with_the_name_of_its_weight(value):
    model = nn.Linear(2, 2)
    model.weight.data[0, 0] = value
    with pytest.raises(ValueError, match="the model has NaN or infinite numbers in 'weight'"):
        pm.how_compressible(model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3,), "a torch.nn.Module or the path of a checkpoint, got int"),
        ((nn.Linear(2, 2), pm.FixedRatio()), "budget must be a Sap"),
    ],
)
def test_wrong_models_and_budgets_are_refused(arguments, words):
    model, *budget = arguments
    with pytest.raises(TypeError, match=words):
        pm.how_compressible(model, **({"budget": budget[0]} if budget else {}))


def test_masks_with_a_file_are_refused():
    with pytest.raises(ValueError, match="masks need a model"):
        pm.how_compressible("a.pt", masks={})


def test_power_sums_are_not_enough_for_tail_mass():
    sums = power_sums(Rows.of(torch.eye(2)), p=0.5, q=1.0)
    with pytest.raises(TypeError, match="enough for Sap and FixedRatio, not for TailMass"):
        pm.TailMass().plan_of_sums(sums)


@pytest.mark.parametrize(
    ("now", "entries", "kept", "after"), [(400, 100, 50, 213), (400, 100, 100, 400), (50, 100, 0, 13)]
)
def test_packed_bytes_are_bits_and_kept_values_or_the_size_before(now, entries, kept, after):
    assert packed_bytes(now, entries, kept) == after


def test_report_becomes_a_frame_with_a_row_for_each_layer_and_scope():
    report = pm.how_compressible(mixed(), zeros="count")
    frame = report.to_pandas()
    assert list(zip(frame["layer"], frame["scope"], strict=True)) == [
        (layer.name, scope) for layer in report.layers for scope in SCOPES
    ]
    for scope, rows in frame.groupby("scope"):
        assert rows["sap_cut"].sum() == report.whole.sap_cut[scope]
        assert (rows["share_cut"] == rows["sap_cut"] / rows["d"]).all()
    first = frame.iloc[0]
    assert (first["shape"], first["pq_index"]) == (report.layers[0].shape, report.layers[0].pq_index)
    assert {field.name for field in dataclasses.fields(report.whole)} - {"name"} <= {*frame.columns}


def test_frame_without_pandas_names_the_install_command(monkeypatch):
    report = pm.how_compressible(mixed())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas needs pandas: pip install 'palmette\[figures\]'"):
        report.to_pandas()
