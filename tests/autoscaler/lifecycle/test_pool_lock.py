"""Of two `up` of one pool at once the second says who is at work; the lock falls with its process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide_autoscaler.lifecycle import pool_lock
from ebbtide_autoscaler.lifecycle.pool_lock import Busy, alone

HOLDS = """
import sys, time
from pathlib import Path
from ebbtide_autoscaler.lifecycle import pool_lock
pool_lock.runtime_dir = lambda pool: Path(sys.argv[1]) / pool
with pool_lock.alone("p"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pool_lock, "runtime_dir", lambda pool: tmp_path / pool)
    return tmp_path


def test_the_second_is_told_who_is_at_work_and_goes_on_after_a_kill(folder: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(Busy, match=rf"process {first.pid} \(python.*kill {first.pid}"), alone("p"):
            raise AssertionError("both hold it")
        with alone("another"):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait()
        with alone("p"):
            pass
    finally:
        first.kill()
        first.wait()


def test_what_the_holder_starts_does_not_inherit_it(folder: Path) -> None:
    with alone("p"):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with alone("p"):
            pass
    finally:
        child.kill()
        child.wait()


def test_where_nothing_can_be_written_there_is_no_lock_and_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`down` on a full disk."""
    (folder / "file").touch()
    monkeypatch.setattr(pool_lock, "runtime_dir", lambda pool: folder / "file" / pool)
    with alone("p"), alone("p"):
        assert os.listdir(folder) == ["file"]
