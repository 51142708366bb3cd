import json

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.studies.record import index_maps, measured


def network():
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    model[1].weight.data = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
    return model


def test_the_numbers_are_those_of_the_kept_weights():
    weights = pm.prunable(network())
    masks = {"0.weight": torch.ones(2, 4, dtype=torch.bool), "1.weight": torch.ones(2, 2, dtype=torch.bool)}
    masks["0.weight"][1] = False
    (record,) = measured([weights], [masks])
    first, second = record["layers"]["0.weight"], record["layers"]["1.weight"]
    assert (first["total"], first["kept"], first["density"], first["dead_neurons"]) == (8, 4, 0.5, 1)
    assert first["pq_index"] == pytest.approx(3 / 4 - 3**0.5 / 7, rel=1e-14)  # 1 - (2 + √3)² / (4 · 7)
    assert (second["kept"], second["dead_neurons"]) == (4, 1)
    assert (record["total"], record["kept"], record["dead_neurons"]) == (12, 8, 2)
    together = [3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0]
    assert record["pq_index"] == pytest.approx(pm.pq_index(together), rel=1e-14)
    assert record["gini_index"] == pytest.approx(pm.gini_index(together), rel=1e-14)


def test_an_index_that_does_not_exist_is_null():
    weights = pm.prunable(network())
    masks = {n: torch.zeros(w.shape, dtype=torch.bool) for n, w in weights.items()}
    (record,) = measured([weights], [masks])
    assert record["pq_index"] is None
    assert record["gini_index"] is None
    assert "NaN" not in json.dumps([record, index_maps([weights], [masks])], allow_nan=False)


def test_the_map_has_the_index_at_each_p_and_q():
    weights = pm.prunable(network())
    (found,) = index_maps([weights], [pm.Masks.ones_like(weights)])
    flat = torch.cat([w.tensor.detach().flatten() for w in weights.values()])
    assert found["pq_index"][4][0] == pytest.approx(float(pm.pq_index(flat)), rel=1e-12)
    assert found["pq_index"][9][0] is None
    assert found["pq_index"][9][10] == pytest.approx(float(pm.pq_index(flat, p=1, q=2)), rel=1e-12)


def test_many_networks_are_measured_as_each_alone():
    networks = [pm.prunable(network()) for _ in range(3)]
    for number, weights in enumerate(networks):
        for weight in weights.values():
            weight.tensor.data += number * torch.linspace(-1, 1, weight.tensor.numel()).view_as(weight.tensor)
    masks = [{n: torch.rand(w.shape) < 0.8 for n, w in weights.items()} for weights in networks]
    together = measured(networks, masks), index_maps(networks, masks)
    for number in range(3):
        one = measured(networks[number : number + 1], masks[number : number + 1])
        spectrum = index_maps(networks[number : number + 1], masks[number : number + 1])
        assert together[0][number]["layers"].keys() == one[0]["layers"].keys()
        assert together[0][number]["dead_neurons"] == one[0]["dead_neurons"]
        assert together[0][number]["pq_index"] == pytest.approx(one[0]["pq_index"], rel=1e-12)
        assert together[1][number]["pq_index"][4] == pytest.approx(spectrum[0]["pq_index"][4], rel=1e-12)
