"""A shared directory is asked by writing to it; what the system answers reaches the user."""

import errno
import os
import threading
from pathlib import Path

import pytest

from ebbtide.system import directory_check
from ebbtide.system.directory_check import directory_fault


def test_a_directory_that_can_be_written_passes_and_stays_empty(tmp_path: Path) -> None:
    assert directory_fault(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_one_that_could_be_created_passes_and_is_not_created(tmp_path: Path) -> None:
    assert directory_fault(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_failed_write_names_the_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    fault = directory_fault(tmp_path)
    expected = f"{tmp_path} cannot be written to: {os.strerror(number)} (errno {number}, in {tmp_path})"
    assert fault == expected
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_created_is_told() -> None:
    fault = directory_fault(Path("/proc/ebbtide/shared"))
    assert fault is not None and "cannot be created: " in fault and "errno" in fault


def test_a_file_or_a_dangling_link_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert directory_fault(tmp_path / "file") == f"{tmp_path}/file is no directory"
    assert directory_fault(tmp_path / "file" / "in") is not None
    assert directory_fault(tmp_path / "link") == f"{tmp_path}/link is no directory"


def test_a_full_filesystem_is_told_before_it_fails(tmp_path: Path) -> None:
    assert "are needed" in str(directory_fault(tmp_path, min_free_bytes=2**62))


def test_a_hung_filesystem_is_told_within_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thaw = threading.Event()
    monkeypatch.setattr(directory_check, "_write_synced", lambda probe: thaw.wait(60))
    try:
        assert "did not answer within 0.05 s" in str(directory_fault(tmp_path, deadline_s=0.05))
    finally:
        thaw.set()
