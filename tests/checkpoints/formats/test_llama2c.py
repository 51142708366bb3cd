"""Files of llama2.c."""

import numpy as np
import pytest
from checkpoint_files import values

from palmette.checkpoints.open import open_checkpoint


@pytest.mark.parametrize("shared", [True, False])
def test_file_is_recognised_by_its_size(tmp_path, shared):
    dim, hidden, layers, heads, kv_heads, words, length = 8, 12, 2, 4, 2, 16, 5
    sizes = [words * dim, *[layers * n for n in (dim, 64, 32, 32, 64, dim, 96, 96, 96)], dim, length, length]
    sizes += [] if shared else [words * dim]
    header = np.array([dim, hidden, layers, heads, kv_heads, words if shared else -words, length], "<i4")
    body = np.arange(sum(sizes), dtype="<f4")
    file = tmp_path / "a.bin"
    file.write_bytes(header.tobytes() + body.tobytes())
    found = {w.name: w for w in open_checkpoint(file).weights}
    assert len(found) == 14 + (not shared)
    second = values(found["layers.1.attention.wk.weight"])
    start = words * dim + layers * (dim + 64) + 32
    assert second.tolist() == body[start : start + 32].reshape(4, 8).tolist()
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"not weights in the .bin format"):
        open_checkpoint(file)
