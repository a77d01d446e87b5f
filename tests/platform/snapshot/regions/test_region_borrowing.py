"""Who has a region: one borrower, told by a lock that no look disturbs and no forked child keeps."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ebbtide.snapshot.errors import RegionBusy, RegionMisused
from ebbtide.snapshot.regions import borrower_lock
from ebbtide.snapshot.regions import region as region_module
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_removal import remove_region
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.snapshot.regions.region_takeover import read_region
from ebbtide.snapshot.regions.region_view import look


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return create_region(tmp_path, RegionKey("job", 3, 0), 8192)


def fill(path: Path, value: int = 7) -> Region:
    region = Region.open(path)
    region.begin()
    region.bytes.fill_(value)
    region.seal(b"note")
    return region


def test_looks_are_in_nobodys_way(path: Path) -> None:
    stop = threading.Event()

    def go_on_looking() -> None:
        while not stop.is_set():
            look(path)

    watchers = [threading.Thread(target=go_on_looking) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(100):
            Region.open(path).close()
            if look(path).state is RegionState.FULL:
                read_region(path)
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()


def test_a_borrower_sees_itself_as_others_do(path: Path) -> None:
    region = Region.open(path)
    assert look(path).borrower_lives
    os.close(os.open(path, os.O_RDWR))
    assert look(path).borrower_lives, "a lock of the process would be gone now"
    region.close()
    assert not look(path).borrower_lives


def borrow_and_fork(path: Path, tell: int, *, close: bool) -> None:
    region = fill(path)
    if os.fork() == 0:  # as a data loader is
        with contextlib.suppress(RegionMisused, OSError):
            region.begin()
        os.write(tell, f"{os.getpid()}\n".encode())
    elif close:
        region.close()
    signal.pause()


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_forked_child_does_not_look_like_the_borrower(path: Path, end: str) -> None:
    ready, tell = os.pipe()
    borrower = os.fork()
    if borrower == 0:
        try:
            borrow_and_fork(path, tell, close=end == "close")
        finally:
            os._exit(1)
    loader = int(os.read(ready, 20))
    try:
        if end == "kill":
            assert look(path).borrower_lives
            os.kill(borrower, signal.SIGKILL)
            os.waitpid(borrower, 0)
        else:
            wait_until_free(path)
        assert not look(path).borrower_lives
        assert bool((read_region(path).bytes == 7).all()), "the child has begun nothing"
    finally:
        os.kill(loader, signal.SIGKILL)
        if end != "kill":
            os.kill(borrower, signal.SIGKILL)
            os.waitpid(borrower, 0)
        os.close(ready)
        os.close(tell)


def wait_until_free(path: Path) -> None:
    for _ in range(1000):
        if not look(path).borrower_lives:
            return
        threading.Event().wait(0.01)


def test_a_forked_child_waits_for_no_thread_that_it_does_not_have(path: Path) -> None:
    """One of the borrower's own was at work on the books when it forked, as the one that hashes is."""
    region = Region.open(path)
    with region._books:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                region.begin()
            except RegionMisused:
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    region.begin()
    region.close()


@pytest.mark.proves("what is wrong with a region's lock is told")
def test_what_is_wrong_with_a_lock_is_told_and_is_not_somebody_else(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        borrower_lock.borrow(fd)
    assert borrower_lock.share(fd)
    os.close(fd)


def test_a_started_program_does_not_keep_it(path: Path) -> None:
    region = Region.open(path)
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        region.close()
        wait_until_free(path)  # the kernel closes them one by one, and Popen returns when it has come to the first
        assert not look(path).borrower_lives
    finally:
        program.communicate(b"\n")


def test_a_region_that_is_taken_back_while_it_is_opened_is_not_borrowed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(fd: int) -> bool:
        assert remove_region(path, though_full=False)
        create_region(path.parent, RegionKey("job", 3, 0), 4096)
        return borrower_lock.borrow(fd)

    monkeypatch.setattr(region_module, "borrow", too_late)
    with pytest.raises(RegionBusy, match="taken back"):
        Region.open(path)


def test_a_region_is_removed_only_when_nobody_has_it_and_nothing_in_it_counts_unless_that_is_meant(path: Path) -> None:
    region = fill(path)
    assert not remove_region(path, though_full=True), "it is borrowed"
    region.close()
    assert not remove_region(path, though_full=False), "it counts"
    read = read_region(path)
    assert remove_region(path, though_full=True), "a reader keeps what he has"
    assert not path.exists() and bool((read.bytes == 7).all())
    assert remove_region(path, though_full=True), "it is gone already"


def test_what_is_read_is_nobodys_to_change_for_as_long_as_it_is_used(path: Path) -> None:
    fill(path).close()
    part = read_region(path).bytes[100:200]
    assert not look(path).borrower_lives, "a reader is no borrower"
    with pytest.raises(RegionBusy):
        Region.open(path)
    part.fill_(9)
    assert bool((read_region(path).bytes == 7).all())
    del part
    Region.open(path).close()
