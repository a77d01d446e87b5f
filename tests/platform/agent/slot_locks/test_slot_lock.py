"""Slot locks between real processes."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent.errors import LockDirUnusable, SlotBusy
from ebbtide.agent.slot_locks.lock_content import UNKNOWN_HOLDER
from ebbtide.agent.slot_locks.slot_lock import SlotLock, lock_file, probe
from ebbtide.client.messages import LockHolder, SlotRef
from ebbtide.system.process import started_ticks
from tests.platform.agent.conftest import WAIT_S, StartHolder, ask, wait_until

SLOT = SlotRef("node0", 0)


def make(lock_dir: Path, slot: SlotRef = SLOT, epoch: int = 7) -> SlotLock:
    return SlotLock(lock_dir, slot, workload="mine", epoch=epoch, rank=1)


def test_a_holder_is_seen_with_all_it_says_and_gone_after_release(tmp_path: Path) -> None:
    lock_dir = tmp_path / "locks"
    assert probe(lock_dir, SLOT) is None
    lock = make(lock_dir)
    assert not lock.held
    lock.acquire(0.0)
    lock.acquire(0.0)
    me = LockHolder("mine", 7, os.getpid(), started_ticks(os.getpid()) or 0, 1)
    assert lock.held and probe(lock_dir, SLOT) == me
    assert probe(lock_dir, SlotRef("node0", 1)) is None
    assert lock_dir.stat().st_mode & 0o777 == 0o700
    assert lock_file(lock_dir, SLOT).stat().st_mode & 0o777 == 0o600
    lock.release()
    lock.release()
    assert not lock.held and probe(lock_dir, SLOT) is None
    assert lock_file(lock_dir, SLOT).read_bytes() == b""
    with make(lock_dir) as again:
        assert again.held
    assert not again.held


def test_a_gpu_with_a_uuid_is_locked_by_it_whatever_its_index(tmp_path: Path) -> None:
    with make(tmp_path, SlotRef("node0", 3, "GPU-12ab")):
        assert (tmp_path / "GPU-12ab.lock").exists()
        assert probe(tmp_path, SlotRef("node9", 0, "GPU-12ab")) is not None
    with pytest.raises(ValueError, match="cannot be a file name"):
        make(tmp_path, SlotRef("node0", 3, "../GPU"))


@pytest.mark.proves("one process has a slot's lock")
def test_a_second_holder_is_refused_and_told_who_has_it(tmp_path: Path, start_holder: StartHolder) -> None:
    holder = start_holder(tmp_path, 0, "job-a", 3)
    lock = make(tmp_path)
    begin_s = time.monotonic()
    with pytest.raises(SlotBusy, match=rf"GPU 0: .*gpu-0\.lock is held by job-a \(epoch 3, pid {holder.pid}\)") as told:
        lock.acquire(0.2)
    assert 0.2 <= time.monotonic() - begin_s < 5
    assert told.value.holder is not None and told.value.holder.pid == holder.pid
    assert not lock.held
    assert ask(holder, "release") == "released"
    lock.acquire(0.0)
    lock.release()


def test_kill_9_frees_the_lock_and_a_waiting_acquire_gets_it(tmp_path: Path, start_holder: StartHolder) -> None:
    holder = start_holder(tmp_path, 0)
    lock = make(tmp_path)
    waiter = threading.Thread(target=lock.acquire, args=(WAIT_S,))
    waiter.start()
    holder.kill()
    waiter.join(WAIT_S)
    assert lock.held
    seen = probe(tmp_path, SLOT)
    assert seen is not None and seen.workload == "mine"
    lock.release()


def test_a_forked_child_keeps_the_lock_of_a_killed_parent_until_it_is_gone(
    tmp_path: Path, start_holder: StartHolder
) -> None:
    """Such a child has the driver's descriptors as well: the memory is not gone before it."""
    holder = start_holder(tmp_path, 0, "job-a")
    child = int(ask(holder, "fork"))
    try:
        holder.kill()
        holder.wait()
        with pytest.raises(SlotBusy, match="job-a"):
            make(tmp_path).acquire(0.0)
    finally:
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: probe(tmp_path, SLOT) is None)


@pytest.mark.proves("a release frees the lock though forked children live")
def test_a_release_frees_the_lock_though_forked_children_live(tmp_path: Path, start_holder: StartHolder) -> None:
    holder = start_holder(tmp_path, 0)
    child = int(ask(holder, "fork"))
    try:
        assert ask(holder, "release") == "released"
        with make(tmp_path) as lock:
            assert lock.held
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.proves("a forked child cannot release its parent's lock")
def test_a_forked_child_cannot_release_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = make(tmp_path)
    lock.acquire(0.0)
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0 if not lock.held else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert lock.held and probe(tmp_path, SLOT) is not None
    lock.release()


def test_a_started_program_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = make(tmp_path)
    lock.acquire(0.0)
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        os.close(lock._fd)  # what the kernel does when this process is killed
        lock._fd = -1
        assert probe(tmp_path, SLOT) is None
    finally:
        program.kill()
        program.wait()


@pytest.mark.proves("a lock file that was deleted meanwhile is not the lock")
def test_a_file_deleted_between_open_and_lock_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = fcntl.flock, lock_file(tmp_path, SLOT)
    deleted = 0

    def flock(fd: int, operation: int) -> None:
        nonlocal deleted
        if deleted < 4:
            deleted += 1
            path.unlink()
            if deleted % 2:
                path.touch()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = make(tmp_path)
    lock.acquire(WAIT_S)
    monkeypatch.undo()
    assert deleted == 4
    assert os.fstat(lock._fd).st_ino == path.stat().st_ino
    assert probe(tmp_path, SLOT) is not None
    lock.release()


@pytest.mark.parametrize("content", [b"", b'{"workload": "job-', b"[]", b'{"workload": "x"}', b"\xff\x00"])
def test_a_holder_that_has_not_said_who_it_is_holds_all_the_same(tmp_path: Path, content: bytes) -> None:
    lock = make(tmp_path)
    lock.acquire(0.0)
    lock_file(tmp_path, SLOT).write_bytes(content)
    assert probe(tmp_path, SLOT) == UNKNOWN_HOLDER
    lock.release()


def test_what_a_killed_holder_left_in_the_file_holds_nothing(tmp_path: Path, start_holder: StartHolder) -> None:
    holder = start_holder(tmp_path, 0, "a-workload-with-a-long-name" * 4)
    holder.kill()
    holder.wait()
    assert lock_file(tmp_path, SLOT).read_bytes() != b""
    assert probe(tmp_path, SLOT) is None
    with make(tmp_path):
        seen = probe(tmp_path, SLOT)
        assert seen is not None and seen.workload == "mine"


def test_probes_never_keep_an_acquirer_away(tmp_path: Path) -> None:
    with make(tmp_path):
        pass
    program = (
        "import sys; from pathlib import Path; from ebbtide.agent.slot_locks.slot_lock import probe\n"
        "from ebbtide.client.messages import SlotRef\n"
        "print('probing', flush=True)\n"
        "while True: probe(Path(sys.argv[1]), SlotRef('node0', 0))\n"
    )
    prober = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert prober.stdout is not None and prober.stdout.readline() == "probing\n"
        for _ in range(300):
            with make(tmp_path):
                pass
    finally:
        prober.kill()
        prober.communicate()


def test_two_processes_never_hold_one_lock(tmp_path: Path) -> None:
    """Each writes its number into a file while it holds, and must find it there again; some are killed."""
    program = (
        "import os, random, sys, time; from pathlib import Path\n"
        "from ebbtide.agent.errors import SlotBusy; from ebbtide.agent.slot_locks.slot_lock import SlotLock\n"
        "from ebbtide.client.messages import SlotRef\n"
        "where, me = Path(sys.argv[1]), sys.argv[2].encode()\n"
        "page = os.open(where / 'page', os.O_RDWR | os.O_CREAT)\n"
        "got, end = 0, time.monotonic() + 2\n"
        "while time.monotonic() < end:\n"
        "    lock = SlotLock(where / 'locks', SlotRef('n', 0), workload='w', epoch=1)\n"
        "    try: lock.acquire(0.05)\n"
        "    except SlotBusy: continue\n"
        "    os.pwrite(page, me, 0); time.sleep(random.random() * 0.003)\n"
        "    assert os.pread(page, 1, 0) == me, 'two holders'\n"
        "    lock.release(); got += 1; time.sleep(random.random() * 0.003)\n"
        "print(got)\n"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    time.sleep(1.0)
    racers[3].kill()
    counts = [int(racer.communicate(timeout=WAIT_S)[0] or 0) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0, -signal.SIGKILL]
    assert min(counts[:3]) > 5


@pytest.mark.proves("no lock lies in a directory that every user may write to")
def test_a_directory_that_cannot_hold_locks_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LockDirUnusable, match="file/locks: Not a directory; name a writable node-local one"):
        make(tmp_path / "file" / "locks").acquire(0.0)
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    with pytest.raises(LockDirUnusable, match="chmod 700"):
        make(everybodys).acquire(0.0)
    assert list(everybodys.iterdir()) == []


def test_a_read_only_filesystem_is_an_error_and_its_old_locks_stay_readable(read_only: Path) -> None:
    with pytest.raises(LockDirUnusable, match="Read-only file system; the lock directory must be writable"):
        make(read_only / "locks").acquire(0.0)
    assert probe(read_only / "locks", SLOT) is None


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    lock_file(tmp_path, SLOT).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockDirUnusable):
        make(tmp_path).acquire(0.0)
    assert (tmp_path / "elsewhere").read_text() == "precious"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A read-only filesystem with a lock directory."""
    where = tmp_path / "ro"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "ebbtide-test", str(where)]
    if subprocess.run(mount, capture_output=True, timeout=WAIT_S, check=False).returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        (where / "locks").mkdir(mode=0o700)
        subprocess.run(["mount", "-o", "remount,ro", str(where)], check=True, timeout=WAIT_S)
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True, timeout=WAIT_S)
