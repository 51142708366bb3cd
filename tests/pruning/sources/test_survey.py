"""One pass over weights of a file: small ones are measured together, with the results of each alone."""

from dataclasses import replace

import torch

from palmette.checkpoints.measuring import measure
from palmette.pruning.budgets import Sap
from palmette.pruning.sources.stored import in_memory


def weights(count):
    """Small weights of a few shapes and dtypes, some with zeros, and a large one in the middle."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 1), (3, 4), (3, 4), (2, 1, 2, 2), (5,)]
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    found = []
    for i in range(count):
        tensor = torch.randn(shapes[i % 5], generator=generator, dtype=torch.float64)
        tensor[tensor.abs() < 0.1] = 0
        found.append(in_memory(f"{i}.weight", tensor.to(dtypes[i // 7 % 3])))
    found.insert(count // 2, in_memory("large.weight", torch.randn(80, 90, generator=generator)))
    return found


def test_small_weights_are_measured_as_each_alone():
    budget, several = Sap(), weights(200)
    together = measure(several, budget=budget).layers
    for one, stored in zip(together, several, strict=True):
        alone = measure([stored], budget=budget).layers[0]
        assert vars(alone) | {"sap_cut": 0, "bytes_after": 0} == vars(one) | {"sap_cut": 0, "bytes_after": 0}
        for scope in ("neuron", "layer"):
            assert alone.sap_cut[scope] == one.sap_cut[scope]


def test_many_small_weights_share_their_plans(monkeypatch):
    calls = []
    plan = Sap.plan_of_sums
    monkeypatch.setattr(Sap, "plan_of_sums", lambda self, sums: (calls.append(1), plan(self, sums))[1])
    many = [in_memory(f"{i}.weight", torch.full((1, 1), float(i + 1))) for i in range(1000)]
    report = measure(many, budget=Sap())
    assert report.whole.d == 1000
    assert len(calls) < 100


def test_few_weights_are_read_once():
    reads = []

    def counted(stored):
        def read(first, last):
            reads.append(stored.name)
            return stored.read(first, last)

        return read

    several = [replace(stored, read=counted(stored)) for stored in weights(20)]
    measure(several, budget=Sap())
    assert sorted(reads) == sorted(stored.name for stored in several)
