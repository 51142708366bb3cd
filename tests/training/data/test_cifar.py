"""CIFAR10 and CIFAR100, and the pickles of their python releases."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_sets import no_other_data, pixels  # noqa: F401

from palmette.training.data import cifar, load, pictures
from palmette.training.data.plain_pickle import load_plain


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
        yield file, pixels(n, 3072, seed=i), (np.arange(n) * 7 + i) % len(release.class_names)


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

    release = cifar.TEN if name == "CIFAR10" else cifar.HUNDRED
    for i, (file, x, y) in enumerate(batches(name)):
        part = "test" if file == release.test[0] else "train"
        for j, (image, label) in enumerate(zip(x.reshape(-1, 3, 32, 32), y, strict=True)):
            path = folder / part / release.class_names[label] / f"{20 * i + j:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(path)
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
def test_pictures_by_class_equal_the_release_sorted_by_class(tmp_path, small_releases, monkeypatch, name):
    pytest.importorskip("PIL")
    folder = write_pictures(tmp_path / "set", name)
    binary, images = load(name, folder=write_binary(tmp_path / "bin", name)), load(name, folder=folder)
    order = binary.train_labels.argsort(stable=True)
    assert torch.equal(images.train_labels, binary.train_labels[order])
    assert torch.equal(images.train_images, binary.train_images[order])
    assert images.sha256() == binary.sha256()
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "read_pictures", None)  # from the cache
        assert load(name, folder=folder).sha256() == binary.sha256()
    next((folder / "train").rglob("*.png")).unlink()
    count = 99 if name == "CIFAR10" else 19
    with pytest.raises(ValueError, match=rf"train part of {name} has {count + 1} pictures, .*train' has {count}"):
        load(name, folder=folder)


def test_an_unknown_class_folder_is_refused(tmp_path, small_releases):
    folder = write_pictures(tmp_path / "set", "CIFAR10")
    (folder / "train" / "cat").rename(folder / "train" / "lion")
    with pytest.raises(ValueError, match=r"train' must be one of airplane, automobile, .* got lion"):
        load("CIFAR10", folder=folder)


def test_class_names_are_in_alphabetical_order():
    assert len(set(cifar.TEN.class_names)) == 10
    assert len(set(cifar.HUNDRED.class_names)) == 100
    assert [cifar.HUNDRED.class_names.index(name) for name in ("apple", "boy", "cattle", "worm")] == [
        0,
        11,
        19,
        99,
    ]
    for release in (cifar.TEN, cifar.HUNDRED):
        assert list(release.class_names) == sorted(release.class_names)


def test_a_missing_training_file_is_reported(tmp_path, small_releases):
    folder = write_python(tmp_path / "set", "CIFAR100", 2)
    (folder / "train").unlink()
    with pytest.raises(FileNotFoundError, match=r"python release of CIFAR100 needs train in '.*set'"):
        load("CIFAR100", folder=folder)


def test_a_python_2_batch_is_read(tmp_path):
    """The opcodes of the real data_batch_1, with two labels and an array of 2×3."""
    head = b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\te"
    array = (
        b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t"
    )
    kind = b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN"
    tail = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x06\x00\x00\x00\x00\x01\x02\xfd\xfe\xfftbu."
    (tmp_path / "batch").write_bytes(head + array + kind + tail)
    batch = load_plain(tmp_path / "batch")
    assert batch[b"labels"] == [6, 9]
    assert batch[b"data"].tolist() == [[0, 1, 2], [253, 254, 255]]


def test_a_truncated_binary_batch_is_refused_at_image_boundaries_too(tmp_path, small_releases):
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
def test_a_malformed_python_batch_is_refused(tmp_path, small_releases, batch, said):
    folder = write_python(tmp_path / "set", "CIFAR10", 2)
    (folder / "data_batch_2").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(ValueError, match=said) as error:
        load("CIFAR10", folder=folder)
    assert "data_batch_2" in str(error.value)


def test_a_malicious_pickle_is_not_executed(tmp_path):
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
def test_malicious_and_damaged_pickles_raise_value_error(tmp_path, program):
    (tmp_path / "p").write_bytes(program)
    with pytest.raises(ValueError, match="p' is not a pickle of plain data"):
        load_plain(tmp_path / "p")
