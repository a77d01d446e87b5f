"""Watches the slot locks of one node and tells about them; the node agent without Ray.

A slot is reported free only if nobody holds its lock and, where there is a real GPU, NVML sees no process on it. What
cannot be read is reported as held by "unknown": free is a proof, held is the absence of one.

A lock file that somebody deletes while it is held stays watched through its open descriptor until its holder is gone.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ebbtide.agent.errors import GpuUnreadable, LockDirUnusable
from ebbtide.agent.slot_locks.lock_content import UNKNOWN_HOLDER
from ebbtide.agent.slot_locks.slot_lock import holder_of, lock_file
from ebbtide.client.messages import AgentAnswer, AgentReport, LockHolder, NodeCapabilities, SlotRef
from ebbtide.system.modes import Place, took
from ebbtide.system.process import boot_id, command_of, kill_exactly, started_ticks

POLL_S = 0.02  # one look costs some 15 us per slot (measured); this is its share in the time of a hand-over
REPORT_EVERY_S = 1.0
_NVML_EVERY_S = 1.0  # of a GPU that was found empty; asking costs up to a millisecond
UNLOCKED = "process without a slot lock"
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    slot: SlotRef
    path: Path
    files: dict[tuple[int, int], int] = field(default_factory=dict)  # (device, inode) -> open descriptor
    empty_until_s: float = 0.0  # NVML found it empty; not asked again before this time
    unread_until_s: float = 0.0  # NVML did not say; the same


class SlotWatch:
    """The slots of one node. Safe to use from several threads."""

    def __init__(
        self,
        node: str,
        lock_dir: Path,
        *,
        gpu_pids: Callable[[str], frozenset[int] | None] = lambda _uuid: None,
        uuid_of: Callable[[int], str] = lambda _index: "",
        means: Callable[[], NodeCapabilities] = NodeCapabilities,
        code: str = "",
    ) -> None:
        self._node, self._lock_dir, self._gpu_pids, self._uuid_of = node, lock_dir, gpu_pids, uuid_of
        self._means, self._code = means, code
        self._boot_id = boot_id()
        self._watched: dict[int, _Watched] = {}
        self._lock = threading.Lock()

    def watch(self, slots: Iterable[SlotRef]) -> None:
        """From now on watch exactly these slots; those of other nodes are left out.

        Their uuids are found out here: what the caller says of them counts only where this node knows of none.
        """
        wanted = {slot.index: self._identified(slot) for slot in slots if slot.node == self._node}
        with self._lock:
            for index in [index for index, one in self._watched.items() if wanted.get(index) != one.slot]:
                for fd in self._watched.pop(index).files.values():
                    os.close(fd)
            for index in wanted.keys() - self._watched.keys():
                slot = wanted[index]
                self._watched[index] = _Watched(slot, lock_file(self._lock_dir, slot))

    def _identified(self, slot: SlotRef) -> SlotRef:
        return replace(slot, uuid=self._uuid_of(slot.index) or slot.uuid)

    def observe(self, after: AgentAnswer | None = None) -> AgentReport:
        """Who sits on the watched slots now, when ``after`` has come in already."""
        with self._lock:
            holders = {index: self._holder(one) for index, one in sorted(self._watched.items())}
            uuids = {index: one.slot.uuid for index, one in self._watched.items() if one.slot.uuid}
            means = self._means()
        sent_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return AgentReport(self._node, self._boot_id, holders, sent_boot_s, uuids, means, after, self._code)

    def kill_holder(self, index: int, epoch_at_most: int) -> bool:
        """SIGKILL the process that holds the slot's lock, if its lease epoch is not above ``epoch_at_most``.

        Returns whether a signal was sent: not to a holder with a newer lease, nor to one that has not said who it is,
        nor to any process but the one that wrote its pid and start time.
        """
        with self._lock:
            one = self._watched.get(index)
            holder = self._lock_holder(one) if one is not None else None
            if holder is None or holder.pid == 0 or holder.epoch > epoch_at_most:
                return False
            killed = kill_exactly(holder.pid, holder.started)
        _log.warning("kill holder of %s:%d: %s: %s", self._node, index, holder, "sent" if killed else "gone")
        return killed

    def _holder(self, one: _Watched) -> LockHolder | None:
        try:
            holder = self._lock_holder(one)
        except LockDirUnusable as error:
            _log.error("%s", error)
            return UNKNOWN_HOLDER
        if holder is not None:
            one.empty_until_s = 0.0
            return holder
        now_s = time.monotonic()
        if now_s < one.empty_until_s:
            return None
        if now_s < one.unread_until_s:
            return UNKNOWN_HOLDER
        try:
            pids = self._gpu_pids(one.slot.uuid) if one.slot.uuid else None
        except GpuUnreadable as error:  # guard: a GPU of which the driver does not say who is on it is not free
            if not one.unread_until_s:
                _log.error("%s", error)
            one.unread_until_s = now_s + _NVML_EVERY_S
            return UNKNOWN_HOLDER
        one.unread_until_s = 0.0
        if pids:
            took(Place.OTHERS, f"{one.slot.uuid}: a process without the lock of its slot, which is not free")
            pid = min(pids)
            return LockHolder(_unlocked(pid), epoch=0, pid=pid, started=started_ticks(pid) or 0)
        one.empty_until_s = now_s + _NVML_EVERY_S
        return None

    def _lock_holder(self, one: _Watched) -> LockHolder | None:
        """The holder of any file that was seen under the slot's name; forgets deleted ones once they are free."""
        current = _open_current(one)
        found: LockHolder | None = None
        for key, fd in list(one.files.items()):
            holder = holder_of(fd)
            found = found or holder
            if holder is None and key != current:
                os.close(one.files.pop(key))
        return found


class ReportLoop:
    """Looks at the slots all the time and sends a report on each change and once a second.

    Looking never waits for sending: of several reports that wait for a slow arbiter only the newest is sent. Each says
    after which answer it looked; when the arbiter needs a later look than that, it has one by the next message.
    """

    def __init__(
        self,
        watch: SlotWatch,
        send: Callable[[AgentReport], AgentAnswer | None],
        *,
        poll_s: float = POLL_S,
        every_s: float = REPORT_EVERY_S,
    ) -> None:
        self._watch, self._send = watch, send
        self._poll_s, self._every_s = poll_s, every_s
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._newest: AgentReport | None = None
        self._answer: AgentAnswer | None = None
        self._threads = [
            threading.Thread(target=self._look, name="slot-watch", daemon=True),
            threading.Thread(target=self._deliver, name="slot-report", daemon=True),
        ]

    def start(self) -> None:
        """Begin, in two daemon threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; waits for the look that is under way, not for a report."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._threads[0].join()

    def _look(self) -> None:
        last: AgentReport | None = None
        while not self._stopping.wait(self._poll_s):
            report = self._watch.observe(self._answer)
            due = last is None or report.sent_boot_s - last.sent_boot_s >= self._every_s
            if due or last is None or (report.holders, report.uuids) != (last.holders, last.uuids):
                last = report
                with self._changed:
                    self._newest = report
                    self._changed.notify_all()

    def _deliver(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest or self._stopping.is_set())
                if self._stopping.is_set():
                    return
                report, self._newest = self._newest, None
            assert report is not None
            try:
                if self._told(report).again:
                    self._told(self._watch.observe(self._answer))
            except Exception:  # noqa: BLE001 - see below
                # The outermost loop: a report is lost, the next one says the whole state again.
                _log.exception("the report about node %s could not be sent", report.node)

    def _told(self, report: AgentReport) -> AgentAnswer:
        """The answer; one that asks for nothing if there is none."""
        answer = self._send(report)
        if answer is None:
            return AgentAnswer("", 0.0)
        self._answer = answer
        return answer


def _unlocked(pid: int) -> str:
    command = command_of(pid)
    return f"{UNLOCKED} ({command})" if command else UNLOCKED


def _open_current(one: _Watched) -> tuple[int, int] | None:
    """Make sure that the file which now has the slot's name is open; its key, or None if there is none."""
    try:
        there = os.stat(one.path, follow_symlinks=False)
        if (there.st_dev, there.st_ino) in one.files:
            return there.st_dev, there.st_ino
        fd = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LockDirUnusable(f"cannot read {one.path}: {error.strerror}; is its GPU free? unknown") from error
    opened = os.fstat(fd)
    key = (opened.st_dev, opened.st_ino)
    if key in one.files:
        os.close(fd)
    else:
        one.files[key] = fd
    return key
