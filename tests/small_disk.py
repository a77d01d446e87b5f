"""A filesystem of a given size, for tests of a full one: a real one, which says so itself. Needs the right to mount."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT_S = 30.0
_PIECE = bytes(1 << 16)


@contextmanager
def small_disk(where: Path, size: str) -> Iterator[Path]:
    """One of ``size`` (as tmpfs(5) has it: ``24m``) at ``where``; the test is skipped where nobody may mount one."""
    where.mkdir()
    found = _mount("-t", "tmpfs", "-o", f"size={size},mode=0700", "ebbtide-test", str(where))
    if found.returncode != 0:
        pytest.skip(f"this machine lets nobody mount a tmpfs: {found.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True, timeout=WAIT_S)


def grow(where: Path, size: str) -> None:
    """Make room on it."""
    found = _mount("-o", f"remount,size={size}", str(where))
    assert found.returncode == 0, found.stderr


def fill(where: Path) -> Path:
    """Take all that is left of it; the file that has it."""
    path = where / "fill"
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(_PIECE)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return path


def _mount(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *words], capture_output=True, text=True, timeout=WAIT_S, check=False)
