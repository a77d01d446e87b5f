"""Whose tree a lock's file speaks for when nobody holds the lock."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent.errors import SlotBusy
from ebbtide.agent.slot_locks.lock_content import UNKNOWN_HOLDER, HeldTree, left_behind, read_content, write_content
from ebbtide.agent.slot_locks.slot_lock import SlotLock, lock_file, probe
from ebbtide.client.messages import LockHolder, SlotRef
from ebbtide.system.process import boot_id, started_ticks
from tests.platform.agent.conftest import wait_until

SLOT = SlotRef("node0", 0)
HOLDER = LockHolder("nb", 7, 4242, 99, rank=1)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    yield opened
    os.close(opened)


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "99"], start_new_session=True) as process:
        yield process
        process.kill()


def tree_of(leader: subprocess.Popen[bytes], **more: float) -> HeldTree:
    return HeldTree(leader.pid, started_ticks(leader.pid) or 0, boot=boot_id(), **more)


@pytest.mark.proves("a zombie holds nothing")
def test_what_is_written_is_read_and_a_tree_counts_while_its_leader_lives(
    fd: int, leader: subprocess.Popen[bytes]
) -> None:
    write_content(fd, HOLDER, tree_of(leader))
    assert read_content(fd) == HOLDER
    assert left_behind(fd) == LockHolder("nb", 7, pid=0, started=0, rank=1), "nobody is killed for it"
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    assert left_behind(fd) is None, "a zombie holds nothing, though its number is still given"
    leader.wait()
    assert left_behind(fd) is None


def test_a_holder_that_answers_for_nobody_leaves_nobody_behind(fd: int, leader: subprocess.Popen[bytes]) -> None:
    write_content(fd, HOLDER, tree_of(leader))
    write_content(fd, HOLDER)
    assert left_behind(fd) is None and read_content(fd) == HOLDER
    os.ftruncate(fd, 0)
    assert left_behind(fd) is None and read_content(fd) == UNKNOWN_HOLDER


def test_a_writer_killed_before_it_cut_off_the_end_has_written_all_the_same(
    fd: int, leader: subprocess.Popen[bytes]
) -> None:
    write_content(fd, LockHolder("a-long-name-" * 9, 7, 4242, 99), tree_of(leader))
    longer = os.fstat(fd).st_size
    write_content(fd, HOLDER, tree_of(leader))
    shorter = os.fstat(fd).st_size
    assert shorter < longer
    os.pwrite(fd, b'"boot": "x"}}', shorter)
    assert read_content(fd) == HOLDER and left_behind(fd) is not None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"tree": 1}', b'"tree"', b'{"tree": {"pid": "x"}}', b"\xff\xfe"]
)
def test_damaged_content_is_of_nobody_known(fd: int, text: bytes) -> None:
    os.pwrite(fd, text, 0)
    assert read_content(fd) == UNKNOWN_HOLDER and left_behind(fd) is None


@pytest.mark.proves("a tree of another boot is gone")
def test_a_tree_of_another_boot_or_with_a_number_given_to_another_is_gone(leader: subprocess.Popen[bytes]) -> None:
    there = tree_of(leader)
    assert there.may_live()
    assert not HeldTree(there.pid, there.started, boot="another").may_live()
    assert not HeldTree(there.pid, there.started - 1, boot=boot_id()).may_live()
    assert not HeldTree(there.pid, there.started, until_s=1e12, boot="another").may_live()


def test_a_tree_that_is_expected_counts_until_its_time_and_then_only_if_it_came(
    leader: subprocess.Popen[bytes],
) -> None:
    now_s, there = time.clock_gettime(time.CLOCK_BOOTTIME), tree_of(leader)
    leader_less = 2**22 + 1  # beyond any pid
    assert HeldTree(leader_less, 1, until_s=now_s + 60.0, boot=boot_id()).may_live()
    assert not HeldTree(leader_less, 1, until_s=now_s - 1.0, boot=boot_id()).may_live()
    assert HeldTree(there.pid, there.started - 5, until_s=now_s - 1.0, boot=boot_id()).may_live()
    assert not HeldTree(there.pid, there.started + 5, until_s=now_s - 1.0, boot=boot_id()).may_live()


def test_those_that_outlive_their_leader_in_its_process_group_count(fd: int, tmp_path: Path) -> None:
    child = tmp_path / "child"
    with subprocess.Popen(["sh", "-c", f"sleep 99 & echo $! > {child}; wait"], start_new_session=True) as leader:
        wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
        write_content(fd, HOLDER, tree_of(leader))
        leader.kill()
        leader.wait()
        assert left_behind(fd) is not None
        os.kill(int(child.read_text()), 9)
        wait_until(lambda: left_behind(fd) is None)


def test_a_lock_answers_for_a_tree_only_while_it_is_held(tmp_path: Path, leader: subprocess.Popen[bytes]) -> None:
    mine, there = SlotLock(tmp_path, SLOT, workload="nb", epoch=3), (leader.pid, started_ticks(leader.pid) or 0)
    with pytest.raises(ValueError, match="answers for nobody"):
        mine.answer_for(there)
    mine.acquire(1.0)
    mine.answer_for(there)
    mine.release()
    assert probe(tmp_path, SLOT) is None, "let go in order: the tree is off the GPU, or the caller was wrong"


@pytest.mark.proves(
    "a lock is not had while a tree that its file names may live", "a slot whose tree may live is not told to be free"
)
def test_a_lock_whose_holders_were_killed_is_had_when_the_tree_is_gone(
    tmp_path: Path, leader: subprocess.Popen[bytes]
) -> None:
    with SlotLock(tmp_path, SLOT, workload="nb", epoch=3) as mine:
        mine.answer_for((leader.pid, started_ticks(leader.pid) or 0))
        said = lock_file(tmp_path, SLOT).read_bytes()
    lock_file(tmp_path, SLOT).write_bytes(said)  # as the kernel leaves it when it closes a killed process's files
    found = probe(tmp_path, SLOT)
    assert found is not None and (found.workload, found.epoch, found.pid) == ("nb", 3, 0)
    after = SlotLock(tmp_path, SLOT, workload="next", epoch=4)
    with pytest.raises(SlotBusy, match="outlived its holder"):
        after.acquire(0.2)
    leader.kill()
    leader.wait()
    after.acquire(1.0)
    assert probe(tmp_path, SLOT) is not None and b"nb" not in lock_file(tmp_path, SLOT).read_bytes()
    after.release()
