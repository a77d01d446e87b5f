"""Leases on a shared directory, without file locks and without trusting any clock but one's own.

``lease_file`` has the files and the steps, ``liveness`` the judgement; this is the thread and the door.

A daemon thread creates the file, beats, and removes it: the owner's own thread never touches the directory, so a server
that hangs blocks nobody. The owner asks `Holding.check` between its steps; that costs no I/O, and a process that was
paused (SIGSTOP, a suspended machine) learns there that it no longer holds. `Holding.confirm` asks the server too, and
is for the step before something becomes visible.

A process that acts on a death (removes an object that a dead reader held) must bury the file *first*, by
`LeaseObserver.bury` (``lease_watch``): then a holder that was only slow finds its file gone.

A lease that is lost stays lost, unless it was made to come back, as readers' are: it is then taken again, under a new
token, as soon as the directory answers. Whoever writes must not have that: others may have followed it.

Not guaranteed: that nobody took a reader for dead before its lease came back. What it read may be gone by then; it
learns that from the next look at it, and not from the lease. And life beyond the GIL: a holder whose Python threads
cannot run for half of ``stale_after_s`` gives up.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from ebbtide.storage.errors import StorageError, Superseded, TransferFailed, TransferTimeout
from ebbtide.storage.files.file_operations import Perform, Steps, carry_out
from ebbtide.storage.files.shared_files import perform
from ebbtide.storage.leases import lease_file
from ebbtide.storage.leases.lease_file import LeaseFile, Note, Pace, Record, checked_name
from ebbtide.storage.leases.liveness import Tenancy

DEFAULT_PACE = Pace()


def boot_time_s() -> float:
    """Seconds since boot, a suspended machine's sleep included: what a holder slept through counts against it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class System:
    """What of the operating system a test may let lie.

    Attributes:
        perform: does one operation on the shared directory; may block.
        holder_clock_s: by which a holder judges itself.
        observer_clock_s: by which it judges others: it stands still while the machine sleeps, since others on the
            same machine then sleep too.
        sleep: of whoever waits for others.
    """

    perform: Perform = perform
    holder_clock_s: Callable[[], float] = boot_time_s
    observer_clock_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL = System()


class Holding:
    """One lease in the hands of its owner; made by `hold` and `claim`. To be used as a context manager, or released."""

    def __init__(
        self, directory: Path, file: LeaseFile, *, who: str, pace: Pace, system: System, comes_back: bool = False
    ) -> None:
        assert file.token or not comes_back, "a number is never used twice"
        self.directory, self.file, self.who, self.pace = directory, file, who, pace
        self._comes_back = comes_back
        self._perform, self._clock_s = system.perform, system.holder_clock_s
        self._pid = os.getpid()
        self._record = Record(uuid4().hex, who, pace.stale_after_s)
        self._changed = threading.Condition()
        self._tenancy = Tenancy(pace.fence_s, self._clock_s())
        self._stopping = False
        self._asked = self._answered = 0
        self._failure: StorageError | None = None
        self._created: Future[str] = Future()
        self._thread = threading.Thread(target=self._live, name=f"lease {file.name}", daemon=True)

    @property
    def lost(self) -> str:
        """Why nothing is held (any more), in words; empty while it is."""
        if os.getpid() != self._pid:
            return f"{self.file.name} is held by process {self._pid}, of which this one is a fork"
        with self._changed:
            self._tenancy = self._tenancy.at(self._clock_s())
            return self._tenancy.lost

    def check(self) -> None:
        """Go on only if this returns. Costs no I/O.

        Raises:
            Superseded: the lease is lost, or was silent for so long that somebody else may have it. It stays so,
                unless it comes back.
        """
        if why := self.lost:
            raise Superseded(
                f"{self.who} no longer holds {self.file.name} in {self.directory}: {why}; leave all as it is"
            )

    def confirm(self) -> None:
        """Like :meth:`check`, after a beat made now: for the step before something becomes visible to others.

        Raises:
            Superseded: see :meth:`check`.
            StorageError: the beat failed, or did not come back in time (``pace.answer_s``): nothing is known.
        """
        self.check()
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()
            answered = self._changed.wait_for(
                lambda: self._answered >= asked or bool(self._tenancy.lost), self.pace.answer_s
            )
            failure = self._failure
        self.check()
        if not answered:
            raise TransferTimeout("write", self.directory / str(self.file), after_s=self.pace.answer_s)
        if failure is not None:
            raise failure

    def say(self, note: Note) -> None:
        """Let others know by the next beat. What was said before is replaced."""
        with self._changed:
            self._record = replace(self._record, note=dict(note))

    def release(self, note: Note | None = None) -> bool:
        """Let go, with a last word to others; does nothing when it is lost.

        Returns:
            Whether that is known to be done; it waits no longer than ``pace.answer_s`` for a slow filesystem.
        """
        if os.getpid() != self._pid:
            return False
        with self._changed:
            if note is not None and not self._stopping:
                self._record = replace(self._record, note=dict(note))
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(self.pace.answer_s)
        return not self._thread.is_alive() and not self._tenancy.lost and self._failure is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _begin(self) -> str:
        """Create the file, and wait for that. Why that failed, or ""."""
        path = self.directory / str(self.file)
        try:
            self._thread.start()
        except RuntimeError as error:  # "can't start new thread": the process or the machine has too many
            raise TransferFailed("create", path, errno=errno.EAGAIN, hint=str(error)) from error
        if not wait([self._created], self.pace.answer_s).done:
            with self._changed:
                self._stopping = True  # once it comes back, the thread removes what it made
            raise TransferTimeout("create", path, after_s=self.pace.answer_s)
        return self._created.result()

    def _live(self) -> None:
        try:
            objection = self._run(lease_file.create(self.directory, self.file, self._record))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._created.set_exception(error)
            return
        self._created.set_result(objection)
        if objection:
            return
        while True:
            while self._wait_for_beat():
                self._beat()
            if self._stopping or not self._comes_back:
                break
            self._come_back()
        with self._changed:
            record, self._failure = self._next_record(), None
            tenancy = self._tenancy.at(self._clock_s())
            # Else the owner may not know it yet, and may be at work still: nobody shall follow before the time.
            if tenancy.taken or (tenancy.lost and not self._stopping):
                return
        try:
            self._run(lease_file.release(self.directory, self.file, record))
        except StorageError as error:
            self._failure = error

    def _wait_for_beat(self) -> bool:
        """Until it is time, or somebody asks; False: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._asked > self._answered, self.pace.beat_s)
            return not self._stopping and not self._tenancy.lost

    def _beat(self) -> None:
        with self._changed:
            asked, record = self._asked, self._next_record()
        began_s = self._clock_s()
        failure, objection = None, ""
        try:
            objection = self._run(lease_file.beat(self.directory, self.file, record))
        except StorageError as error:
            failure = error
        with self._changed:
            ended_s = self._clock_s()
            if failure is None:
                self._tenancy = self._tenancy.beaten(began_s, ended_s, objection)
            else:
                self._tenancy = self._tenancy.failed(str(failure), ended_s)
            self._answered, self._failure = asked, failure
            self._changed.notify_all()

    def _come_back(self) -> None:
        """Try once to hold again. A new token: an observer may be about to bury the old file, and no other."""
        with self._changed:
            before, record = self.file, replace(self._record, token=uuid4().hex, beat=0)
            self._answered = self._asked  # whoever waits for a beat learns that the lease is lost
        file, began_s = LeaseFile(before.name, token=record.token), self._clock_s()
        try:
            objection = self._run(lease_file.create(self.directory, file, record))
        except StorageError as error:
            objection = str(error)
        with self._changed:
            if objection:
                self._tenancy = replace(self._tenancy, trouble=objection)
                return
            self.file, self._record = file, replace(record, note=self._record.note)
            self._tenancy, self._failure = Tenancy(self.pace.fence_s, began_s), None
        with suppress(StorageError):  # it is silent, and buried one day
            self._run(lease_file.release(self.directory, before, record))

    def _next_record(self) -> Record:
        self._record = replace(self._record, beat=self._record.beat + 1)
        return self._record

    def _run(self, steps: "Steps[str] | Steps[None]") -> str:
        return carry_out(steps, self._perform) or ""


def hold(
    directory: Path,
    name: str,
    *,
    who: str,
    pace: Pace = DEFAULT_PACE,
    system: System = REAL,
    comes_back: bool = False,
) -> Holding:
    """Hold ``name`` beside any number of other holders of it.

    Args:
        directory: on the shared filesystem; made with mode 0700 if it is not there.
        name: what is held, such as an object's id.
        who: for people: host, process, purpose.
        comes_back: once lost, take it again until it is released; for who only reads.

    Raises:
        Refused: ``name`` cannot be used.
        StorageError: the file cannot be made, or not in time; nothing is held.
    """
    file = LeaseFile(checked_name(name), token=uuid4().hex)
    holding = Holding(directory, file, who=who, pace=pace, system=system, comes_back=comes_back)
    objection = holding._begin()
    assert not objection, objection
    return holding


def claim(
    directory: Path, name: str, number: int, *, who: str, pace: Pace = DEFAULT_PACE, system: System = REAL
) -> Holding | None:
    """Hold ``name`` alone, as its ``number``-th holder; None: somebody else was first.

    Args: number: one more than the number of a holder that an `LeaseObserver` found released or dead; 1 where it found
    none.

    Raises:
        Refused, StorageError: see `hold`.
    """
    holding = Holding(directory, LeaseFile(checked_name(name), number), who=who, pace=pace, system=system)
    return None if holding._begin() else holding
