"""The node agent's core, without Ray."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.agent import slot_watch as watch_module
from ebbtide.agent.errors import GpuUnreadable
from ebbtide.agent.slot_locks.lock_content import UNKNOWN_HOLDER
from ebbtide.agent.slot_locks.slot_lock import SlotLock, lock_file
from ebbtide.agent.slot_watch import UNLOCKED, ReportLoop, SlotWatch
from ebbtide.client.messages import AgentAnswer, AgentReport, SlotRef
from ebbtide.system import modes
from ebbtide.system.process import boot_id
from tests.platform.agent.conftest import WAIT_S, StartHolder, wait_until

SLOTS = [SlotRef("node0", 0), SlotRef("node0", 1)]


@pytest.fixture
def watch(tmp_path: Path) -> SlotWatch:
    found = SlotWatch("node0", tmp_path)
    found.watch([*SLOTS, SlotRef("elsewhere", 5)])
    return found


def test_a_report_says_who_is_on_each_slot_of_this_node(
    watch: SlotWatch, tmp_path: Path, start_holder: StartHolder
) -> None:
    report = watch.observe()
    assert (report.node, report.boot_id, report.holders) == ("node0", boot_id(), {0: None, 1: None})
    holder = start_holder(tmp_path, 1, "job-a", 5)
    found = watch.observe().holders
    assert found[0] is None and found[1] is not None
    assert (found[1].workload, found[1].epoch, found[1].rank, found[1].pid) == ("job-a", 5, 2, holder.pid)
    holder.kill()
    holder.wait()
    assert watch.observe().holders == {0: None, 1: None}
    watch.watch([SLOTS[1]])
    assert watch.observe().holders == {1: None}
    watch.watch([])
    assert watch.observe().holders == {}


def test_a_deleted_lock_file_stays_watched_until_its_holder_is_gone(
    watch: SlotWatch, tmp_path: Path, start_holder: StartHolder
) -> None:
    holder = start_holder(tmp_path, 0, "job-a")
    first = watch.observe().holders[0]
    lock_file(tmp_path, SLOTS[0]).unlink()
    assert watch.observe().holders[0] == first is not None
    lock_file(tmp_path, SLOTS[0]).touch()
    assert watch.observe().holders[0] == first
    holder.kill()
    holder.wait()
    assert watch.observe().holders[0] is None
    with SlotLock(tmp_path, SLOTS[0], workload="new", epoch=9):
        seen = watch.observe().holders[0]
        assert seen is not None and seen.workload == "new"


def test_what_cannot_be_read_is_not_free(watch: SlotWatch, tmp_path: Path) -> None:
    lock_file(tmp_path, SLOTS[0]).symlink_to(tmp_path / "elsewhere")
    assert watch.observe().holders == {0: UNKNOWN_HOLDER, 1: None}


def test_a_process_without_a_lock_on_a_real_gpu_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modes, "_told", set())
    pids: frozenset[int] | None = frozenset({os.getpid()})
    watch = SlotWatch("node0", tmp_path, gpu_pids=lambda uuid: pids if uuid == "GPU-1" else frozenset())
    watch.watch([SlotRef("node0", 0, "GPU-0"), SlotRef("node0", 1, "GPU-1")])
    found = watch.observe().holders
    assert found[0] is None and found[1] is not None
    assert found[1].workload.startswith(f"{UNLOCKED} (") and found[1].pid == os.getpid()
    assert "ebbtide mode: others on a GPU = GPU-1: a process without the lock of its slot" in capsys.readouterr().err
    assert not watch.kill_holder(1, 99), "only holders of slot locks may be killed"
    pids = None
    assert watch.observe().holders[1] is None


@pytest.mark.proves("a GPU of which the driver does not say who is on it is not free")
def test_a_gpu_of_which_the_driver_does_not_say_who_is_on_it_is_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[frozenset[int] | Exception] = [GpuUnreadable("GPU is lost"), frozenset()]
    asked = []

    def pids(uuid: str) -> frozenset[int]:
        asked.append(uuid)
        answer = answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = SlotWatch("node0", tmp_path, gpu_pids=pids)
    watch.watch([SlotRef("node0", 0, "GPU-0")])
    assert [watch.observe().holders[0] for _ in range(5)] == [UNKNOWN_HOLDER] * 5
    assert asked == ["GPU-0"], "the driver is not asked fifty times a second"
    monkeypatch.setattr(watch_module, "_NVML_EVERY_S", 0.0)
    watch = SlotWatch("node0", tmp_path, gpu_pids=pids)
    watch.watch([SlotRef("node0", 0, "GPU-0")])
    assert watch.observe().holders[0] == UNKNOWN_HOLDER
    answers.pop(0)
    assert watch.observe().holders[0] is None


def test_only_a_holder_of_the_named_epoch_or_an_older_one_is_killed(
    watch: SlotWatch, tmp_path: Path, start_holder: StartHolder
) -> None:
    holder = start_holder(tmp_path, 0, "job-a", 5)
    other = start_holder(tmp_path, 1, "job-b", 1)
    assert not watch.kill_holder(0, 4)
    assert not watch.kill_holder(7, 99)
    assert holder.poll() is None
    assert watch.kill_holder(0, 5)
    assert holder.wait(WAIT_S) == -9
    assert not watch.kill_holder(0, 5)
    assert other.poll() is None


def test_a_process_that_others_claim_holds_the_lock_is_spared(
    watch: SlotWatch, tmp_path: Path, start_holder: StartHolder
) -> None:
    """The content names a living process with another start time: a pid that was used again."""
    holder = start_holder(tmp_path, 0, "job-a", 5)
    path = lock_file(tmp_path, SLOTS[0])
    text = path.read_text()
    started = watch.observe().holders[0]
    assert started is not None
    path.write_text(text.replace(str(started.started), str(started.started + 1)))
    assert not watch.kill_holder(0, 99)
    path.write_text("")
    assert not watch.kill_holder(0, 99)
    assert holder.poll() is None


class Sent:
    """Collects reports, as an arbiter would."""

    def __init__(self) -> None:
        self.reports: list[AgentReport] = []
        self.open = threading.Event()
        self.open.set()
        self.fail = False
        self.answer: AgentAnswer | None = None

    def __call__(self, report: AgentReport) -> AgentAnswer | None:
        assert self.open.wait(WAIT_S)
        if self.fail:
            raise RuntimeError("the arbiter is not well")
        self.reports.append(report)
        return self.answer

    def workloads(self, index: int = 0) -> list[str]:
        """Who was seen on a slot, one after the other."""
        seen = [holder.workload if (holder := one.holders[index]) else "-" for one in self.reports]
        return [who for n, who in enumerate(seen) if n == 0 or seen[n - 1] != who]


@pytest.fixture
def sent(watch: SlotWatch) -> Iterator[Sent]:
    found = Sent()
    loop = ReportLoop(watch, found, every_s=0.2)
    loop.start()
    yield found
    found.open.set()
    loop.stop()


def test_the_state_is_told_again_and_again(sent: Sent) -> None:
    wait_until(lambda: len(sent.reports) >= 3)
    assert sent.workloads() == ["-"]


def test_changes_are_told_at_once(watch: SlotWatch, tmp_path: Path) -> None:
    sent = Sent()
    loop = ReportLoop(watch, sent, every_s=3600.0)
    loop.start()
    try:
        wait_until(lambda: sent.workloads() == ["-"])
        lock = SlotLock(tmp_path, SLOTS[0], workload="mine", epoch=1)
        lock.acquire(0.0)
        wait_until(lambda: sent.workloads() == ["-", "mine"])
        lock.release()
        wait_until(lambda: sent.workloads() == ["-", "mine", "-"])
    finally:
        loop.stop()


def test_a_slow_arbiter_gets_the_newest_state_and_a_failing_one_is_told_again(sent: Sent, tmp_path: Path) -> None:
    wait_until(lambda: len(sent.reports) > 0)
    sent.open.clear()
    for name in ("one", "two", "three"):
        lock = SlotLock(tmp_path, SLOTS[0], workload=name, epoch=1)
        lock.acquire(0.0)
        time.sleep(0.1)  # several looks of the loop; nothing can be seen from outside while it cannot send
        if name != "three":
            lock.release()
    sent.open.set()
    wait_until(lambda: sent.workloads()[-1] == "three")
    assert "two" not in sent.workloads()
    sent.fail = True
    lock.release()
    time.sleep(0.05)
    sent.fail = False
    wait_until(lambda: sent.workloads()[-1] == "-")


def test_a_report_says_after_which_answer_its_look_began(sent: Sent) -> None:
    wait_until(lambda: len(sent.reports) > 0)
    assert sent.reports[0].after is None
    sent.answer = AgentAnswer("a", 7.0)
    wait_until(lambda: sent.reports[-1].after == AgentAnswer("a", 7.0))
    sent.fail = True  # what was heard last stays
    time.sleep(0.3)  # a report or two that nobody takes
    sent.answer, sent.fail = None, False
    told = len(sent.reports)
    wait_until(lambda: len(sent.reports) > told)
    assert sent.reports[-1].after == AgentAnswer("a", 7.0)


def test_an_arbiter_that_needs_a_later_look_has_it_by_the_next_message(watch: SlotWatch) -> None:
    sent = Sent()
    sent.answer = AgentAnswer("a", 7.0, again=True)
    loop = ReportLoop(watch, sent, every_s=3600.0)
    loop.start()
    try:
        wait_until(lambda: len(sent.reports) == 2)
    finally:
        loop.stop()
    assert [one.after for one in sent.reports] == [None, sent.answer]
    assert sent.reports[1].sent_boot_s > sent.reports[0].sent_boot_s
