"""Single flight: of all processes on all nodes that want one thing made, one makes it, and the others watch.

The leader holds the newest attempt's claim (`lease_holder`, `lease_file`) and says in its beats how far it has come.
The others read that. If the leader dies, exactly one of them takes over with the next attempt's number;
`flight_machine` decides.

What is made must become visible in one step that does no harm when it comes late or twice: a rename onto a name that
must be free, of a name that says the attempt while it is in the making. The leader calls `Leading.check` between its
steps and `Leading.confirm` right before the step that publishes. A process may still be paused between that and the
publishing itself, and publish after somebody else did; no file server offers to prevent it.

Not guaranteed: that nothing is made twice where ``look`` is told by a cache that there is nothing (a negative lookup on
NFS, up to 60 s) to somebody who came after the work was done.
"""

import errno
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from ebbtide.storage.coordination import flight_states as word
from ebbtide.storage.coordination.flight_machine import BEGIN, Limits, advance
from ebbtide.storage.coordination.flight_progress import TOLD, Progress, as_seen, progress_of
from ebbtide.storage.errors import StorageError, Superseded, TransferFailed, WaitTimeout
from ebbtide.storage.files.shared_files import Bounded
from ebbtide.storage.leases.lease_file import Note, Pace
from ebbtide.storage.leases.lease_holder import DEFAULT_PACE, REAL, Holding, System, claim
from ebbtide.storage.leases.lease_watch import LeaseObserver
from ebbtide.storage.leases.liveness import Sighting

T = TypeVar("T")

# A claim that fails so will fail again: this node may not write there.
_HOPELESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a process waits; ``progress`` if it waits for a leader at work."""

    why: str
    waited_s: float
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """How one takes part.

    Attributes:
        who: for people: host, process, purpose.
        deadline_s: how long to wait for others, looking included; one's own work has deadlines of its own.
        tries: attempts, of whomever, after which one gives up, from one's own arrival on. 8: with their pauses four
            minutes, longer than a server's failover; and work that kills its process does not kill all.
        settle_s: how long a result that is said to be there may stay hidden; 60 s is NFS's default ``acdirmax``.
        pace: of the leader's beats; the same for all.
    """

    who: str
    deadline_s: float
    tries: int = 8
    settle_s: float = 60.0
    pace: Pace = DEFAULT_PACE
    system: System = REAL


class Leading:
    """The right to do the work, given to it."""

    def __init__(self, holding: Holding, attempt: int, failures: int) -> None:
        self.attempt, self.failures = attempt, failures
        self._holding = holding

    def check(self) -> None:
        """Call between steps. Costs no I/O.

        Raises:
            Superseded: somebody else may be at it by now: leave everything as it is, and let this through.
        """
        self._holding.check()

    def confirm(self) -> None:
        """Call right before what becomes visible to others; one round trip to the server.

        Raises:
            Superseded: see :meth:`check`.
            StorageError: the server did not answer.
        """
        self._holding.confirm()

    def report(self, phase: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Let the others know how far it is; cheap, goes with the next beat."""
        note: Note = {"phase": phase, "done_bytes": done_bytes, "total_bytes": total_bytes, "failures": self.failures}
        self._holding.say(note)


def run_single_flight(
    directory: Path,
    key: str,
    *,
    work: Callable[[Leading], T],
    look: Callable[[], T | None],
    terms: Terms,
    on_wait: Callable[[Waiting], None] | None = None,
) -> T:
    """Have the thing made once, by whomever, and return it.

    Args:
        directory: of all flights of one kind, on the shared filesystem.
        key: which thing; any text.
        work: makes it and returns it, never None; see `Leading` for what it owes to others.
        look: the finished thing, or None.
        on_wait: told why one waits, about once per beat; what it raises ends the wait.

    Raises:
        WaitTimeout: nobody finished before the deadline, or within ``tries`` attempts.
        Refused, NoRoom, NotPublished: of one's own work, or as another's work met it.
        TransferFailed: this node cannot write to ``directory``.
        Exception: what else ``work`` or ``look`` raised here; another `StorageError` of ``work`` only after ``tries``.
    """
    return _Flight(directory, key, work, look, terms, on_wait).run()


class _Flight(Generic[T]):
    """The hands of `flight_machine`."""

    def __init__(
        self,
        directory: Path,
        key: str,
        work: Callable[[Leading], T],
        look: Callable[[], T | None],
        terms: Terms,
        on_wait: Callable[[Waiting], None] | None,
    ) -> None:
        self._directory, self._key, self._name = directory, key, file_name(key)
        self._work, self._look, self._terms, self._on_wait = work, look, terms, on_wait
        self._clock_s, self._sleep = terms.system.observer_clock_s, terms.system.sleep
        self._observer = LeaseObserver(directory, name=self._name, pace=terms.pace, system=terms.system)
        self._bounded = Bounded()
        self._began_s = self._clock_s()
        until_s = self._began_s + terms.deadline_s
        self._limits = Limits(until_s, terms.pace.beat_s, terms.settle_s, terms.tries)
        self._holding: Holding | None = None
        self._result: T | None = None
        self._error: StorageError | None = None
        self._seen: Sighting | None = None

    def run(self) -> T:
        known, instruction = BEGIN
        try:
            while not isinstance(instruction, word.Return):
                event = self._follow(instruction)
                known, instruction = advance(known, event, self._clock_s(), self._limits)
        except BaseException as error:
            self._let_go({"outcome": "failed", "error": f"{type(error).__name__}: {error}"})
            raise
        self._let_go({"outcome": "done"})
        assert self._result is not None
        return self._result

    def _follow(self, instruction: word.Instruction) -> word.Event:
        match instruction:
            case word.Look():
                left_s = max(self._terms.pace.answer_s, self._limits.until_s - self._clock_s())
                self._result = self._bounded("look for", self._key, left_s, self._look)
                return word.Looked(self._result is not None)
            case word.Read():
                return self._read(instruction.at_least)
            case word.Claim():
                return self._claim(instruction.number)
            case word.Work():
                return self._lead(instruction.failures)
            case word.Pause():
                return self._pause(instruction)
            case _:
                self._raise(instruction)

    def _read(self, at_least: int) -> word.Event:
        try:
            sightings = self._observer.look(at_least)
        except TransferFailed as error:
            if error.errno == errno.ENOENT and not at_least:
                return word.Seen(0, word.Standing.NONE)  # whoever claims first makes the directory
            return word.Unreadable(str(error))
        self._seen = sightings[0] if sightings else None
        if self._seen is None:
            return word.Seen(0, word.Standing.NONE)
        return as_seen(self._seen, dead=self._observer.is_dead(self._seen))

    def _claim(self, number: int) -> word.Event:
        terms = self._terms
        try:
            self._holding = claim(
                self._directory, self._name, number, who=terms.who, pace=terms.pace, system=terms.system
            )
        except StorageError as error:
            self._error = error
            hopeless = isinstance(error, TransferFailed) and error.errno in _HOPELESS
            return word.NotClaimable(str(error), hopeless)
        return word.Taken() if self._holding is None else word.Claimed()

    def _lead(self, failures: int) -> word.Event:
        assert self._holding is not None
        leading = Leading(self._holding, self._holding.file.number, failures)
        try:
            self._result = self._work(leading)
        except Superseded:
            if not self._holding.lost:
                raise  # not of this claim
            self._let_go({})
            return word.Lost()
        except StorageError as error:
            self._error = error
            told = next((name for name, kind in TOLD.items() if isinstance(error, kind)), None)
            outcome = "refused" if told else "failed"
            self._let_go({"outcome": outcome, "kind": told, "failures": failures + 1, "error": str(error)})
            return word.Erred(final=told is not None)
        return word.Worked()

    def _pause(self, pause: word.Pause) -> word.Event:
        if self._on_wait is not None:
            progress = progress_of(self._seen) if self._seen else None
            self._on_wait(Waiting(pause.why, self._clock_s() - self._began_s, progress))
        self._sleep(pause.seconds)
        return word.Elapsed()

    def _let_go(self, outcome: Note) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.release(outcome)

    def _raise(self, instruction: word.Instruction) -> NoReturn:
        after_s = self._clock_s() - self._began_s
        match instruction:
            case word.RaiseOwnError():
                assert self._error is not None
                raise self._error
            case word.RaiseLeadersError():
                assert self._seen is not None and self._seen.record is not None
                raise TOLD[str(self._seen.record.note["kind"])](instruction.what)
            case word.GiveUp():
                raise WaitTimeout(f"waiting for {self._key}", why=instruction.why, after_s=after_s) from self._error
        raise AssertionError(instruction)


def file_name(key: str) -> str:
    """What the files of a key's attempts are called: readable, and different for different keys."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", key).lstrip(".-")[:60]
    return f"{readable or '_'}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
