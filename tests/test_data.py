from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from palmette.cli import main
from palmette.training import data
from palmette.training.data import DATA, SHA256, Images, cifar, load, places
from palmette.training.data.idx import read_idx
from palmette.training.data.images import mean_and_sd
from palmette.training.data.pictures import read_pictures
from palmette.training.data.plain_pickle import load_plain

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(autouse=True)
def nothing_but_what_the_test_makes(tmp_path, monkeypatch):
    """No data folder of this machine's owner is read or written."""
    monkeypatch.delenv("PALMETTE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "cache_folder", lambda: tmp_path / "cache" / "palmette")
    monkeypatch.setitem(data.tiny_imagenet.__globals__, "cache_folder", places.cache_folder)
    monkeypatch.setitem(places.PLACES, "FashionMNIST", replace(places.PLACES["FashionMNIST"], system=()))


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


# ---- digits


def test_digits_come_along_with_1500_and_297_images():
    digits = load("digits")
    assert digits.train_images.shape == (1500, 1, 8, 8)
    assert digits.test_images.shape == (297, 1, 8, 8)
    assert digits.train_labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert digits.test_labels.bincount().tolist() == [27, 31, 27, 30, 33, 30, 30, 30, 28, 31]
    assert sorted({*digits.train_images.unique().tolist()}) == list(range(0, 241, 15))
    assert (digits.train_images[0, 0, 0] // 15).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert mean_and_sd(digits.train_images) == (digits.mean, digits.sd)
    assert digits.sha256() == SHA256["digits"]


def test_digits_are_small_and_have_their_licence_beside_them():
    folder = Path(data.__file__).parent
    assert (folder / "digits.npz").stat().st_size < 50_000
    assert "CC BY 4.0" in (folder / "digits.LICENSE.txt").read_text()


@pytest.mark.parametrize("name", ["FashionMNIST", "fashion-mnist", "FASHION_MNIST", "fashionmnist"])
def test_a_name_is_understood_however_it_is_written(name):
    assert data.canonical(name) == "FashionMNIST"


# ---- IDX


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, *, train=20, test=10, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", train), ("t10k", test)):
        for what, array in (
            ("images-idx3", pixels(n, 28, 28)),
            ("labels-idx1", (np.arange(n) % 10).astype(np.uint8)),
        ):
            body = idx(array)
            name = f"{part}-{what}-ubyte"
            (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(body) if packed else body)
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_idx_files_are_read_plain_and_gzipped(tmp_path, name, packed):
    images = load(name, folder=write_idx(tmp_path / "set", packed=packed))
    assert np.array_equal(images.train_images[:, 0].numpy(), pixels(20, 28, 28))
    assert images.test_labels.tolist() == list(range(10))
    assert images.shape == (1, 28, 28)
    assert not images.augment


def test_the_pixel_in_row_and_column_is_where_the_file_has_it(tmp_path):
    (tmp_path / "x").write_bytes(idx(np.arange(12, dtype=np.uint8).reshape(1, 3, 4)))
    assert read_idx(tmp_path / "x")[0, 1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "begins with 00 00 08"),
        (b"\0\0\x08\x03\0\0", "begins with 00 00 08"),
        (b"hello world", "begins with 00 00 08"),
        (b"\0\0\x0d\x01\0\0\0\0", "begins with 00 00 08"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"promises 6 bytes of shape \(2, 3\), 5 follow"),
        (idx(np.zeros((2, 3), np.uint8)) + b"x", "promises 6 bytes .* 7 follow"),
        (struct.pack(">HBB4I", 0, 8, 4, *[2**32 - 1] * 4), "is not whole"),
        (gzip.compress(idx(pixels(50, 9)))[:-20], "is not a whole gzip file"),
        (b"\x1f\x8bnonsense", "is not a whole gzip file"),
    ],
)
def test_a_damaged_idx_file_is_named_with_what_is_wrong(tmp_path, body, said):
    (tmp_path / "bad-file").write_bytes(body)
    with pytest.raises(ValueError, match=said) as error:
        read_idx(tmp_path / "bad-file")
    assert "bad-file" in str(error.value)


def test_labels_that_do_not_fit_their_images_are_refused(tmp_path):
    folder = write_idx(tmp_path / "set")
    labels = folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx(np.zeros(19, np.uint8)))
    with pytest.raises(ValueError, match=r"train images in .*set.* one label each, got 20 images and 19 labels"):
        load("MNIST", folder=folder)
    labels.write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ValueError, match=r"labels of the train images .* must be from 0 to 9, got 10"):
        load("MNIST", folder=folder)
    labels.write_bytes(idx(np.zeros((20, 1), np.uint8)))
    with pytest.raises(ValueError, match=r"labels must have 1 dimensions, .* has shape \(20, 1\)"):
        load("MNIST", folder=folder)
    labels.unlink()
    with pytest.raises(FileNotFoundError, match=r"no train-labels-idx1-ubyte, plain or \.gz, in"):
        load("MNIST", folder=folder)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_fashion_mnist_is_the_original_byte_for_byte():
    contents = {
        "train-images-idx3": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }
    for name, want in contents.items():
        body = idx(read_idx(DEBIAN / f"{name}-ubyte.gz").numpy())
        assert hashlib.sha256(body).hexdigest() == want
    images = load("FashionMNIST", folder=DEBIAN)
    assert images.sha256() == SHA256["FashionMNIST"]
    assert images.train_images.shape == (60_000, 1, 28, 28)
    assert mean_and_sd(images.train_images) == (images.mean, images.sd)
    with pytest.raises(ValueError, match=r"holds FashionMNIST, not MNIST"):
        load("MNIST", folder=DEBIAN)


# ---- CIFAR


@pytest.fixture
def small_releases(monkeypatch):
    """Releases of 20 images a file."""
    for name in ("TEN", "HUNDRED"):
        release = getattr(cifar, name)
        train = tuple((file, 20) for file, _ in release.train)
        monkeypatch.setattr(cifar, name, replace(release, train=train, test=(release.test[0], 20)))


def batches(name):
    """File, pixels and labels of each batch of a small release."""
    release = cifar.TEN if name == "CIFAR10" else cifar.HUNDRED
    for i, (file, n) in enumerate([*release.train, release.test]):
        yield file, pixels(n, 3072, seed=i), (np.arange(n) * 7 + i) % release.classes


def write_binary(folder, name):
    folder.mkdir()
    for file, x, y in batches(name):
        coarse = [np.full((20, 1), 99)] if name == "CIFAR100" else []
        rows = np.hstack([*coarse, y[:, None], x]).astype(np.uint8)
        (folder / f"{file}.bin").write_bytes(rows.tobytes())
    return folder


def write_python(folder, name, protocol):
    folder.mkdir()
    key = b"labels" if name == "CIFAR10" else b"fine_labels"
    for file, x, y in batches(name):
        batch = {b"data": x, key: y.tolist(), b"filenames": [b"a.png"] * 20, b"batch_label": b"batch"}
        (folder / file).write_bytes(pickle.dumps(batch, protocol))
    (folder / "meta").write_bytes(pickle.dumps({}))
    return folder


def write_pictures(folder, name):
    from PIL import Image

    classes = ["airplane" if name == "CIFAR10" else "apple"]
    classes += [f"class{i:02}" for i in range(1, 10 if name == "CIFAR10" else 100)]
    for part, seed in (("train", 0), ("test", 1)):
        for label, kind in enumerate(classes):
            (folder / part / kind).mkdir(parents=True)
            image = pixels(3, 32, 32, seed=seed * 1000 + label).transpose(1, 2, 0)
            Image.fromarray(image).save(folder / part / kind / "0.png")
    return folder


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
@pytest.mark.parametrize("layout", ["binary", "python 0", "python 2", "python 4"])
def test_both_releases_give_the_same_images(tmp_path, small_releases, name, layout):
    if layout == "binary":
        folder = write_binary(tmp_path / "set", name)
    else:
        folder = write_python(tmp_path / "set", name, int(layout[-1]))
    images = load(name, folder=folder)
    *train, test = list(batches(name))
    assert np.array_equal(images.train_images.numpy().reshape(-1, 3072), np.concatenate([x for _, x, _ in train]))
    assert images.train_labels.tolist() == np.concatenate([y for _, _, y in train]).tolist()
    assert np.array_equal(images.test_images.numpy().reshape(-1, 3072), test[1])
    assert images.test_labels.tolist() == test[2].tolist()
    assert images.augment
    assert images.classes == int(name[5:])


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100"])
def test_cifar_as_pictures_by_class(tmp_path, name):
    pytest.importorskip("PIL")
    images = load(name, folder=write_pictures(tmp_path / "set", name))
    assert images.train_labels.tolist() == list(range(images.classes))
    assert np.array_equal(images.train_images[3].numpy(), pixels(3, 32, 32, seed=3))
    assert np.array_equal(images.test_images[3].numpy(), pixels(3, 32, 32, seed=1003))
    assert images.class_names[0] in ("airplane", "apple")


def test_a_truncated_binary_batch_is_refused_even_at_the_end_of_an_image(tmp_path, small_releases):
    folder = write_binary(tmp_path / "set", "CIFAR10")
    path = folder / "data_batch_3.bin"
    os.truncate(path, 19 * 3073)
    said = r"data_batch_3\.bin' is not whole: 20 images of 3,073 bytes are 61,460, it has 58,387"
    with pytest.raises(ValueError, match=said):
        load("CIFAR10", folder=folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"binary release of CIFAR10 needs data_batch_3\.bin in"):
        load("CIFAR10", folder=folder)


def test_a_label_out_of_range_names_its_file(tmp_path, small_releases):
    folder = write_binary(tmp_path / "set", "CIFAR10")
    with (folder / "test_batch.bin").open("r+b") as file:
        file.write(b"\x0a")
    with pytest.raises(ValueError, match=r"images in .*test_batch\.bin' must be from 0 to 9, got 10"):
        load("CIFAR10", folder=folder)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([1, 2], "must hold a dict, got a list"),
        ({"labels": [0]}, r"'data' in .* must be uint8 \(20, 3072\), got NoneType"),
        ({"data": np.zeros((20, 3072))}, r"got float64 \(20, 3072\)"),
        ({"data": pixels(19, 3072)}, r"got uint8 \(19, 3072\)"),
        ({"data": pixels(20, 3072), "labels": ["x"] * 20}, "'labels' in .* must be a list of whole numbers"),
        ({"data": pixels(20, 3072), "labels": [0] * 19}, "one label each, got 20 images and 19 labels"),
        ({"data": pixels(20, 3072), "labels": [-1] * 20}, "must be from 0 to 9, got -1"),
        ({"data": Path("/")}, r"it asks for pathlib[\w.]*Path, which is not an array, list, dict, string"),
        ({"data": np.array([object()], dtype=object)}, "has the type 'O8', only numbers|asks for builtins.object"),
        ({"data": np.zeros(2, "u1,u1")}, "has the type 'V2', only numbers"),
        ({"data": torch.zeros(2)}, "it asks for torch"),
    ],
)
def test_a_python_batch_with_something_else_in_it_is_refused(tmp_path, small_releases, batch, said):
    folder = write_python(tmp_path / "set", "CIFAR10", 2)
    (folder / "data_batch_2").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(ValueError, match=said) as error:
        load("CIFAR10", folder=folder)
    assert "data_batch_2" in str(error.value)


def test_a_pickle_that_calls_something_does_not_get_to_call_it(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "evil").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"evil' is not a pickle of plain data: it asks for \w+\.mkdir"):
        load_plain(tmp_path / "evil")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype\n}X\x01\x00\x00\x00ax\x01\x00\x00\x00bsb.",
        b"cnumpy\ndtype\n}(X\x01\x00\x00\x00aK\x01ub.",  # sets an attribute of what stands for numpy.dtype
        b"cnumpy\nndarray\n(I1000000\ntR.",  # calls numpy.ndarray
        b"cnumpy.core.multiarray\n_reconstruct\n(I1\nI2\nI3\ntR.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00rottR.",
        b"cnumpy\ndtype.__class__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        b"P1\n.",
        b"garbage",
        b"",
        pickle.dumps({b"a": pixels(100)}, 2)[:-30],
    ],
)
def test_hostile_and_damaged_pickles_end_in_one_kind_of_error(tmp_path, program):
    (tmp_path / "p").write_bytes(program)
    with pytest.raises(ValueError, match="p' is not a pickle of plain data"):
        load_plain(tmp_path / "p")


def real(name):
    """The folder of a set in the data folder of this machine's owner, if it is there."""
    folders = [Path(os.environ.get("PALMETTE_DATA", "/nowhere")) / sub for sub in places.PLACES[name].folders]
    return next((path for path in folders if path.is_dir()), None)


REAL = {name: real(name) for name in ("MNIST", "CIFAR10")}


@pytest.mark.parametrize("name", REAL)
def test_a_real_set_is_the_original_byte_for_byte(name):
    if REAL[name] is None:
        pytest.skip(f"$PALMETTE_DATA has no {name}")
    images = load(name, folder=REAL[name])
    assert images.sha256() == SHA256[name]
    assert len(images.train_images) == {"MNIST": 60_000, "CIFAR10": 50_000}[name]
    assert mean_and_sd(images.train_images)[0] == images.mean


# ---- TinyImageNet


@pytest.fixture
def tiny(tmp_path):
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("n03\nn01\n")
    for n, name in enumerate(("n03", "n01")):
        (root / "train" / name / "images").mkdir(parents=True)
        for i in range(3):
            colour = (100 * n, 50 * i, 10)
            image.new("RGB", (64, 64), colour).save(root / "train" / name / "images" / f"{name}_{i}.JPEG")
    image.new("L", (64, 64), 200).save(root / "val" / "images" / "val_0.JPEG")
    image.new("RGB", (64, 64), (0, 0, 0)).save(root / "val" / "images" / "val_1.JPEG")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    return root


def test_tiny_imagenet_is_decoded_once_and_then_read_from_its_cache(tiny, tmp_path, monkeypatch):
    first = load("TinyImageNet", folder=tmp_path)
    assert first.class_names == ("n01", "n03")
    assert first.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.test_labels.tolist() == [1, 0]
    assert first.test_images[0].unique().tolist() == [200]  # a grey picture in three channels
    assert first.train_images.shape == (6, 3, 64, 64)
    (cached,) = (tmp_path / "cache" / "palmette").iterdir()
    with monkeypatch.context() as patch:
        patch.setitem(data.tiny_imagenet.__globals__, "read_pictures", None)
        assert load("TinyImageNet", folder=tmp_path).sha256() == first.sha256()
    cached.write_bytes(cached.read_bytes()[:-5])
    assert load("TinyImageNet", folder=tmp_path).sha256() == first.sha256()


def test_other_files_are_decoded_again_and_a_cache_that_cannot_be_written_does_no_harm(tiny, tmp_path):
    from PIL import Image

    first = load("TinyImageNet", folder=tiny)
    time.sleep(0.01)
    Image.new("RGB", (64, 64), (9, 9, 9)).save(tiny / "val" / "images" / "val_1.JPEG")
    assert load("TinyImageNet", folder=tiny).sha256() != first.sha256()
    cache = tmp_path / "cache" / "palmette"
    for file in cache.iterdir():
        file.unlink()
    cache.rmdir()
    cache.write_text("a file where the folder would be")
    assert len(load("TinyImageNet", folder=tiny).train_images) == 6


def test_what_is_wrong_with_tiny_imagenet_is_said(tiny):
    notes = tiny / "val" / "val_annotations.txt"
    notes.write_text("val_0.JPEG\tn99\n")
    with pytest.raises(ValueError, match=r"line 1 of .*val_annotations\.txt' must be .* got 'val_0.JPEG\\tn99'"):
        load("TinyImageNet", folder=tiny)
    notes.unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*val_annotations\.txt"):
        load("TinyImageNet", folder=tiny)
    (tiny / "wnids.txt").write_text("n01\nn02\n")
    with pytest.raises(FileNotFoundError, match=r"no \.JPEG files of class n02"):
        load("TinyImageNet", folder=tiny)


# ---- a user's own


def write_own(folder, *, mode="RGB", suffix="png", size=(6, 5)):
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        for n, kind in enumerate(("cat", "dog")):
            (folder / part / kind).mkdir(parents=True)
            for i in range(3):
                image.new(mode, size, 60 * n + i).save(folder / part / kind / f"{i}.{suffix}")
    return folder


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("P", 3)])
def test_a_folder_of_pictures_by_class(tmp_path, mode, channels):
    images = load(write_own(tmp_path / "pets", mode=mode))
    assert images.shape == (channels, 5, 6)
    assert images.class_names == ("cat", "dog")
    assert images.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.name == "pets"
    assert (images.mean, images.sd) == mean_and_sd(images.train_images)


def test_what_is_wrong_with_a_folder_of_pictures_is_said(tmp_path):
    from PIL import Image

    folder = write_own(tmp_path / "pets", mode="L")
    odd = folder / "test" / "dog" / "odd.png"
    Image.new("L", (7, 5)).save(odd)
    with pytest.raises(ValueError, match=r"height and width \(5, 6\) as the others, .*odd\.png' has \(5, 7\)"):
        load(folder)
    odd.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"odd\.png' is not a picture that can be read"):
        load(folder)
    odd.write_bytes((folder / "test" / "dog" / "0.png").read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"odd\.png' is not a picture that can be read"):
        load(folder)
    Image.new("RGB", (6, 5)).save(odd)
    with pytest.raises(ValueError, match="must be grey as those for training"):
        load(folder)
    odd.unlink()
    (folder / "test" / "bird").mkdir()
    with pytest.raises(ValueError, match=r"test' must be one of cat, dog, got bird"):
        load(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no folder '.*empty.train'"):
        load(tmp_path / "empty")
    (tmp_path / "empty" / "train" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="must have pictures, got none at all"):
        load(tmp_path / "empty")


def test_without_pillow_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    folder = write_own(tmp_path / "pets")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"read with Pillow: .*palmette\[report\]"):
        load(folder)
    with pytest.raises(ModuleNotFoundError, match="Pillow"):
        read_pictures([])


def save_npz(path, **change):
    arrays = {"x_train": pixels(6, 5, 4), "y_train": np.array([0, 1, 2, 0, 1, 2])}
    arrays |= {"x_test": pixels(2, 5, 4), "y_test": np.array([2, 0])} | change
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("x", "shape"), [((5, 4), (1, 5, 4)), ((5, 4, 3), (3, 5, 4)), ((3, 5, 4), (3, 5, 4)), ((5, 4, 1), (1, 5, 4))]
)
def test_an_npz_with_channels_first_last_or_none(tmp_path, x, shape):
    path = save_npz(tmp_path / "own.npz", x_train=pixels(6, *x), x_test=pixels(2, *x))
    images = load(path)
    assert images.shape == shape
    assert images.classes == 3
    want = pixels(6, *x)
    want = want.transpose(0, 3, 1, 2) if len(x) == 3 and x[0] == 5 else want.reshape(6, *shape)
    assert np.array_equal(images.train_images.numpy(), want)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y_test": None}, "needs the arrays x_train, y_train, x_test, y_test, y_test is missing"),
        ({"x_train": np.zeros((6, 5, 4))}, r"x_train in .*own\.npz' must be uint8 .* got float64 \(6, 5, 4\)"),
        ({"x_train": pixels(6, 20)}, r"got uint8 \(6, 20\)"),
        ({"x_train": pixels(6, 5, 4, 2)}, "neither end can be the channels"),
        ({"x_train": pixels(6, 3, 4, 3)}, "both ends could be the channels"),
        ({"x_test": pixels(2, 4, 4)}, "must have one shape, got 1×5×4 and 1×4×4"),
        ({"x_test": pixels(0, 5, 4)}, "x_test .* got uint8"),
        ({"y_train": np.array([0, 1])}, r"training images of own in .*own\.npz' .* got 6 images and 2 labels"),
        ({"y_train": np.array([0.0] * 6)}, r"y_train in .* whole numbers N or N×1, got float64 \(6,\)"),
        ({"y_train": np.array([-1] * 6)}, "must be from 0 to -1, got -1"),
        ({"y_test": np.array([0, 3])}, "labels of the test images of own .* must be from 0 to 2, got 3"),
        ({"y_test": np.array([{}, {}])}, "could not be read as .npz"),
    ],
)
def test_what_is_wrong_with_an_npz_is_said(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        load(save_npz(tmp_path / "own.npz", **change))


def test_a_file_that_is_no_npz_and_a_path_that_is_not_there(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 broken")
    (tmp_path / "b.npz").write_bytes(b"")
    (tmp_path / "c.txt").write_text("")
    for name, said in (
        ("a.npz", "could not be read"),
        ("b.npz", "could not be read"),
        ("c.txt", "a folder or an .npz"),
    ):
        with pytest.raises(ValueError, match=said):
            load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"no data set is called 'ImageNet' \(digits, MNIST"):
        load("ImageNet")


def test_images_check_what_they_are_given():
    digits = load("digits")
    with pytest.raises(ValueError, match=r"must be uint8 N×C×H×W, got torch.float32"):
        replace(digits, train_images=digits.train_images.float())
    with pytest.raises(ValueError, match=r"must be a row of int64, got torch.int32"):
        replace(digits, test_labels=digits.test_labels.int())
    with pytest.raises(ValueError, match="must be 1 numbers each, one per channel"):
        replace(digits, mean=(0.1, 0.2))
    with pytest.raises(ValueError, match="10 classes, but 2 class names"):
        replace(digits, class_names=("a", "b"))
    assert isinstance(digits, Images)


# ---- places


def test_places_are_tried_in_order(tmp_path, monkeypatch):
    system = write_idx(tmp_path / "system")
    place = replace(places.PLACES["FashionMNIST"], system=(str(system),))
    monkeypatch.setitem(places.PLACES, "FashionMNIST", place)
    assert places.find("FashionMNIST") == system
    cache = write_idx(tmp_path / "cache" / "palmette" / "fashion-mnist")
    assert places.find("FashionMNIST") == cache
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path / "env"))
    assert places.find("FashionMNIST") == cache
    env = write_idx(tmp_path / "env" / "FashionMNIST" / "raw", packed=True)
    assert places.find("FashionMNIST") == env
    given = write_idx(tmp_path / "given")
    assert places.find("FashionMNIST", given) == given
    inside = write_idx(given / "fashion-mnist")
    assert places.find("FashionMNIST", given) == inside
    assert places.find("FashionMNIST", tmp_path / "nowhere") == env


def test_files_in_a_shared_folder_do_not_pass_for_a_set(tmp_path, monkeypatch):
    monkeypatch.setenv("PALMETTE_DATA", str(write_idx(tmp_path / "env")))
    with pytest.raises(FileNotFoundError):
        places.find("FashionMNIST")


@pytest.mark.parametrize("name", [name for name in DATA if name != "digits"])
def test_a_set_that_is_missing_is_said_with_where_and_how(tmp_path, name, monkeypatch):
    with pytest.raises(
        FileNotFoundError, match=rf"{name} was not found; looked in .*PALMETTE_DATA is not set"
    ) as error:
        load(name, folder=tmp_path / "given")
    said = str(error.value)
    assert f"palmette data get {name}" in said
    assert str(tmp_path / "given") in said
    assert str(tmp_path / "cache" / "palmette") in said
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path / "env"))
    with pytest.raises(FileNotFoundError, match="env"):
        load(name)


@pytest.mark.parametrize(
    ("platform", "variable", "end"),
    [
        ("linux", None, ".cache/palmette"),
        ("linux", "XDG_CACHE_HOME", "own/palmette"),
        ("darwin", None, "Library/Caches/palmette"),
        ("win32", "LOCALAPPDATA", "own/palmette"),
        ("win32", None, "AppData/Local/palmette"),
    ],
)
def test_the_cache_folder_is_where_the_platform_has_it(monkeypatch, platform, variable, end):
    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "/own")
    monkeypatch.setattr(sys, "platform", platform)
    assert places.cache_folder().as_posix().endswith(f"/{end}")


# ---- the command


def test_the_command_lists_every_set_and_what_is_wrong(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "train.bin").write_bytes(b"short")
    shown = CliRunner().invoke(main, ["data", "--data-dir", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "comes with palmette" in shown.output
    assert str(tmp_path / "mnist") in shown.output
    assert "train.bin' is not whole" in shown.output
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(main, ["data", "--json"]).output)}
    assert list(rows) == list(DATA)
    assert rows["digits"]["sha256"] == SHA256["digits"]
    assert rows["digits"]["official"] is True
    assert rows["digits"]["shape"] == [1, 8, 8]
    assert rows["CIFAR10"]["found"] is None
    given = json.loads(CliRunner().invoke(main, ["data", "--json", "--data-dir", str(tmp_path)]).output)
    by_name = {row["name"]: row for row in given}
    assert by_name["MNIST"]["official"] is False
    assert (by_name["MNIST"]["train"], by_name["MNIST"]["test"]) == (20, 10)
    assert by_name["CIFAR100"]["found"] == "damaged"


def test_help_of_the_command_waits_for_neither_torch_nor_numpy():
    code = "import sys, palmette.cli.data; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
