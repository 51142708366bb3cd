import math

import pytest
import torch

import palmette as pm
from palmette.measures.pq_map import P_GRID, Q_GRID, map_of_rows
from palmette.measures.rows import Rows


def test_grid_of_the_paper():
    assert tuple(k / 10 for k in range(1, 11)) == P_GRID
    assert tuple(k / 10 for k in range(10, 21)) == Q_GRID


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_every_value_equals_the_index_at_its_p_and_q(scale):
    w = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale
    kept = torch.rand(1000, generator=torch.Generator().manual_seed(1)) < 0.7
    (values,) = map_of_rows(Rows.of(w[None], kept[None]))
    assert values.shape == (10, 11)
    for i, p in enumerate(P_GRID):
        for j, q in enumerate(Q_GRID):
            if p == q:
                assert math.isnan(values[i, j])
            else:
                assert float(values[i, j]) == pytest.approx(float(pm.pq_index(w, p=p, q=q, kept=kept)), rel=1e-11)


def test_a_row_of_several_segments_equals_one_segment():
    parts = torch.randn(3, 10).split((4, 6), 1)
    values = map_of_rows(Rows(tuple(parts), (None, None)))
    assert torch.allclose(values, map_of_rows(Rows.of(torch.cat(parts, 1))), rtol=1e-12, equal_nan=True)


def test_map_of_zeros_is_nan():
    assert bool(map_of_rows(Rows.of(torch.zeros(1, 2))).isnan().all())
    assert bool(map_of_rows(Rows.of(torch.zeros(1, 0))).isnan().all())
