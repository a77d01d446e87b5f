"""The slot lock remembers the highest epoch: what comes late finds that it is over."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.agent.errors import SlotBusy, StaleLease
from ebbtide.agent.slot_locks.highest_epoch import LEDGERS_KEPT, highest_epoch, memory_file, remember_epoch
from ebbtide.agent.slot_locks.slot_lock import SlotLock, lock_file, probe
from ebbtide.client.messages import SlotRef
from tests.examples import examples
from tests.platform.agent.conftest import WAIT_S, StartHolder, ask

SLOT = SlotRef("node0", 0, "m-0")


def make(lock_dir: Path, epoch: int, ledger: str = "L1") -> SlotLock:
    return SlotLock(lock_dir, SLOT, workload="w", epoch=epoch, ledger=ledger)


def used(lock_dir: Path, epoch: int, ledger: str = "L1") -> None:
    with make(lock_dir, epoch, ledger):
        pass


@pytest.mark.proves(
    "a lower epoch is refused though no process holds the lock", "the epoch that held a slot is remembered"
)
def test_a_lease_older_than_one_that_held_the_slot_is_refused_though_nobody_holds_it(tmp_path: Path) -> None:
    used(tmp_path, 7)
    late = make(tmp_path, 6)
    with pytest.raises(StaleLease, match=r"w \(epoch 6\) cannot have GPU 0: .* epoch 7 since; this lease is over"):
        late.acquire(0.0)
    assert not late.held and probe(tmp_path, SLOT) is None, "refusing leaves the slot as it was"
    used(tmp_path, 7)  # the same lease again: a job that was parked
    used(tmp_path, 8)
    with pytest.raises(StaleLease):
        make(tmp_path, 7).acquire(0.0)
    assert issubclass(StaleLease, SlotBusy), "whoever handles a busy slot handles this"


def test_a_holder_that_was_killed_is_remembered_as_well(tmp_path: Path, start_holder: StartHolder) -> None:
    program = Path(__file__).with_name("holder.py")
    words = [str(tmp_path), "0", "w", "9", "", SLOT.uuid, "L1"]
    holder = subprocess.Popen([sys.executable, str(program), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.communicate()
    with pytest.raises(StaleLease):
        make(tmp_path, 8).acquire(0.0)


def test_one_that_waits_for_a_newer_lease_to_end_is_refused_when_it_has(
    tmp_path: Path, start_holder: StartHolder
) -> None:
    holder = start_holder(tmp_path, 0, "newer", 5)  # without a ledger it leaves no memory
    told: list[BaseException] = []

    def wait() -> None:
        try:
            SlotLock(tmp_path, SlotRef("node0", 0), workload="w", epoch=4, ledger="L1").acquire(WAIT_S)
        except StaleLease as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    remember_epoch(lock_file(tmp_path, SlotRef("node0", 0)), "L1", 5)  # as the holder would have
    assert ask(holder, "release") == "released"
    waiter.join(WAIT_S)
    assert len(told) == 1


def test_a_pool_made_anew_counts_from_one_and_is_not_locked_out_by_the_one_before(tmp_path: Path) -> None:
    used(tmp_path, 500, "old")
    used(tmp_path, 1, "new")
    used(tmp_path, 2, "new")
    with pytest.raises(StaleLease):
        make(tmp_path, 1, "new").acquire(0.0)
    used(tmp_path, 500, "old")  # its lock alone keeps the two pools apart
    with pytest.raises(StaleLease):
        make(tmp_path, 1, "new").acquire(0.0)


def test_without_a_ledger_nothing_is_compared(tmp_path: Path) -> None:
    used(tmp_path, 9, "")
    used(tmp_path, 1, "")
    assert not memory_file(lock_file(tmp_path, SLOT)).exists()


@pytest.mark.parametrize("content", [b"", b'{"L1": 9', b"[1]", b'{"L1": "x"}', b"\xff\x00", b"9"])
def test_a_memory_that_cannot_be_read_stops_nobody_and_is_mended(tmp_path: Path, content: bytes) -> None:
    memory_file(lock_file(tmp_path, SLOT)).write_bytes(content)
    used(tmp_path, 3)
    assert highest_epoch(lock_file(tmp_path, SLOT), "L1") == 3
    with pytest.raises(StaleLease):
        make(tmp_path, 2).acquire(0.0)


def test_a_memory_that_cannot_be_written_keeps_the_slot_locked_for_nobody(tmp_path: Path) -> None:
    from ebbtide.agent.errors import LockDirUnusable

    memory_file(lock_file(tmp_path, SLOT)).with_suffix(".new").mkdir()
    lock = make(tmp_path, 3)
    with pytest.raises(LockDirUnusable):
        lock.acquire(0.0)
    assert not lock.held and probe(tmp_path, SLOT) is None


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text('{"L1": 99}')
    memory_file(lock_file(tmp_path, SLOT)).symlink_to(tmp_path / "precious")
    used(tmp_path, 3)
    assert (tmp_path / "precious").read_text() == '{"L1": 99}'


@pytest.mark.parametrize("round_", range(8))
@pytest.mark.proves("the memory of epochs is replaced whole")
def test_kill_9_while_it_is_written_loses_nothing_that_was_written(tmp_path: Path, round_: int) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from ebbtide.agent.slot_locks.highest_epoch import remember_epoch\n"
        "for epoch in range(1, 10**9):\n"
        "    remember_epoch(Path(sys.argv[1]), 'L1', epoch); print(epoch, flush=True)\n"
    )
    path = tmp_path / "m-0.lock"
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(3 + 17 * round_):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    said = [int(line) for line in writer.communicate()[0].split() if line]
    last = said[-1] if said else 3 + 17 * round_
    assert highest_epoch(path, "L1") in (last, last + 1)
    remember_epoch(path, "L1", last + 2)  # a draft that was left behind is in nobody's way
    assert highest_epoch(path, "L1") == last + 2


@pytest.mark.proves("a lower epoch does not lower what is remembered")
def test_a_lower_epoch_of_a_ledger_does_not_lower_what_is_remembered_of_it(tmp_path: Path) -> None:
    path = lock_file(tmp_path, SLOT)
    for ledger, epoch in (("L1", 5), ("L2", 2), ("L1", 3)):
        remember_epoch(path, ledger, epoch)
    assert (highest_epoch(path, "L1"), highest_epoch(path, "L2")) == (5, 2)


uses = st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers(1, 12)), max_size=40)


@settings(max_examples=examples(60), deadline=None)
@given(uses)
def test_for_any_order_of_leases_the_lock_obeys_the_highest_of_the_last_ledgers(order: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        known: dict[str, int] = {}  # the last one used stands last
        for ledger, epoch in order:
            stale = known.get(ledger, 0) > epoch
            lock = make(Path(folder), epoch, ledger)
            if stale:
                with pytest.raises(StaleLease):
                    lock.acquire(0.0)
                continue
            lock.acquire(0.0)
            lock.release()
            if known.get(ledger, 0) < epoch:
                known.pop(ledger, None)
                known = dict([*list(known.items())[1 - LEDGERS_KEPT :], (ledger, epoch)])
        path = memory_file(lock_file(Path(folder), SLOT))
        assert (json.loads(path.read_text()) if path.exists() else {}) == known
