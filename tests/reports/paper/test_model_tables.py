"""Tables 1 to 3: our models and settings, and the paper's numbers where they differ."""

from __future__ import annotations

import csv
import io

import pytest

from palmette.compression.flops import flops_per_image
from palmette.reports.paper.model_tables import layers, table
from palmette.studies.cost import SETS
from palmette.training.models import build


@pytest.mark.parametrize("data", ["FashionMNIST", "CIFAR10"])
@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
def test_layers_sum_to_the_model(data, model):
    shape, classes = SETS[data].shape, SETS[data].classes
    network = build(model, shape=shape, classes=classes)
    found = layers(model, SETS[data])
    assert sum(count or 0 for _, count, _ in found) == sum(p.numel() for p in network.parameters())
    assert sum(flops or 0 for _, _, flops in found) == flops_per_image(network, shape=shape)


def test_table_1_has_the_layers_of_the_paper():
    found = table("table1")
    assert found.columns == ("data set", "layer", "parameters", "FLOPs")
    assert [row[1] for row in found.rows if row[0] == "CIFAR10"] == [
        "Linear(3072, 128)",
        "Linear(128, 256)",
        "Linear(256, 10)",
        "together",
    ]
    assert ("FashionMNIST", "together", 136_074, 271_360) in found.rows


def test_table_2_names_the_pool_that_only_the_paper_has():
    found = table("table2")
    assert [row for row in found.rows if row[-1] is not None] == [
        (data, "none", None, None, "MaxPool2d(512, 2)") for data in ("FashionMNIST", "CIFAR10")
    ]
    assert [row[1] for row in found.rows][:4] == [
        "Conv2d(1, 64, 3, 1, 1)",
        "MaxPool2d(64, 2)",
        "Conv2d(64, 128, 3, 1, 1)",
        "MaxPool2d(128, 2)",
    ]


def test_table_3_states_where_the_papers_flops_differ():
    whole = table("table3")
    found = {(row[0], row[1]): dict(zip(whole.columns, row, strict=True)) for row in whole.rows}
    assert len(found) == 10
    assert [found["FashionMNIST", m]["parameters"] for m in ("Linear", "MLP")] == [7_850, 136_074]
    differing = {key: row["in the paper"] for key, row in found.items() if row["in the paper"]}
    assert differing == {
        ("FashionMNIST", "CNN"): "FLOPS 20.1 G",
        ("FashionMNIST", "ResNet18"): "FLOPS 114.4 G",
        ("CIFAR10", "MLP"): "FLOPS 214.2 M",
        ("CIFAR10", "CNN"): "FLOPS 29.4 G",
        ("CIFAR10", "ResNet18"): "FLOPS 139.4 G",
        ("CIFAR100", "WResNet28x8"): "no row",
        ("TinyImageNet", "ResNet50"): "no row",
    }
    assert {row["T"] for row in found.values()} == {30, 15}
    # Table 3 of the paper
    known = {
        "epochs": 200,
        "learning rate": 0.1,
        "momentum": 0.9,
        "weight decay": 5e-4,
        "Nesterov": "yes",
        "P": 0.2,
    }
    assert whole.shared.items() >= known.items()


def test_table_is_written_as_markdown_csv_and_latex():
    found = table("table3")
    files = found.files()
    assert list(files) == [".md", ".csv", ".tex"]
    rows = list(csv.DictReader(io.StringIO(files[".csv"])))
    assert [int(row["parameters"]) for row in rows] == [row[2] for row in found.rows]
    assert {row["learning rate"] for row in rows} == {"0.1"}
    assert "| FashionMNIST | Linear | 7,850 | 7,840 | 15,680 | 3.9 M | 30 | 250 |  |" in files[".md"]
    assert "learning rate 0.1" in files[".md"]
    assert r"FashionMNIST & Linear & 7,850 &" in files[".tex"]
    assert files[".tex"].count(r"\\") == 11
    # LaTeX writes its own "Table 7:" before it
    assert r"\caption{Models and settings (Table 3 of Diao et al. 2023). All rows: epochs 200," in files[".tex"]
