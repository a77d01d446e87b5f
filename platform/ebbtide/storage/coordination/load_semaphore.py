"""A bound on how many replicas of a pool load cold weights at once, agreed on through the shared directory alone.

More loaders than the filesystem can feed only share its bandwidth: all finish late, where one after the other the first
would serve long before. L slots are exclusive leases ``loader-0`` to ``loader-<L-1>`` (`lease_holder`); whoever finds
none free lays down a numbered lease and is let in when no more wait before it than slots are free. A loader that dies
frees its slot, a waiter that dies its place in the queue, both after their silence.

The bound exists for efficiency and never stops serving: after a deadline, or where the directory cannot be used, one
goes anyway and says why.

Not guaranteed: the exact order of those who come within the same moment, or whose listing of the directory is old; and
that never more than L load: a holder that is taken for dead may only be slow.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage.errors import NoRoom, StorageError, TransferFailed
from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.lease_holder import REAL, Holding, System, claim, hold
from ebbtide.storage.leases.lease_watch import LeaseObserver
from ebbtide.storage.leases.liveness import Sighting

_SLOT = "loader-"
_WAITING = "waiting-"
# A load takes ten seconds to minutes; who died should not keep others for longer than that.
LOADER_PACE = Pace(beat_s=2.0, stale_after_s=20.0, answer_s=5.0)
_NO_USE_WAITING = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """How one takes part.

    Attributes:
        who: for people: endpoint, host, process.
        slots: how many may load at once, by this one's configuration.
        deadline_s: after which one goes anyway.
    """

    who: str
    slots: int
    deadline_s: float
    pace: Pace = LOADER_PACE
    system: System = field(default=REAL)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"{self.slots} loaders at once would let nobody serve; give 1 at least")


@dataclass(frozen=True, slots=True)
class Place:
    """The right to load.

    Attributes:
        slot: which; None: it goes without one.
        why: why without one, in words; empty otherwise.
        waited_s: for how long it stood in the queue.
    """

    slot: int | None
    why: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class LoadTicket:
    """A place in the queue: by number, then by token."""

    number: int
    token: str


@dataclass(frozen=True, slots=True)
class Roster:
    """What a look tells.

    Attributes:
        free: slots that can be claimed, each with the number that its next holder has.
        busy: who has the others.
        queue: who waits, in order.
    """

    free: tuple[tuple[int, int], ...]
    busy: tuple[str, ...]
    queue: tuple[LoadTicket, ...]

    def open_to(self, ticket: LoadTicket | None) -> tuple[tuple[int, int], ...]:
        """The free slots that it may try now, the best first; without a ticket only if nobody waits."""
        ahead = self.ahead_of(ticket)
        return self.free[ahead:] + self.free[:ahead] if ahead < len(self.free) else ()

    def ahead_of(self, ticket: LoadTicket | None) -> int:
        """How many wait before it."""
        if ticket is None:
            return len(self.queue)
        return sum((one.number, one.token) < (ticket.number, ticket.token) for one in self.queue)

    def why(self, ticket: LoadTicket | None) -> str:
        """Why it has to wait."""
        return f"{len(self.busy)} load ({', '.join(self.busy[:4])}), {self.ahead_of(ticket)} wait before"


def survey(sightings: Sequence[Sighting], slots: int, is_dead: Callable[[Sighting], bool]) -> Roster:
    """Make out of files who loads and who waits. Pure."""
    free = {slot: 1 for slot in range(slots)}
    busy: list[str] = []
    queue: list[LoadTicket] = []
    for sighting in sightings:
        file, record = sighting.file, sighting.record
        gone = is_dead(sighting) or (record is not None and record.released)
        if file.token and file.name.startswith(_WAITING) and not gone:
            number = file.name.removeprefix(_WAITING)
            queue.append(LoadTicket(int(number) if number.isdigit() else 0, file.token))
        elif file.number and file.name.removeprefix(_SLOT).isdigit() and file.name.startswith(_SLOT):
            slot = int(file.name.removeprefix(_SLOT))
            if gone and slot in free:
                free[slot] = file.number + 1
            elif not gone:
                free.pop(slot, None)
                busy.append(record.who if record else "somebody")
    queue.sort(key=lambda ticket: (ticket.number, ticket.token))
    return Roster(tuple(sorted(free.items())), tuple(busy), tuple(queue))


@contextmanager
def loading(directory: Path, terms: LoadTerms, *, on_wait: Callable[[str], None] | None = None) -> Iterator[Place]:
    """Wait for one's turn, and have it until the context ends.

    Args:
        directory: of the pool, on the shared filesystem; made if it is not there.
        on_wait: told why one waits, about once per beat; what it raises ends the wait.

    Yields:
        At the latest after ``deadline_s``, or two ``pace.answer_s`` later where the directory hangs.
    """
    place, holding = _Entrant(directory, terms, on_wait).wait()
    with ExitStack() as stack:
        if holding is not None:
            stack.enter_context(holding)
        yield place


class _Entrant:
    """One process's way to a slot."""

    def __init__(self, directory: Path, terms: LoadTerms, on_wait: Callable[[str], None] | None) -> None:
        self._directory, self._terms, self._on_wait = directory, terms, on_wait
        self._clock_s = terms.system.observer_clock_s
        self._observer = LeaseObserver(directory, pace=terms.pace, system=terms.system)
        self._ticket: Holding | None = None
        self._number = 0

    def wait(self) -> tuple[Place, Holding | None]:
        began_s = self._clock_s()
        try:
            while True:
                why, final = "", False
                try:
                    slot, holding, why = self._try()
                    if holding is not None:
                        return Place(slot, "", self._clock_s() - began_s), holding
                except StorageError as error:
                    why = f"cannot tell who loads: {error}"
                    final = isinstance(error, NoRoom) or getattr(error, "errno", 0) in _NO_USE_WAITING
                left_s = began_s + self._terms.deadline_s - self._clock_s()
                if final or left_s <= 0:
                    waited_s = self._clock_s() - began_s
                    return Place(None, f"goes without a slot after {waited_s:.3g} s: {why}", waited_s), None
                if self._on_wait is not None:
                    self._on_wait(why)
                self._terms.system.sleep(min(self._terms.pace.beat_s, left_s))
        finally:
            if self._ticket is not None:
                self._ticket.release()

    def _try(self) -> tuple[int, Holding | None, str]:
        """Which slot was had, its lease, or why there is none."""
        terms = self._terms
        roster = survey(self._look(), terms.slots, self._observer.is_dead)
        ticket = LoadTicket(self._number, self._ticket.file.token) if self._ticket else None
        for slot, number in roster.open_to(ticket):
            holding = claim(
                self._directory, f"{_SLOT}{slot}", number, who=terms.who, pace=terms.pace, system=terms.system
            )
            if holding is not None:
                return slot, holding, ""
        if self._ticket is None:
            self._number = max((one.number for one in roster.queue), default=0) + 1
            name = f"{_WAITING}{self._number:09d}"
            self._ticket = hold(self._directory, name, who=terms.who, pace=terms.pace, system=terms.system)
        return -1, None, roster.why(ticket)

    def _look(self) -> Sequence[Sighting]:
        try:
            sightings = self._observer.look()
        except TransferFailed as error:
            if error.errno != errno.ENOENT:
                raise
            return ()  # nobody has loaded yet; the first claim makes the directory
        for sighting in sightings:
            if sighting.file.token and self._observer.is_dead(sighting):
                self._observer.bury(sighting)
        return sightings
