import csv

import pytest
import run_clipping
import torch
from torch import nn

import palmette as pm


def test_a_probe_splits_the_squared_norm_between_pruned_and_kept_weights():
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    x, y = torch.tensor([[6.0, 8.0]]), torch.tensor([0])  # scores 0, 0: the gradient is ∓(3, 4)
    masks = pm.Masks({"weight": torch.tensor([[True, False], [True, False]])})
    found = run_clipping.probe(model, masks, [(x, y)], clip=1.0)
    assert found["norm"] == pytest.approx(50**0.5)
    assert found["kept_norm"] == pytest.approx(18**0.5)
    assert found["pruned_share"] == pytest.approx(32 / 50)
    assert found["all"] == pytest.approx(1 / 50**0.5)
    assert found["kept"] == pytest.approx(1 / 18**0.5)
    assert run_clipping.probe(model, masks, [(x, y)], clip=100.0)["all"] == 1.0


def test_both_orders_are_written_round_by_round(tmp_path):
    out = tmp_path / "clipping.csv"
    run_clipping.main(["digits", "linear", "--epochs", "2", "--rounds", "1", "--device", "cpu", "--out", str(out)])
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [(r["clip_over"], r["round"], r["epoch"]) for r in rows] == [
        (order, t, epoch) for order in ("kept", "all") for t in "01" for epoch in "01"
    ]
    assert all(float(r["pruned_share"]) == 0 for r in rows if r["round"] == "0")
    assert all(float(r["pruned_share"]) > 0 for r in rows if r["round"] == "1")
