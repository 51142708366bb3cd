"""Pictures by class: TinyImageNet, and a user's own."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from data_sets import no_other_data  # noqa: F401
from killing import die, killed_in

from palmette.training.data import load, pictures, tiny_imagenet
from palmette.training.data.images import mean_and_sd
from palmette.training.data.pictures import read_pictures


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """TinyImageNet of two classes, with three pictures each to train and one to test."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(tiny_imagenet, "_TRAIN", 6)
    monkeypatch.setattr(tiny_imagenet, "_TEST", 2)
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


def test_tiny_imagenet_is_decoded_once_and_then_cached(tiny, tmp_path, monkeypatch):
    first = load("TinyImageNet", folder=tmp_path)
    assert first.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.test_labels.tolist() == [1, 0]
    assert first.test_images[0].unique().tolist() == [200]  # a grey picture in three channels
    assert first.train_images.shape == (6, 3, 64, 64)
    (cached,) = (tmp_path / "cache" / "palmette").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "read_pictures", None)
        assert load("TinyImageNet", folder=tmp_path).sha256() == first.sha256()
    cached.write_bytes(cached.read_bytes()[:-5])
    assert load("TinyImageNet", folder=tmp_path).sha256() == first.sha256()


def test_changed_pictures_replace_the_cache_file(tiny, tmp_path):
    from PIL import Image

    first = load("TinyImageNet", folder=tiny)
    time.sleep(0.01)
    Image.new("RGB", (64, 64), (9, 9, 9)).save(tiny / "val" / "images" / "val_1.JPEG")
    assert load("TinyImageNet", folder=tiny).sha256() != first.sha256()
    assert [path.name for path in (tmp_path / "cache" / "palmette").iterdir()] == ["tiny-imagenet.safetensors"]


def test_leftovers_of_a_killed_process_are_removed_from_the_cache(tiny, tmp_path, monkeypatch):
    def dies(pixels, path, metadata):
        path.write_bytes(bytes(9))
        die()

    cache = tmp_path / "cache" / "palmette"
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", dies)
        assert killed_in(lambda: load("TinyImageNet", folder=tiny))
    assert len(list(cache.glob("*/content"))) == 1
    load("TinyImageNet", folder=tiny)
    assert [path.name for path in cache.iterdir()] == ["tiny-imagenet.safetensors"]


def test_an_unwritable_cache_is_ignored(tiny, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "palmette").write_text("a file where the folder would be")
    assert len(load("TinyImageNet", folder=tiny).train_images) == 6


def test_problems_of_tiny_imagenet_are_reported(tiny):
    one = tiny / "train" / "n01" / "images" / "n01_0.JPEG"
    one.rename(tiny / "lost.JPEG")
    said = r"has 6 training and 2 validation pictures, .*tiny-imagenet-200' has 5 and 2"
    with pytest.raises(ValueError, match=said):
        load("TinyImageNet", folder=tiny)
    (tiny / "lost.JPEG").rename(one)
    (tiny / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_1\.JPEG"):
        load("TinyImageNet", folder=tiny)
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
    assert images.classes == 2
    assert images.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.name == "pets"
    assert (images.mean, images.sd) == mean_and_sd(images.train_images)


@pytest.mark.parametrize("suffix", ["png", "jpeg", "webp", "bmp", "gif", "ppm"])
def test_pictures_are_read_in_six_formats(tmp_path, suffix):
    assert load(write_own(tmp_path / "pets", suffix=suffix)).shape[1:] == (5, 6)


def test_other_formats_are_refused_whatever_the_name(tmp_path, capfd):
    from PIL import Image

    folder = write_own(tmp_path / "pets")
    Image.new("RGB", (6, 5)).save(folder / "test" / "dog" / "tiff.png", format="TIFF", compression="tiff_lzw")
    with pytest.raises(ValueError, match=r"tiff\.png' is not a picture .*: it must be one of PNG, JPEG, WEBP"):
        load(folder)
    assert capfd.readouterr() == ("", "")


def test_problems_of_a_picture_folder_are_reported(tmp_path):
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
    with pytest.raises(ValueError, match="must be grey like the training part"):
        load(folder)
    odd.unlink()
    (folder / "test" / "bird").mkdir()
    with pytest.raises(ValueError, match=r"test' must be one of cat, dog, got bird"):
        load(folder)
    (folder / "test" / "bird").rmdir()
    (folder / "test" / "dog" / "link.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(FileNotFoundError, match=r"link\.png"):
        load(folder)


def test_16_bit_pictures_are_refused(tmp_path):
    from PIL import Image

    folder = write_own(tmp_path / "scans", mode="L")
    Image.fromarray(np.full((5, 6), 1000, np.uint16)).save(folder / "train" / "cat" / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png' .* more than 8 bits per channel \(mode I;16\)"):
        load(folder)


def test_a_mix_of_grey_and_colour_pictures_is_read_in_colour(tmp_path):
    from PIL import Image

    folder = write_own(tmp_path / "pets", mode="L")
    Image.new("RGBA", (6, 5), (1, 2, 3, 0)).save(folder / "train" / "cat" / "colour.png")
    images = load(folder)
    assert images.shape == (3, 5, 6)
    assert images.train_images[:, :, 0, 0].tolist()[:4] == [[0] * 3, [1] * 3, [2] * 3, [1, 2, 3]]


def test_only_the_test_part_may_lack_a_class(tmp_path):
    folder = write_own(tmp_path / "pets")
    for path in (folder / "test" / "cat").iterdir():
        path.unlink()
    (folder / "test" / "cat").rmdir()
    assert load(folder).test_labels.tolist() == [1, 1, 1]
    (folder / "train" / "eel").mkdir()
    with pytest.raises(ValueError, match=r"must have training pictures, got none in '.*eel'"):
        load(folder)


def test_val_replaces_test_and_links_are_followed(tmp_path):
    folder = write_own(tmp_path / "pets")
    whole = load(folder).sha256()
    (folder / "test").rename(folder / "val")
    (folder / "train" / "cat").rename(tmp_path / "cats")
    (folder / "train" / "cat").symlink_to(tmp_path / "cats")
    assert load(folder).sha256() == whole


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        ("", FileNotFoundError, r"needs two folders, train and test \(or val\), .*own' has nothing"),
        ("cat/0.png dog/0.png", FileNotFoundError, r"needs two folders, .*own' has cat, dog"),
        ("train/cat/0.png", FileNotFoundError, r"needs two folders, .*own' has train"),
        ("train/0.png test/0.png", ValueError, r"each folder in '.*train' must be of a class, got none"),
        ("train/cat/0.png test/cat/0.png", ValueError, r"two or more classes, got 1 in '.*own'"),
    ],
)
def test_a_wrong_folder_layout_is_refused_with_the_right_one(tmp_path, made, error, said):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "own").mkdir()
    for path in (tmp_path / "own" / name for name in made.split()):
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (6, 5)).save(path)
    with pytest.raises(error, match=said):
        load(tmp_path / "own")


def test_a_missing_pillow_is_reported_with_the_install_command(tmp_path, monkeypatch):
    folder = write_own(tmp_path / "pets")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"read with Pillow: .*palmette\[report\]"):
        load(folder)
    with pytest.raises(ModuleNotFoundError, match="Pillow"):
        read_pictures([])


def test_pictures_of_more_pixels_than_their_bytes_hold_are_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("1", (9000, 9000)).save(tmp_path / "wide.png")
    assert (tmp_path / "wide.png").stat().st_size < 20_000
    with pytest.raises(ValueError, match=r"wide\.png' is not .* 81,000,000 pixels do not fit into its bytes"):
        pictures.read_pictures([tmp_path / "wide.png"])
