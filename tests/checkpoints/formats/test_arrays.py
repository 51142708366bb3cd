"""Plain numbers: .npy and .npz."""

import io
import zipfile

import numpy as np
import pytest
from checkpoint_files import values

from palmette.checkpoints.open import open_checkpoint
from palmette.errors import NotReadable


def test_every_array_of_an_npz_is_one_vector_or_matrix(tmp_path):
    arrays = {"a": np.arange(6.0), "b": np.eye(3, dtype="f4"), "c": np.array(2)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    found = open_checkpoint(tmp_path / "a.npz").weights
    assert [(w.name, w.shape) for w in found] == [("a", (6,)), ("b", (3, 3)), ("c", (1,))]
    for stored in found:
        np.testing.assert_array_equal(values(stored), np.atleast_1d(arrays[stored.name]))


ARRAYS = {
    "float64": np.random.default_rng(0).standard_normal((40, 6)),
    "float16": np.arange(240, dtype="f2").reshape(40, 2, 3),
    "big-endian": np.arange(80, dtype=">f4").reshape(40, 2),
    "by columns": np.asfortranarray(np.arange(80.0).reshape(40, 2)),
    "vector": np.arange(40),
}


@pytest.mark.parametrize("pack", [np.save, np.savez, np.savez_compressed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_are_read_in_parts_in_any_order(tmp_path, kind, pack):
    array = ARRAYS[kind]
    file = tmp_path / ("a.npy" if pack is np.save else "a.npz")
    pack(file, array)
    (found,) = open_checkpoint(file).weights
    for first, last in ((0, 8), (8, 40), (3, 5), (0, 40), (39, 40)):
        np.testing.assert_array_equal(
            found.read(first, last), array[first:last].astype(array.dtype.newbyteorder("="))
        )


def test_patterns_select_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", id=np.arange(2), income=np.array([20, 30]), age=np.array([30, 40]))
    found = open_checkpoint(tmp_path / "a.npz", exclude=["id"])
    assert [w.name for w in found.weights] == ["income", "age"]
    assert [(t.name, t.why) for t in found.left_out] == [("id", "excluded")]
    assert [w.name for w in open_checkpoint(tmp_path / "a.npz", include=["inc*"]).weights] == ["income"]
    with pytest.raises(ValueError, match=r"matches no weight of .*a\.npz'.* the names are id, income, age$"):
        open_checkpoint(tmp_path / "a.npz", include=["no"])
    np.savez(tmp_path / "b.npz", person=np.array(["ann", "bob"]), age=np.array([30, 40]))
    assert [w.name for w in open_checkpoint(tmp_path / "b.npz", exclude=["person"]).weights] == ["age"]


def test_labels_of_an_npz_are_left_out(tmp_path):
    np.savez(tmp_path / "a.npz", labels=np.array(["x", "y"]), numbers=np.arange(4.0))
    assert [w.name for w in open_checkpoint(tmp_path / "a.npz").weights] == ["numbers"]


def npz(file, packing, content, claimed=None):
    """A .npz file whose directory may claim another size than its member has."""
    with zipfile.ZipFile(file, "w", packing) as archive:
        archive.writestr("a.npy", content)
        if claimed is not None:
            archive.infolist()[0].file_size = claimed


def header(shape):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(10**9, 10**9), (-1, -4), (2**62, 2**62), (5,)])
def test_arrays_larger_than_their_file_are_refused(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(header(shape) + bytes(32))
    npz(tmp_path / "a.npz", zipfile.ZIP_STORED, header(shape) + bytes(32))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(NotReadable, match=r"it is shorter than its header says|has 2\^63 entries or more"):
            open_checkpoint(tmp_path / name)


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_sizes_that_compressed_bytes_cannot_have_are_refused(tmp_path, packing):
    npz(tmp_path / "a.npz", packing, header((10**8,)) + bytes(80), claimed=8 * 10**8 + 128)
    with pytest.raises(NotReadable, match=r"'a.npy' in it cannot be as large as its header says"):
        open_checkpoint(tmp_path / "a.npz")
    npz(tmp_path / "a.npz", zipfile.ZIP_LZMA, header((4,)) + bytes(32))
    with pytest.raises(NotReadable, match="compressed in a way that NumPy does not use"):
        open_checkpoint(tmp_path / "a.npz")
