"""Downloads from a local HTTP server."""

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
from palmette.training.data import DATA_SETS, cifar, download, idx
from palmette.training.data.data_set import Download
from palmette.training.data.download import fetch, get, unpack

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes


class Handler(BaseHTTPRequestHandler):
    def __init__(self, mirror, *args):
        self.mirror = mirror
        super().__init__(*args)

    def do_GET(self):
        mirror = self.mirror
        mirror.asked.append((self.path, self.headers.get("Range")))
        body = mirror.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        if mirror.ranges and (asked := self.headers.get("Range")):
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
        stop = mirror.stop_after.pop(0) if mirror.stop_after else None
        self.wfile.write(body[start:] if stop is None else body[start : start + stop])

    def log_message(self, *args):
        pass


class Mirror:
    def __init__(self):
        self.files, self.asked, self.stop_after, self.ranges = {"/body.bin": BODY}, [], [], True
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, self))
        self.server.handle_error = lambda *_: None  # clients may disconnect early
        self.thread = threading.Thread(target=functools.partial(self.server.serve_forever, 0.01))
        self.thread.start()

    def url(self, path="/body.bin"):
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def file(self, path="/body.bin"):
        return Download(self.url(path), hashlib.md5(self.files.get(path, b"")).hexdigest())

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def mirror():
    mirror = Mirror()
    yield mirror
    mirror.close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetch_writes_the_file_and_reports_progress(mirror, tmp_path):
    told = []
    fetch(mirror.file(), tmp_path / "body.bin", progress=lambda *now: told.append(now))
    assert (tmp_path / "body.bin").read_bytes() == BODY
    assert names(tmp_path) == ["body.bin"]
    assert told[-1] == ("body.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_an_interrupted_download_resumes(mirror, tmp_path):
    mirror.stop_after = [300_000, 200_000]
    with pytest.raises(ConnectionError, match=r"stopped after 300,000 (of 1,024,000 )?bytes.*again to resume"):
        fetch(mirror.file(), tmp_path / "body.bin")
    assert names(tmp_path) == ["body.bin.partial"]
    with pytest.raises(ConnectionError, match="stopped after 500,000"):
        fetch(mirror.file(), tmp_path / "body.bin")
    told = []
    fetch(mirror.file(), tmp_path / "body.bin", progress=lambda *now: told.append(now))
    assert (tmp_path / "body.bin").read_bytes() == BODY
    assert [r for _, r in mirror.asked] == [None, "bytes=300000-", "bytes=500000-"]
    assert told[0][1] > 500_000
    assert told[-1] == ("body.bin", len(BODY), len(BODY))


def test_a_server_without_ranges_restarts_the_download(mirror, tmp_path):
    mirror.ranges = False
    (tmp_path / "body.bin.partial").write_bytes(BODY[:1000])
    fetch(mirror.file(), tmp_path / "body.bin")
    assert (tmp_path / "body.bin").read_bytes() == BODY


def test_a_complete_partial_file_is_kept(mirror, tmp_path):
    (tmp_path / "body.bin.partial").write_bytes(BODY)
    fetch(mirror.file(), tmp_path / "body.bin")
    assert (tmp_path / "body.bin").read_bytes() == BODY


@pytest.mark.parametrize("partial", [b"", b"other beginning", BODY + b"more"])
def test_a_wrong_checksum_is_refused_and_the_file_deleted(mirror, tmp_path, partial):
    if partial:
        (tmp_path / "body.bin.partial").write_bytes(partial)
    file = mirror.file() if partial else Download(mirror.url(), "0" * 32)
    with pytest.raises(ValueError, match=rf"body\.bin must have the published MD5 {file.md5}, got [0-9a-f]{{32}}"):
        fetch(file, tmp_path / "body.bin")
    assert names(tmp_path) == []


def test_a_missing_file_is_reported_with_its_address(mirror, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"/gone\.bin could not be downloaded: 404"):
        fetch(mirror.file("/gone.bin"), tmp_path / "gone.bin")
    assert names(tmp_path) == []


def test_an_unreachable_server_is_reported(tmp_path):
    mirror = Mirror()
    file = mirror.file()
    mirror.close()
    with pytest.raises(ConnectionError, match=r"body\.bin stopped after 0 bytes \(.*refused"):
        fetch(file, tmp_path / "body.bin")


def test_only_http_urls_are_accepted(tmp_path):
    (tmp_path / "secret").write_text("x")
    with pytest.raises(ValueError, match="must use http or https, got 'file:"):
        fetch(Download(f"file://{tmp_path}/secret", "0" * 32), tmp_path / "out")


def test_a_full_disk_is_reported_before_writing(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OSError, match=r"needs 1,024,000 bytes for body\.bin, 1,000 are free"):
        fetch(mirror.file(), tmp_path / "body.bin")
    assert names(tmp_path) == []


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as pack:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            pack.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def test_an_archive_is_unpacked_once(mirror, tmp_path, monkeypatch):
    mirror.files["/c.tar.gz"] = tar_of({"inner/data_batch_1.bin": b"abc", "inner/test_batch.bin": b"d"})
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, downloads=(mirror.file("/c.tar.gz"),)))
    where = get("CIFAR10", folder=tmp_path)
    assert where == tmp_path / "cifar-10-batches-bin"
    assert names(tmp_path) == ["cifar-10-batches-bin"]
    assert (where / "data_batch_1.bin").read_bytes() == b"abc"
    get("CIFAR10", folder=tmp_path)
    assert len(mirror.asked) == 1


def test_what_a_killed_download_left_is_removed(mirror, tmp_path, monkeypatch):
    mirror.files["/c.tar.gz"] = tar_of({"inner/data_batch_1.bin": b"abc"})
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, downloads=(mirror.file("/c.tar.gz"),)))
    get("CIFAR10", folder=tmp_path)
    (tmp_path / "c.tar.gz.partial").write_bytes(b"left")
    (tmp_path / ".cifar-10-batches-bin-x").mkdir()
    get("CIFAR10", folder=tmp_path)
    assert names(tmp_path) == ["cifar-10-batches-bin"]


def test_a_data_set_that_another_process_was_faster_to_unpack_is_kept(mirror, tmp_path, monkeypatch):
    archive, target = tmp_path / "c.tar.gz", tmp_path / "set"
    archive.write_bytes(tar_of({"inner/a": b"mine"}))
    plain = tarfile.TarFile.extractall

    def overtaken(self, *arguments, **options):
        plain(self, *arguments, **options)
        target.mkdir()
        (target / "a").write_bytes(b"theirs")

    monkeypatch.setattr(tarfile.TarFile, "extractall", overtaken)
    unpack(archive, target)
    assert (target / "a").read_bytes() == b"theirs"
    assert names(tmp_path) == ["c.tar.gz", "set"]


def test_an_existing_archive_is_checked(mirror, tmp_path, monkeypatch):
    mirror.files["/c.tar.gz"] = tar_of({"inner/data_batch_1.bin": b"abc"})
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, downloads=(mirror.file("/c.tar.gz"),)))
    (tmp_path / "c.tar.gz").write_bytes(mirror.files["/c.tar.gz"][:-9])
    with pytest.raises(ValueError, match=r"c\.tar\.gz' already existed and must have the published MD5 .* remove"):
        get("CIFAR10", folder=tmp_path)
    (tmp_path / "c.tar.gz").write_bytes(mirror.files["/c.tar.gz"])
    assert names(get("CIFAR10", folder=tmp_path)) == ["data_batch_1.bin"]
    assert mirror.asked == []


def test_a_plain_file_replaces_the_gzipped_download(mirror, tmp_path, monkeypatch):
    mirror.files |= {"/a.gz": b"a", "/b.gz": b"b"}
    files = tuple(mirror.file(f"/{name}.gz") for name in "ab")
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, downloads=files))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a").write_bytes(b"plain")
    assert names(get("MNIST", folder=tmp_path)) == ["a", "b.gz"]


def test_only_missing_files_are_downloaded(mirror, tmp_path, monkeypatch):
    mirror.files |= {f"/{name}": name.encode() for name in "abc"}
    files = tuple(mirror.file(f"/{name}") for name in "abc")
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, downloads=files))
    monkeypatch.setenv("PALMETTE_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "b").write_bytes(b"b")
    assert names(get("MNIST")) == ["a", "b", "c"]
    assert [path for path, _ in mirror.asked] == ["/a", "/c"]


def test_zip_files_are_unpacked_and_broken_archives_leave_nothing(tmp_path):
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


def test_a_tar_with_outside_paths_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "evil.tar.gz").write_bytes(tar_of({"a/x": b"", "../../evil": b"boo"}))
    with pytest.raises(ValueError, match="not a whole archive"):
        unpack(tmp_path / "in" / "evil.tar.gz", tmp_path / "in" / "out")
    assert names(tmp_path) == ["in"]
    assert names(tmp_path / "in") == ["evil.tar.gz"]


def test_an_unknown_download_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"is called 'ImageNet'; there are MNIST, FashionMNIST"):
        get("ImageNet")


@pytest.mark.parametrize("name", [name for name in DATA_SETS if DATA_SETS[name].folders])
def test_every_download_has_an_address_a_checksum_and_a_folder(name):
    assert DATA_SETS[name].folders
    assert DATA_SETS[name].downloads
    for file in DATA_SETS[name].downloads:
        assert file.url.startswith("http")
        assert len(bytes.fromhex(file.md5)) == 16


def test_command_downloads_reads_and_prints_the_folder(mirror, tmp_path, monkeypatch):
    row = bytes([7]) + bytes(3072)
    files = {f"c/data_batch_{i}.bin": row for i in range(1, 6)} | {"c/test_batch.bin": row}
    mirror.files["/c.tar.gz"] = tar_of(files)
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, downloads=(mirror.file("/c.tar.gz"),)))
    one = replace(cifar.TEN, train=tuple((n, 1) for n, _ in cifar.TEN.train), test=("test_batch", 1))
    monkeypatch.setattr(cifar, "TEN", one)
    done = CliRunner().invoke(main, ["data", "get", "cifar-10", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "CIFAR10: 5 training and 1 test images of 3×32×32" in done.output
    assert str(tmp_path / "cifar-10-batches-bin") in done.output


def test_command_explains_how_to_replace_a_damaged_set(tmp_path):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(b"short")
    done = CliRunner().invoke(main, ["data", "get", "CIFAR10", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not whole" in done.output
    assert f"; remove '{tmp_path / 'cifar-10-batches-bin'}' and download it again" in done.output


def test_command_errors_are_one_sentence(mirror, tmp_path, monkeypatch):
    files = Download(mirror.url(), "0" * 32), Download(mirror.url("/x"), "0" * 32)
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, downloads=files))
    done = CliRunner().invoke(main, ["data", "get", "MNIST", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "must have the published MD5" in done.output
    assert "Traceback" not in done.output
    unknown = CliRunner().invoke(main, ["data", "get", "ImageNet"])
    assert unknown.exit_code == 2
    assert "no data set to download is called 'ImageNet'" in unknown.output
    bare = CliRunner().invoke(main, ["data", "mnist"])
    assert bare.exit_code == 2
    assert "`palmette data get mnist` downloads a data set" in bare.output
    typo = CliRunner().invoke(main, ["data", "gte"])
    assert "Did you mean" in typo.output
    assert "'get'" in typo.output
    assert "nothing to download" in CliRunner().invoke(main, ["data", "get", "digits"]).output
