"""Small durable changes: what is synced when, what a failure leaves, and the second look that NFS needs."""

import errno
import os
from pathlib import Path

import pytest

from ebbtide.storage.errors import NoRoom, TransferFailed
from ebbtide.storage.files.durable_files import LOOK_AGAIN_AFTER_S, Disk, read_small
from tests.platform.storage.failing_calls import CountedCalls, failing_at
from tests.platform.storage.stale import stale_at


@pytest.mark.proves("a replaced file's directory is synced", "a small file is synced before it counts")
def test_a_file_is_synced_before_and_its_directory_after_the_rename(tmp_path: Path) -> None:
    calls = CountedCalls()
    Disk(calls).replace(tmp_path / "ref", b"new")
    assert calls.names == ["create", "write", "fsync", "rename", "fsync"]
    assert (tmp_path / "ref").read_bytes() == b"new"
    assert (tmp_path / "ref").stat().st_mode & 0o777 == 0o600


@pytest.mark.proves("a replacement that fails leaves no temporary file", "a small file is replaced by a rename")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, call: int, code: int) -> None:
    (tmp_path / "ref").write_bytes(b"old")
    with pytest.raises(TransferFailed if code == errno.EIO else NoRoom, match="ref"):
        Disk(failing_at(call, code)).replace(tmp_path / "ref", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["ref"]
    assert (tmp_path / "ref").read_bytes() == b"old"


@pytest.mark.proves("a short write goes on")
def test_short_writes_are_finished_and_a_write_of_nothing_is_an_error(tmp_path: Path) -> None:
    class Short(CountedCalls):
        def write(self, fd: int, data: memoryview, /) -> int:
            return os.write(fd, data[:3])

    class Nothing(CountedCalls):
        def write(self, fd: int, data: memoryview, /) -> int:
            return 0

    Disk(Short()).write(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"
    with pytest.raises(TransferFailed, match="EIO"):
        Disk(Nothing()).write(tmp_path / "b", b"0")


def test_a_link_in_a_files_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(TransferFailed, match="ELOOP"):
        Disk().write(tmp_path / "link", b"new")
    with pytest.raises(TransferFailed, match="ELOOP"):
        read_small(tmp_path / "link", 100)
    assert (tmp_path / "victim").read_bytes() == b"old"


@pytest.mark.proves("a new directory is synced into the one above")
def test_directories_are_made_with_all_above_them_for_the_owner_alone(tmp_path: Path) -> None:
    calls = CountedCalls()
    Disk(calls).make_directory(tmp_path / "a" / "b")
    Disk(calls).make_directory(tmp_path / "a" / "b")
    assert calls.names == ["mkdir", "fsync"] * 2
    assert (tmp_path / "a").stat().st_mode & 0o777 == (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(TransferFailed, match="ENOTDIR"):
        Disk().make_directory(tmp_path / "file" / "x")


def test_a_directory_that_cannot_be_looked_at_is_one_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale_at(monkeypatch, tmp_path / "a")
    with pytest.raises(TransferFailed, match=r"/a: .*ESTALE"):
        Disk().make_directory(tmp_path / "a" / "b")


def test_a_directory_moves_only_to_a_free_name(tmp_path: Path) -> None:
    disk = Disk()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert not disk.move(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / "file").read_text() == "two"
    assert disk.move(tmp_path / "one", tmp_path / "three")
    assert not disk.move(tmp_path / "one", tmp_path / "four"), "it is gone"
    (tmp_path / "plain").touch()
    assert not disk.move(tmp_path / "three", tmp_path / "plain")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "three", "two"]


@pytest.mark.proves("a moved directory is synced where it came from", "a moved directory is synced where it came to")
def test_a_move_between_directories_syncs_both(tmp_path: Path) -> None:
    for name in ("from", "to", "from/x"):
        (tmp_path / name).mkdir()
    calls = CountedCalls()
    Disk(calls).move(tmp_path / "from" / "x", tmp_path / "to" / "x")
    assert calls.names == ["rename", "fsync", "fsync"]


@pytest.mark.proves("a file put in another's place is durable", "a removed file is durably gone")
def test_what_is_put_in_anothers_place_or_removed_is_so_durably(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    calls = CountedCalls()
    Disk(calls).move_over(tmp_path / "new", tmp_path / "old")
    assert calls.names == ["rename", "fsync"] and (tmp_path / "old").read_text() == "new"
    assert Disk(calls).remove(tmp_path / "old")
    assert calls.names[2:] == ["unlink", "fsync"]


@pytest.mark.proves("a tree is removed without following links")
def test_a_tree_is_removed_without_following_links_and_twice_is_well(tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    Disk().remove_tree(tmp_path / "tree")
    Disk().remove_tree(tmp_path / "tree")
    assert not Disk().remove(tmp_path / "tree")
    assert [path.name for path in tmp_path.rglob("*")] == ["outside", "precious"]


@pytest.mark.proves("a small file is looked for twice")
@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE])
def test_a_small_file_is_looked_for_twice(tmp_path: Path, code: int) -> None:
    (tmp_path / "ref").write_bytes(b"x" * 3_000_000)
    failures = [code]
    slept: list[float] = []

    def opened(path: Path, flags: int) -> int:
        if failures:
            raise OSError(failures.pop(), "as after a rename on NFS")
        return os.open(path, flags)

    assert read_small(tmp_path / "ref", 4_000_000, open_file=opened, sleep=slept.append) == b"x" * 3_000_000
    assert slept == [LOOK_AGAIN_AFTER_S]
    failures[:] = [code, code]
    with pytest.raises(FileNotFoundError if code == errno.ENOENT else TransferFailed):
        read_small(tmp_path / "ref", 4_000_000, open_file=opened, sleep=slept.append)


@pytest.mark.proves("a small file of any length is not read")
def test_other_errors_are_told_at_once_and_a_long_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "ref").write_bytes(b"12345")

    def opened(path: Path, flags: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(TransferFailed, match=r"cannot read .*ref: .*EIO"):
        read_small(tmp_path / "ref", 10, open_file=opened)
    with pytest.raises(ValueError, match="longer than 4"):
        read_small(tmp_path / "ref", 4)


def test_a_close_that_was_interrupted_has_closed_and_what_was_synced_stays(tmp_path: Path) -> None:
    class Interrupted(CountedCalls):
        def close(self, fd: int) -> None:
            super().close(fd)
            raise InterruptedError(errno.EINTR, "Interrupted system call")

    Disk(Interrupted()).replace(tmp_path / "ref", b"new")
    assert (tmp_path / "ref").read_bytes() == b"new"


def test_a_small_file_that_was_read_was_read_whatever_its_close_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ref").write_bytes(b"content")
    close = os.close

    def fails(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "close", fails)
    assert read_small(tmp_path / "ref", 100) == b"content"
