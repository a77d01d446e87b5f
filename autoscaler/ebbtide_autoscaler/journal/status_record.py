"""The pool's status as a file on the arbiter's node: `ebbtide status` there needs neither Ray nor the arbiter's answer.

Written after every change and once a second, by a thread of its own, and replaced whole. A reader is told how
old it is, by the clock that counts from the machine's boot: nothing that is done to the time of day makes an old record
fresh. A record counts only while the very process that wrote it lives on this machine, and only for the cluster that
the reader means; all else, half a file and another user's too, is as if there were none.

Not guaranteed: that the loop behind it moves. The arbiter answers from the same state if it is asked, and both say what
keeps it still.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.system.process import boot_id, is_alive, started_ticks

FORMAT = 1
EVERY_S = 1.0
CHANGE_S = 0.1  # half a tick: how soon a change is in it
COST_MOST = 0.01  # of a core: a status that takes long to make is written more seldom
# A status of 64 slots takes 2 ms to make and write, of 1,000 slots 42 ms (`benchmarks.commands`). From here on it would
# be old whenever it is read, and the loop would wait for the interpreter: the arbiter is asked then.
DEAR_S = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedStatus:
    """``status``: as the arbiter answers it. ``age_s``: seconds since it was made."""

    status: dict[str, Any]
    age_s: float


@dataclass(frozen=True, slots=True)
class RecordSubject:
    """Whose status it is. ``port``: of the cluster's GCS; two clusters of one machine have different ones."""

    pool: str
    shared_dir: str
    port: str


def subject_of(pool: str, shared_dir: str, address: str) -> RecordSubject:
    """``address``: host:port of the GCS; hosts are written in more ways than one, so the port alone counts."""
    return RecordSubject(pool, shared_dir, address.rpartition(":")[2])


def record_file(folder: Path) -> Path:
    """Where the record lies in the pool's folder of this node."""
    return folder / "status.json"


def read_record(folder: Path, subject: RecordSubject) -> RecordedStatus | None:
    """The last status that the arbiter of ``subject`` left there; None: there is none, or it does not count."""
    try:
        with record_file(folder).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():  # guard: a record of another user does not count
                return None
            found = json.loads(file.read())
        told = (found["format"], found["pool"], found["shared_dir"], found["port"], found["boot"])
        mine = (FORMAT, subject.pool, subject.shared_dir, subject.port, boot_id())
        if told != mine:  # guard: a record of another pool, cluster or boot does not count
            return None
        if not is_alive(int(found["pid"]), int(found["started"])):  # guard: a record of a dead arbiter does not count
            return None
        age_s = _since_boot_s() - float(found["since_boot_s"])
        status = found["status"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    # A time before its own writing: a container whose clock of the boot is set apart. How old it is cannot be told.
    return RecordedStatus(status, age_s) if isinstance(status, dict) and age_s >= 0 else None


def write_record(folder: Path, subject: RecordSubject, status: dict[str, Any], *, since_boot_s: float) -> None:
    """Replace the record.

    Raises:
        OSError: it cannot be written; the last one stays.
    """
    me = os.getpid()
    told = {
        "format": FORMAT,
        "pool": subject.pool,
        "shared_dir": subject.shared_dir,
        "port": subject.port,
        "boot": boot_id(),
        "pid": me,
        "started": started_ticks(me) or 0,
        "since_boot_s": since_boot_s,
        "status": status,
    }
    draft = folder / f".status.{me}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(told, default=str))
    os.replace(draft, record_file(folder))


def pause_s(cost_s: float) -> float:
    """Seconds to wait after a record that took ``cost_s`` of a core."""
    return max(CHANGE_S, cost_s / COST_MOST)


class StatusRecorder:
    """Keeps the record of one arbiter. A status that cannot be made or written costs nothing but the record."""

    def __init__(
        self,
        folder: Path,
        subject: RecordSubject,
        status: Callable[[], dict[str, Any]],
        version: Callable[[], object],
    ) -> None:
        """Args:
        folder: the pool's, on this node.
        subject: whose status it is.
        status: makes it; from any thread.
        version: another object after every change of the pool.
        """
        self._folder, self._subject, self._status, self._version = folder, subject, status, version
        self._lock = threading.Lock()
        self._failed = False
        self._dear = False

    def start(self) -> None:
        """Write it from now on, until this process ends: after every change, and once a second."""
        for draft in self._folder.glob(".status.*"):  # of arbiters that were killed while they wrote
            with suppress(OSError):
                draft.unlink()
        threading.Thread(target=self._run, name="status-record", daemon=True).start()

    def write(self) -> None:
        """Write it now. What a person has asked for is in it before the answer: the next `status` must show it."""
        with self._lock:  # guard: a record that was made later is never replaced by an earlier one
            if self._dear:
                return
            before_s = time.thread_time()
            try:
                made_s = _since_boot_s()
                write_record(self._folder, self._subject, self._status(), since_boot_s=made_s)
                self._failed = False
            except Exception as error:  # noqa: BLE001 - outermost: without a record the arbiter is asked, as elsewhere
                if not self._failed:
                    log.warning("the status cannot be left in %s: %r", self._folder, error)
                self._failed = True
            if time.thread_time() - before_s > DEAR_S:
                self._dear = True
                record_file(self._folder).unlink(missing_ok=True)
                log.info("the status of this pool takes long to make, and is told to those who ask only")

    def _run(self) -> None:
        while not self._dear:
            seen, before_s, began_s = self._version(), time.thread_time(), time.monotonic()
            self.write()
            time.sleep(pause_s(time.thread_time() - before_s))
            while self._version() is seen and time.monotonic() - began_s < EVERY_S:
                time.sleep(CHANGE_S)


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
