from __future__ import annotations

from palmette.training.random_streams import mix


def test_mixed_seeds_are_distinct():
    seeds = {mix(seed, round, epoch) for seed in range(8) for round in range(8) for epoch in range(8)}
    assert len(seeds) == 512
    assert all(0 <= s < 2**63 for s in seeds)
