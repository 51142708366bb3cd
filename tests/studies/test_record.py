import json

import pytest
import torch
from torch import nn

import palmette as pm
from palmette.errors import RunDamaged
from palmette.studies.measurements import index_maps, measured
from palmette.studies.record import Record


def network():
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[0].weight.data = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    model[1].weight.data = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
    return model


def test_numbers_are_of_the_kept_weights():
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


def test_many_networks_are_measured_like_single_ones():
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


LINE = {
    "round": 0,
    "train": {"loss": 0.5, "accuracy": 0.9},
    "test": {"loss": 0.6, "accuracy": 0.8},
    "validation": None,
    "retrained": {
        "total": 4, "kept": 4, "density": 1.0, "pq_index": 0.3, "gini_index": 0.2, "dead_neurons": 0,
        "layers": {
            "w": {
                "total": 4, "kept": 4, "density": 1.0, "pq_index": 0.3, "gini_index": 0.2, "dead_neurons": 0,
            },
        },
    },
    "pruned": {"test": {"loss": 0.7, "accuracy": 0.7}, "kept": 2, "density": 0.5, "pq_index": 0.1},
    "cut": {"weights": 2, "layers": {"w": 2}},
    "index_map": {"p": [0.5, 1.0], "q": [1.0, 2.0], "pq_index": [[0.3, 0.4], [0.5, None]]},
    "stopped": None,
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"good": True}])
def test_a_record_is_written_as_it_was_read(more):
    line = {name: value for name, value in LINE.items() if name != "stopped"} | more | {"stopped": None}
    assert json.dumps(Record.from_json(line).to_json()) == json.dumps(line)


def test_a_record_of_a_newer_version_is_refused():
    assert Record.from_json(LINE | {"version": 1}) == Record.from_json(LINE)
    with pytest.raises(RunDamaged, match="a record of version 3 was written by a newer palmette"):
        Record.from_json(LINE | {"version": 3})


SEARCH = {"score": 0.9, "error": None, "start": 0, "repeats": None, "answer": 0}
SEARCH |= {"good_density": 1.0, "bad_density": 0.5}


def test_a_record_of_a_search_has_version_2_and_its_bracket_as_columns():
    line = LINE | {"good": False, "search": SEARCH}
    record = Record.from_json(line)
    assert record.to_json() == line | {"version": 2}
    columns = ("good", "start", "repeats", "good_density", "bad_density")
    assert tuple(record.flat()[name] for name in columns) == (False, 0, None, 1.0, 0.5)
    assert not {"start", "good_density", "version"} & Record.from_json(LINE).flat().keys()


def test_a_score_that_a_trainer_adds_becomes_a_column():
    flat = Record.from_json(LINE | {"train": LINE["train"] | {"gradient_norm": 3.0}}).flat()
    assert (flat["train_accuracy"], flat["train_gradient_norm"], flat["validation_loss"]) == (0.9, 3.0, None)


def test_a_rule_reads_the_index_at_the_p_and_q_of_the_run():
    rising = [LINE, LINE | {"round": 1, "retrained": LINE["retrained"] | {"pq_index": 0.35}}]
    assert pm.replay(pm.IndexTurnsUp(1), rising) == 1
    assert pm.replay(pm.IndexTurnsUp(1), rising, p=1.0, q=1.0) is None  # 0.5 in both
    assert pm.replay(lambda history: history[-1].train == 0.9 and "enough", map(Record.from_json, rising)) == 0
    with pytest.raises(ValueError, match=r"records have the index at p in \[0.5, 1.0\] and q in .*, got p=0.3"):
        pm.replay(pm.IndexTurnsUp(1), rising, p=0.3, q=1.0)


def test_a_rule_reads_neither_rejected_nor_repeated_rounds_of_a_search():
    def read(history):
        return "enough" if len(history) == 2 else None

    rejected = LINE | {"round": 1, "good": False, "search": SEARCH}
    good = LINE | {"round": 2, "good": True, "search": SEARCH}
    repeated = LINE | {"round": 3, "good": True, "search": SEARCH | {"repeats": 2}}
    assert pm.replay(read, [LINE, rejected, repeated]) is None
    assert pm.replay(read, [LINE, rejected, good, repeated]) == 2
