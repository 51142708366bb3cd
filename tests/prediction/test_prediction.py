"""The study that predicts the limit: targets, and what a prediction may know."""

import numpy as np
import pandas as pd
import pytest
from prediction.features import of_weights
from prediction.ladders import FAMILIES, experiments
from prediction.predict import FIRST_ROUNDS, LADDER, judged, target

from palmette.pruning.weights import prunable
from palmette.studies.running import fleets
from palmette.training.models import build


def ladder(*rounds):
    return pd.DataFrame(rounds, columns=["density", "test_accuracy"])


def test_the_target_is_where_a_point_is_lost_for_good():
    assert np.exp(target(ladder((1, 0.9), (0.1, 0.9), (0.01, 0.88)))) == pytest.approx(0.1**1.5)
    assert np.exp(target(ladder((1, 0.9), (0.5, 0.85), (0.25, 0.9), (0.125, 0.88)))) == pytest.approx(
        0.25 / 2**0.5
    )
    assert np.isnan(target(ladder((1, 0.9), (0.5, 0.895))))


def test_there_are_enough_ladders_of_every_family_and_each_is_listed_once():
    found = experiments()
    assert len({e.id for e in found}) == len(found) > 200
    assert {e.data for e in found} == {"digits", "FashionMNIST", "CIFAR10"}
    assert all(len(fleet) == 2 for fleet in fleets(found))  # two seeds


@pytest.mark.parametrize("model", [name for names in FAMILIES.values() for name in names])
def test_every_model_has_finite_features(model):
    found = of_weights(prunable(build(model, shape=(1, 8, 8), classes=10)))
    assert np.isfinite(list(found.values())).all()
    assert 0 < found["index_1_2_global"] < 1


def made(rng, *, n, rule):
    rows = []
    for data in ("a", "b", "c"):
        for family in ("linear", "mlp", "cnn"):
            for seed in range(n):
                index, noise = rng.uniform(0.1, 0.5), rng.normal()
                row = {"family": family, "data": data, "model": family, "seed": seed, "epochs": 20}
                row |= {"weight_decay": 0.0, "label_noise": 0.0, "rewind": "init", "chance": 0.9}
                row |= {"index_1_2_global": index, "headroom_global": 0.5, "weights_per_example": 1 + abs(noise)}
                row |= {f"round{t}_train_loss": 1.0 for t in FIRST_ROUNDS}
                rows.append(row | {"target": rule(index, data)})
    return pd.DataFrame(rows)


def test_a_rule_that_holds_in_all_families_is_found_and_a_constant_is_not_enough():
    table = made(np.random.default_rng(0), n=20, rule=lambda index, _: 3 * np.log(index / (1 - index)))
    within = judged(table).groupby("features")["within"].min()
    assert within["dense network"] == 1
    assert within["a constant"] < 0.5


def test_nothing_of_the_family_that_is_left_out_is_used():
    table = made(np.random.default_rng(0), n=20, rule=lambda index, data: 5.0 * (data == "c"))
    found = judged(table)
    left_out = found[(found["left out"] == "data") & (found["value"] == "c")]
    assert (left_out["within"] == 0).all()
    assert set(LADDER) <= set(table)


def test_models_are_named_so_that_every_process_finds_them():
    own = {e.model for e in experiments() if ":" in e.model}
    assert len(own) == 6
    assert {name.split(":")[0] for name in own} == {"prediction.ladders"}
