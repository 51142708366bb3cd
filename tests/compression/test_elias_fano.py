import numpy as np
import pytest

from palmette.compression.elias_fano import index_bytes, low_bits, pack_indices, unpack_indices


def test_ten_indices_take_fourteen_bytes():
    # Two low bits each: two planes of 2 bytes. High: a one at 25 i / 4 + i, so 10 + 249 // 4 + 1 bits.
    indices = np.arange(0, 250, 25)
    code = pack_indices(indices, 250, 2)
    assert len(code) == 2 * 2 + 10 == index_bytes(10, 250, 2)
    assert unpack_indices(code, 10, 250, 2).tolist() == indices.tolist()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000, 65537])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.1, 0.5, 1.0])
def test_indices_round_trip_in_the_fewest_bytes(size, density):
    indices = np.flatnonzero(np.random.default_rng(size).random(size) < density)
    low = low_bits(len(indices), size)
    code = pack_indices(indices, size, low)
    assert len(code) == index_bytes(len(indices), size, low)
    assert np.array_equal(unpack_indices(code, len(indices), size, low), indices)
    others = [index_bytes(len(indices), size, other) for other in range(20)]
    assert len(code) == min(others)


def test_indices_out_of_range_are_refused():
    code = pack_indices(np.array([3, 99]), 100, 5)
    for wrong in (code ^ np.uint8(1), np.full_like(code, 255), np.zeros_like(code)):
        with pytest.raises(ValueError, match="indices"):
            unpack_indices(wrong, 2, 97, 5)
