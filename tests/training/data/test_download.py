"""Downloads from a server of our own on this machine."""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from palmette.cli import main
from palmette.training.data import download
from palmette.training.data.download import Remote, fetch, get, unpack

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes


class Handler(BaseHTTPRequestHandler):
    def __init__(self, shop, *args):
        self.shop = shop
        super().__init__(*args)

    def do_GET(self):
        shop = self.shop
        shop.asked.append((self.path, self.headers.get("Range")))
        body = shop.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        if shop.ranges and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        stop = shop.stop_after.pop(0) if shop.stop_after else None
        self.wfile.write(body[start:] if stop is None else body[start : start + stop])

    def log_message(self, *args):
        pass


class Shop:
    def __init__(self):
        self.files, self.asked, self.stop_after, self.ranges = {"/body.bin": BODY}, [], [], True
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, self))
        self.server.handle_error = lambda *_: None  # who hangs up early is no news
        self.thread = threading.Thread(target=functools.partial(self.server.serve_forever, 0.01))
        self.thread.start()

    def url(self, path="/body.bin"):
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def remote(self, path="/body.bin"):
        return Remote(self.url(path), hashlib.md5(self.files.get(path, b"")).hexdigest())

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def shop():
    shop = Shop()
    yield shop
    shop.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_under_its_own_name_and_progress_is_told(shop, tmp_path):
    told = []
    fetch(shop.remote(), tmp_path / "body.bin", progress=lambda *now: told.append(now))
    assert (tmp_path / "body.bin").read_bytes() == BODY
    assert names(tmp_path) == ["body.bin"]
    assert told[-1] == ("body.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_an_interrupted_download_goes_on_where_it_stopped(shop, tmp_path):
    shop.stop_after = [300_000, 200_000]
    with pytest.raises(ConnectionError, match=r"stopped after 300,000 (of 1,024,000 )?bytes.*again goes on"):
        fetch(shop.remote(), tmp_path / "body.bin")
    assert names(tmp_path) == ["body.bin.partial"]
    with pytest.raises(ConnectionError, match="stopped after 500,000"):
        fetch(shop.remote(), tmp_path / "body.bin")
    told = []
    fetch(shop.remote(), tmp_path / "body.bin", progress=lambda *now: told.append(now))
    assert (tmp_path / "body.bin").read_bytes() == BODY
    assert [r for _, r in shop.asked] == [None, "bytes=300000-", "bytes=500000-"]
    assert told[0][1] > 500_000
    assert told[-1] == ("body.bin", len(BODY), len(BODY))


def test_a_server_without_ranges_starts_again(shop, tmp_path):
    shop.ranges = False
    (tmp_path / "body.bin.partial").write_bytes(BODY[:1000])
    fetch(shop.remote(), tmp_path / "body.bin")
    assert (tmp_path / "body.bin").read_bytes() == BODY


def test_a_partial_file_that_is_already_whole_is_taken(shop, tmp_path):
    (tmp_path / "body.bin.partial").write_bytes(BODY)
    fetch(shop.remote(), tmp_path / "body.bin")
    assert (tmp_path / "body.bin").read_bytes() == BODY


@pytest.mark.parametrize("partial", [b"", b"other beginning", BODY + b"more"])
def test_a_wrong_checksum_is_refused_and_leaves_nothing(shop, tmp_path, partial):
    if partial:
        (tmp_path / "body.bin.partial").write_bytes(partial)
    remote = shop.remote() if partial else Remote(shop.url(), "0" * 32)
    with pytest.raises(ValueError, match=rf"body\.bin must have the MD5 {remote.md5} .*, got [0-9a-f]{{32}}"):
        fetch(remote, tmp_path / "body.bin")
    assert names(tmp_path) == []


def test_what_is_not_there_is_said_with_its_address(shop, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"/gone\.bin could not be downloaded: 404"):
        fetch(shop.remote("/gone.bin"), tmp_path / "gone.bin")
    assert names(tmp_path) == []


def test_a_server_that_is_not_there_is_said(tmp_path):
    shop = Shop()
    remote = shop.remote()
    shop.close()
    with pytest.raises(ConnectionError, match=r"body\.bin stopped after 0 bytes \(.*refused"):
        fetch(remote, tmp_path / "body.bin")


def test_only_http_is_followed(tmp_path):
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ValueError, match="by http or https, got 'file:"):
        fetch(Remote(f"file://{tmp_path}/secret", "0" * 32), tmp_path / "out")


def test_too_little_room_on_the_disk_is_said_before_anything_is_written(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OSError, match=r"needs 1,024,000 bytes for body\.bin, 1,000 are free"):
        fetch(shop.remote(), tmp_path / "body.bin")
    assert names(tmp_path) == []


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as pack:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            pack.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def test_an_archive_becomes_its_folder_and_a_second_time_nothing_is_asked(shop, tmp_path, monkeypatch):
    shop.files["/c.tar.gz"] = tar_of({"inner/data_batch_1.bin": b"abc", "inner/test_batch.bin": b"d"})
    monkeypatch.setitem(download.REMOTES, "CIFAR10", (shop.remote("/c.tar.gz"),))
    where = get("CIFAR10", folder=tmp_path)
    assert where == tmp_path / "cifar-10-batches-bin"
    assert names(tmp_path) == ["cifar-10-batches-bin"]
    assert (where / "data_batch_1.bin").read_bytes() == b"abc"
    get("CIFAR10", folder=tmp_path)
    assert len(shop.asked) == 1


def test_an_archive_that_was_there_is_checked_before_it_is_taken(shop, tmp_path, monkeypatch):
    shop.files["/c.tar.gz"] = tar_of({"inner/data_batch_1.bin": b"abc"})
    monkeypatch.setitem(download.REMOTES, "CIFAR10", (shop.remote("/c.tar.gz"),))
    (tmp_path / "c.tar.gz").write_bytes(shop.files["/c.tar.gz"][:-9])
    with pytest.raises(ValueError, match=r"c\.tar\.gz' was there already and must have the MD5 .* remove it"):
        get("CIFAR10", folder=tmp_path)
    (tmp_path / "c.tar.gz").write_bytes(shop.files["/c.tar.gz"])
    assert names(get("CIFAR10", folder=tmp_path)) == ["data_batch_1.bin"]
    assert shop.asked == []


def test_a_plain_file_stands_for_the_gzipped_one(shop, tmp_path, monkeypatch):
    shop.files |= {"/a.gz": b"a", "/b.gz": b"b"}
    monkeypatch.setitem(download.REMOTES, "MNIST", tuple(shop.remote(f"/{name}.gz") for name in "ab"))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a").write_bytes(b"plain")
    assert names(get("MNIST", folder=tmp_path)) == ["a", "b.gz"]


def test_a_set_of_several_files_asks_only_for_those_that_are_missing(shop, tmp_path, monkeypatch):
    shop.files |= {f"/{name}": name.encode() for name in "abc"}
    monkeypatch.setitem(download.REMOTES, "MNIST", tuple(shop.remote(f"/{name}") for name in "abc"))
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "b").write_bytes(b"b")
    assert names(get("MNIST")) == ["a", "b", "c"]
    assert [path for path, _ in shop.asked] == ["/a", "/c"]


def test_a_zip_is_unpacked_too_and_a_broken_archive_leaves_nothing(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as pack:
        pack.writestr("tiny/wnids.txt", "n1\n")
    (tmp_path / ".out-killed").mkdir()
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert (tmp_path / "out" / "wnids.txt").read_text() == "n1\n"
    for name in ("b.zip", "b.tar.gz"):
        (tmp_path / name).write_bytes(b"not an archive")
        with pytest.raises(ValueError, match=rf"{name}' is not a whole archive"):
            unpack(tmp_path / name, tmp_path / "no")
    (tmp_path / "two.tar.gz").write_bytes(tar_of({"one/x": b"", "two/x": b""}))
    with pytest.raises(ValueError, match="must hold one folder, got 2"):
        unpack(tmp_path / "two.tar.gz", tmp_path / "no")
    assert names(tmp_path) == ["a.zip", "b.tar.gz", "b.zip", "out", "two.tar.gz"]


def test_a_tar_that_leads_outside_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "evil.tar.gz").write_bytes(tar_of({"a/x": b"", "../../evil": b"boo"}))
    with pytest.raises(ValueError, match="not a whole archive"):
        unpack(tmp_path / "in" / "evil.tar.gz", tmp_path / "in" / "out")
    assert names(tmp_path) == ["in"]
    assert names(tmp_path / "in") == ["evil.tar.gz"]


def test_a_set_that_cannot_be_downloaded_is_refused_with_those_that_can():
    with pytest.raises(ValueError, match=r"palmette downloads MNIST, FashionMNIST.*got 'ImageNet'"):
        get("ImageNet")


@pytest.mark.parametrize("name", download.REMOTES)
def test_every_remote_has_an_address_a_checksum_and_a_place(name):
    assert name in download.PLACES
    for remote in download.REMOTES[name]:
        assert remote.url.startswith("http")
        assert len(bytes.fromhex(remote.md5)) == 16


def test_the_command_downloads_reads_and_says_where(shop, tmp_path, monkeypatch):
    from palmette.training.data import cifar

    row = bytes([7]) + bytes(3072)
    files = {f"c/data_batch_{i}.bin": row for i in range(1, 6)} | {"c/test_batch.bin": row}
    shop.files["/c.tar.gz"] = tar_of(files)
    monkeypatch.setitem(download.REMOTES, "CIFAR10", (shop.remote("/c.tar.gz"),))
    one = replace(cifar.TEN, train=tuple((n, 1) for n, _ in cifar.TEN.train), test=("test_batch", 1))
    monkeypatch.setattr(cifar, "TEN", one)
    done = CliRunner().invoke(main, ["data", "get", "cifar-10", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "CIFAR10: 5 training and 1 test images of 3×32×32" in done.output
    assert str(tmp_path / "cifar-10-batches-bin") in done.output


def test_the_command_says_what_to_do_with_a_damaged_set(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(b"short")
    done = CliRunner().invoke(main, ["data", "get", "CIFAR10", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not whole" in done.output
    assert f"; remove '{tmp_path / 'cifar-10-batches-bin'}' and get it again" in done.output


def test_the_command_says_in_one_sentence_what_went_wrong(shop, tmp_path, monkeypatch):
    monkeypatch.setitem(
        download.REMOTES, "MNIST", (Remote(shop.url(), "0" * 32), Remote(shop.url("/x"), "0" * 32))
    )
    done = CliRunner().invoke(main, ["data", "get", "MNIST", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "must have the MD5" in done.output
    assert "Traceback" not in done.output
    unknown = CliRunner().invoke(main, ["data", "get", "ImageNet"])
    assert unknown.exit_code == 2
    assert "no data set to download is called 'ImageNet'" in unknown.output
    bare = CliRunner().invoke(main, ["data", "mnist"])
    assert bare.exit_code == 2
    assert "`palmette data` lists all sets, `palmette data get mnist` downloads it" in bare.output
    assert "nothing to download" in CliRunner().invoke(main, ["data", "get", "digits"]).output
