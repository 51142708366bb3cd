from __future__ import annotations

import io
import os
import resource
from pathlib import Path

import pytest

from palmette.errors import RunBusy
from palmette.studies.disk import locking
from palmette.studies.disk.locking import FolderLock, allow_open_files


@pytest.fixture(params=[True, False], ids=["name in the lock", "name next to it"])
def lock(request, monkeypatch, tmp_path):
    monkeypatch.setattr(locking, "_READABLE", request.param)
    return FolderLock(tmp_path / "lock")


def test_the_owner_is_named_while_it_holds_the_lock(lock):
    assert lock.owner() is None
    with lock.held():
        assert lock.owner().startswith(f"process {os.getpid()} on ")
        with pytest.raises(RunBusy, match=f"in use by process {os.getpid()} on "), lock.held():
            pass
    assert lock.owner() is None
    assert all(file.read_text() == "" for file in lock.path.parent.iterdir())


def test_a_name_without_a_lock_is_no_owner(lock):
    lock._named.write_text("process 7 on lost\n")
    assert lock.owner() is None
    lock.path.touch()
    assert lock.owner() is None


def test_the_lock_of_a_lost_host_can_be_taken(lock):
    with lock.held():
        lock._named.write_text("process 7 on lost\n")
        assert not lock.take_from({"other"})
        assert lock.take_from({"lost"})
        with lock.held():
            assert lock.owner() != "process 7 on lost"


def test_readers_without_write_permission_see_the_owner(lock):
    with lock.held():
        lock.path.chmod(0o444)
        assert lock.owner() is not None


@pytest.mark.parametrize(("count", "soft"), [(50, 100), (200, 200), (10**9, 300), (None, 300)])
def test_the_limit_of_open_files_is_only_raised(monkeypatch, count, soft):
    limits = {resource.RLIMIT_NOFILE: (100, 300)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    allow_open_files(count)
    assert limits == {resource.RLIMIT_NOFILE: (soft, 300)}


def test_no_limit_of_open_files_is_lowered(monkeypatch):
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (unlimited, unlimited))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: pytest.fail("changed"))
    allow_open_files(10**9)
    allow_open_files()


def test_an_error_is_not_hidden_by_a_lock_that_cannot_be_emptied(tmp_path, monkeypatch):
    opened, calls = Path.open, []

    class Failing(io.TextIOWrapper):
        def truncate(self, size=None):
            calls.append(size)
            if len(calls) == 2:
                raise OSError("no such device")
            return super().truncate(size)

    def fails(path, mode="r", **options):
        return Failing(opened(path, f"{mode}b"), **options)

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(KeyError, match="the real one"), FolderLock(tmp_path / "lock").held():
        raise KeyError("the real one")
    assert calls == [0, 0]
