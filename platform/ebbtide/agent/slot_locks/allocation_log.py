"""The allocation log: every occupant's own word on when it had a slot, and how two occupants would show.

Written by the occupants, never derived from the ledger, so that it can contradict it. A thread writes, because the
directory is on the shared filesystem, which may hang, fill up or vanish: occupants carry on and the log has a gap.
Times are CLOCK_BOOTTIME, comparable between all processes of one node and between nothing else.

A word that the slot is still held replaces the one before it, so that a file grows with what happens and not with time.
One that has grown large is put aside, and the one that was aside before goes; how many files are kept is a matter of
``allocation_log_retention``. A holder whose file was removed notices, and begins another.

Not guaranteed: an occupant that was killed has its last word up to 0.1 s before its end.
"""

import json
import logging
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ebbtide.client.messages import SlotRef
from ebbtide.system.process import started_ticks

HOLDING_EVERY_S = 0.1
_LINE_BYTES = 384  # all lines are padded to it, so that one can replace another; a workload's name has 63 at most
_FILE_BYTES = 256 << 10  # 340 leases: six hours of a rank that parks every minute, and as much again put aside
_CLOSE_PATIENCE_S = 1.0  # a healthy shared filesystem takes milliseconds for one line; a hung one must not hold us
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One occupant's time on one slot, from ``begin_s`` to its last word at ``end_s`` (CLOCK_BOOTTIME)."""

    slot: str
    workload: str
    epoch: int
    pid: int
    begin_s: float
    end_s: float
    released: bool  # False: it was killed, or holds the slot still


class AllocationLog:
    """Notes that this process has a slot, from now on until :meth:`note_released`."""

    def __init__(self, log_dir: Path, slot: SlotRef, *, workload: str, epoch: int) -> None:
        pid = os.getpid()
        self._path = log_dir / f"{slot.node[:8]}-{pid}-{started_ticks(pid) or 0}-{slot.index}.jsonl"
        self._words = {"slot": f"{slot.node}:{slot.index}", "workload": workload, "epoch": epoch, "pid": pid}
        self._notes: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._acquired = self._note("acquired")
        self._notes.put(self._acquired)
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._write, name=f"occupancy-{slot.index}", daemon=True)
        self._thread.start()

    def note_released(self) -> None:
        """Take the time of the release; returns at once."""
        self._notes.put(self._note("released"))
        self._released.set()

    def close(self) -> None:
        """Wait, but not for long, until all is written."""
        self._thread.join(_CLOSE_PATIENCE_S)

    def _note(self, event: str) -> bytes:
        note = {"t": time.clock_gettime(time.CLOCK_BOOTTIME), **self._words, "event": event}
        return json.dumps(note).encode().ljust(_LINE_BYTES - 1) + b"\n"

    def _write(self) -> None:
        fd = -1
        try:
            os.makedirs(self._path.parent, mode=0o700, exist_ok=True)
            fd, at = self._open()
            while not self._released.is_set():
                at = self._drain(fd, at)
                if not self._released.wait(HOLDING_EVERY_S):
                    if os.fstat(fd).st_nlink == 0:  # somebody took us for one that is gone
                        gone, fd = fd, -1
                        os.close(gone)
                        fd, at = self._open()
                        at += os.pwrite(fd, self._acquired, at)
                    os.pwrite(fd, self._note("holding"), at)
            self._drain(fd, at)
        except OSError as error:
            _log.warning("the allocation log %s ends here: %s", self._path, error.strerror)
        finally:
            if fd >= 0:
                os.close(fd)

    def _open(self) -> tuple[int, int]:
        """The file's descriptor, and where to write: behind what this process noted the last time it had the slot."""
        fd = self._open_file()
        at = os.lseek(fd, 0, os.SEEK_END)
        if at < _FILE_BYTES:
            return fd, at
        os.close(fd)
        os.replace(self._path, self._path.with_suffix(".old.jsonl"))
        return self._open_file(), 0

    def _open_file(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _drain(self, fd: int, at: int) -> int:
        """Write what is to stay, and say where the next line goes."""
        while not self._notes.empty():
            at += os.pwrite(fd, self._notes.get(), at)
        return at


def read_occupancies(log_dir: Path) -> list[Occupancy]:
    """All that the occupants wrote, by begin; a half-written last line is left out."""
    found: list[Occupancy] = []
    for path in sorted(log_dir.glob("[!.]*.jsonl")):
        open_by_slot: dict[str, Occupancy] = {}
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            continue  # removed since it was listed
        for line in lines:
            try:
                note = json.loads(line)
                slot, event, now_s = str(note["slot"]), str(note["event"]), float(note["t"])
                fresh = Occupancy(
                    slot, str(note["workload"]), int(note["epoch"]), int(note["pid"]), now_s, now_s, False
                )
            except (ValueError, KeyError, TypeError):
                continue
            known = None if event == "acquired" else open_by_slot.pop(slot, None)
            if event == "acquired" and slot in open_by_slot:
                found.append(open_by_slot.pop(slot))
            begin_s = known.begin_s if known else now_s
            latest = Occupancy(fresh.slot, fresh.workload, fresh.epoch, fresh.pid, begin_s, now_s, event == "released")
            if latest.released:
                found.append(latest)
            else:
                open_by_slot[slot] = latest
        found.extend(open_by_slot.values())
    return sorted(found, key=lambda one: (one.begin_s, one.slot))


def double_occupancy_s(occupancies: Iterable[Occupancy]) -> float:
    """Seconds in which a slot had two occupants or more, summed over slots; 0 is what promise 1 promises."""
    edges: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for occupancy in occupancies:
        edges[occupancy.slot] += [(occupancy.begin_s, 1), (occupancy.end_s, -1)]
    total_s = 0.0
    for of_slot in edges.values():
        occupants, since_s = 0, 0.0
        for at_s, change in sorted(of_slot):  # at equal times an end (-1) comes before a begin
            if occupants >= 2:
                total_s += at_s - since_s
            occupants, since_s = occupants + change, at_s
    return total_s
