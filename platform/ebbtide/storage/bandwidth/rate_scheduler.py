"""Who may move how many bytes when, on one node and one filesystem.

Pure: a book and a question in, a book and an answer out.

*Priority, nearly strict.* While a higher class has asked within ``quiet_s``, a lower one gets only its guaranteed share
of the budget, so that nothing starves: a serve load has all of the link but 17 %, and a checkpoint that is being
written goes on. When the higher classes are quiet, a lower one gets all.

*Budget.* One token bucket in bytes. A guaranteed share that is due goes first and may put the bucket into debt; it is
then told to start when the debt is paid. So the bytes that start within any span of time are at most what the budget
gives in it and one burst.

*Fair among the transfers of a class*, by bytes and whatever their number of threads: none that others wait for is more
than one burst ahead of the least served (start-time fair queueing, Goyal et al. 1996).

*No budget known.* Then shares are of what the higher classes really move, and one chunk a second is due in any case.

The book holds no queue, so that many processes can share one, and a process that is killed leaves nothing behind that
does not pass by itself: whoever is refused asks again, at the latest after ``ASK_AGAIN_S``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from ebbtide.storage.transport.transport import CHUNK_BYTES

ASK_AGAIN_S = 0.25
FRESH_S = 4 * ASK_AGAIN_S  # a waiting transfer that did not ask for so long has gone
LEAST_BYTES_PER_S = CHUNK_BYTES  # due to a class that is held down where no budget is known
FORGET_S = 60.0
SERVE_LOAD_BURSTS = 4  # 128 MiB, the chunks of eight threads: others of its class wait 60 ms for them at 2 GB/s
UNKNOWN_S = 0.01  # how soon to ask again where what is due depends on what others move


class TrafficClass(Enum):
    """What bytes are moved for, the most urgent first."""

    SERVE_LOAD = 0  # a replica waits for its weights, and users for it
    CHECKPOINT_WRITE = 1  # until it is done, a crash costs steps
    PREFETCH = 2  # may save time later
    SCRUB = 3  # looks for rot


# Of the budget, while a higher class moves bytes: at 5 GB/s, 10 % write 30 GB of a checkpoint in a minute, and a scrub
# at 2 % still sees 8 TB a day.
SHARES: Mapping[TrafficClass, float] = MappingProxyType(
    {TrafficClass.CHECKPOINT_WRITE: 0.10, TrafficClass.PREFETCH: 0.05, TrafficClass.SCRUB: 0.02}
)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one node may take of one filesystem.

    Attributes:
        bytes_per_s: of all classes together; None: unknown.
        quiet_s: how long after its last request a class still holds lower ones down. 1 s: a load's requests come every
            few milliseconds, and a pause of its reader (a copy to the device, a compilation) is no reason to let go.
        shares: of ``bytes_per_s``, what a lower class gets even then.
    """

    bytes_per_s: float | None
    quiet_s: float = 1.0
    shares: Mapping[TrafficClass, float] = field(default_factory=lambda: SHARES)

    def __post_init__(self) -> None:
        if self.bytes_per_s is not None and not 0 < self.bytes_per_s < math.inf:
            raise ValueError(f"a budget of {self.bytes_per_s} bytes/s cannot be kept; give a positive number, or None")
        if (
            not all(self.shares.get(kind, 0.0) > 0 for kind in TrafficClass if kind.value)
            or sum(self.shares.values()) >= 1
        ):
            raise ValueError("each lower class needs a share above 0, or it could starve; together below 1")

    @property
    def burst_bytes(self) -> int:
        """The most that may start at once: what is missed where a thread oversleeps by 50 ms; two chunks at least."""
        return max(2 * CHUNK_BYTES, int(0.05 * (self.bytes_per_s or 0.0)))

    def ask_bytes(self, kind: TrafficClass) -> int:
        """The most that a class asks for at once: a burst, so that nobody is kept waiting for more.

        Where no budget is known, the highest class keeps nobody waiting but its like, and may ask less often.
        """
        is_first = kind is next(iter(TrafficClass))
        return SERVE_LOAD_BURSTS * self.burst_bytes if is_first and self.bytes_per_s is None else self.burst_bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        transfer: what it belongs to; unique on the node. A transfer asks one thing at a time.
        nbytes: at most `Budget.ask_bytes`.
    """

    kind: TrafficClass
    transfer: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """``granted``: start after ``wait_s``. Otherwise ask again then, or earlier; ``why`` in words.

    ``sharers``: transfers of the class that asked within ``FRESH_S``, this one included.
    """

    granted: bool
    wait_s: float = 0.0
    why: str = ""
    sharers: int = 1


@dataclass(frozen=True, slots=True)
class ClassEntry:
    """What is known of a class: when it asked last, and what is due to it when it is held down."""

    asked_s: float = -math.inf
    credit_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferEntry:
    """What is known of a transfer: its bytes in fair time, whether it was refused last, and when that was."""

    kind: TrafficClass
    fair_bytes: float
    waiting: bool
    asked_s: float


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """All that is remembered. ``tokens`` may be negative: what was promised and has not started."""

    at_s: float
    tokens: float
    classes: Mapping[TrafficClass, ClassEntry]
    transfers: Mapping[str, TransferEntry]

    @classmethod
    def new(cls, budget: Budget, now_s: float) -> "RateSchedule":
        """Nothing has been asked for."""
        return cls(now_s, float(budget.burst_bytes), dict.fromkeys(TrafficClass, ClassEntry()), {})


def take(book: RateSchedule, budget: Budget, ask: Ask, now_s: float) -> tuple[RateSchedule, Answer]:
    """Ask to move bytes.

    Args:
        now_s: of a clock that all who share the book have in common.
    """
    assert 0 < ask.nbytes <= budget.ask_bytes(ask.kind), ask
    book = _settled(book, budget, now_s)
    asking = ClassEntry(now_s, book.classes[ask.kind].credit_bytes)
    book = RateSchedule(book.at_s, book.tokens, {**book.classes, ask.kind: asking}, book.transfers)
    answer = _judge(book, budget, ask, now_s)
    book = _noted(book, budget, ask, answer, now_s)
    return book, replace(answer, sharers=_sharers(book, ask.kind, now_s))


def leave(book: RateSchedule, transfer: str) -> RateSchedule:
    """A transfer has ended."""
    return replace(book, transfers={name: entry for name, entry in book.transfers.items() if name != transfer})


def _judge(book: RateSchedule, budget: Budget, ask: Ask, now_s: float) -> Answer:
    rate, entry = budget.bytes_per_s, book.classes[ask.kind]
    behind = _least_served(book, ask, now_s)
    if behind is not None and (ahead := _fair_bytes(book, ask, now_s) - behind - budget.burst_bytes) > 0:
        return Answer(False, ahead / rate if rate else UNKNOWN_S, "others of its class are behind")
    higher, quiet_in_s = _held_down_by(book, budget, ask.kind, now_s)
    if higher is None:
        if rate is None or book.tokens >= ask.nbytes:
            return Answer(True)
        return Answer(False, (ask.nbytes - book.tokens) / rate, f"the budget of {rate / 1e9:.3g} GB/s is used up")
    if entry.credit_bytes >= ask.nbytes:
        return Answer(True, max(0.0, (ask.nbytes - book.tokens) / rate) if rate else 0.0)
    due_s = (ask.nbytes - entry.credit_bytes) / _due_bytes_per_s(budget, ask.kind) if rate else UNKNOWN_S
    left = f"{budget.shares[ask.kind]:.0%} of {f'{rate / 1e9:.3g} GB/s' if rate else 'its bytes'}"
    return Answer(False, min(due_s, quiet_in_s), f"{higher.name} comes first: {left} are left for {ask.kind.name}")


def _noted(book: RateSchedule, budget: Budget, ask: Ask, answer: Answer, now_s: float) -> RateSchedule:
    """After an answer."""
    moved = ask.nbytes if answer.granted else 0
    fair_bytes = _fair_bytes(book, ask, now_s) + moved
    entry = TransferEntry(ask.kind, fair_bytes, waiting=not answer.granted, asked_s=now_s)
    transfers = {**book.transfers, ask.transfer: entry}
    classes = dict(book.classes)
    if _held_down_by(book, budget, ask.kind, now_s)[0] is not None:
        classes[ask.kind] = _credited(classes[ask.kind], -moved, budget)
    if budget.bytes_per_s is None:
        for kind, share in budget.shares.items():
            if kind.value > ask.kind.value:
                classes[kind] = _credited(classes[kind], share * moved, budget)
    return RateSchedule(book.at_s, book.tokens - moved, classes, transfers)


def _credited(entry: ClassEntry, nbytes: float, budget: Budget) -> ClassEntry:
    return ClassEntry(entry.asked_s, min(budget.burst_bytes, entry.credit_bytes + nbytes))


def _due_bytes_per_s(budget: Budget, kind: TrafficClass) -> float:
    """To a class that is held down, by time alone."""
    if budget.bytes_per_s is None:
        return LEAST_BYTES_PER_S
    return budget.shares.get(kind, 0.0) * budget.bytes_per_s


def _settled(book: RateSchedule, budget: Budget, now_s: float) -> RateSchedule:
    """As of now: tokens and credits have grown, who has not been heard of is forgotten."""
    passed_s = now_s - book.at_s
    if passed_s < 0:
        return RateSchedule.new(budget, now_s)  # of an earlier boot
    rate, burst = budget.bytes_per_s or 0.0, budget.burst_bytes
    classes = {
        kind: _credited(entry, _due_bytes_per_s(budget, kind) * passed_s, budget)
        for kind, entry in book.classes.items()
    }
    transfers = {name: entry for name, entry in book.transfers.items() if now_s - entry.asked_s < FORGET_S}
    tokens = min(float(burst), book.tokens + rate * passed_s) if rate else float(burst)
    return RateSchedule(now_s, tokens, classes, transfers)


def _held_down_by(
    book: RateSchedule, budget: Budget, kind: TrafficClass, now_s: float
) -> tuple[TrafficClass | None, float]:
    """The highest class above that is not quiet, and after how many seconds all above will be, if nobody asks."""
    loud = [
        (above, book.classes[above].asked_s + budget.quiet_s - now_s)
        for above in TrafficClass
        if above.value < kind.value and book.classes[above].asked_s + budget.quiet_s > now_s
    ]
    return (loud[0][0], max(left_s for _, left_s in loud)) if loud else (None, 0.0)


def _sharers(book: RateSchedule, kind: TrafficClass, now_s: float) -> int:
    return sum(entry.kind is kind and now_s - entry.asked_s < FRESH_S for entry in book.transfers.values())


def _least_served(book: RateSchedule, ask: Ask, now_s: float) -> float | None:
    """In fair time, of the other transfers of the class that wait; None: none does."""
    return min(
        (
            entry.fair_bytes
            for name, entry in book.transfers.items()
            if name != ask.transfer and entry.kind is ask.kind and entry.waiting and now_s - entry.asked_s < FRESH_S
        ),
        default=None,
    )


def _fair_bytes(book: RateSchedule, ask: Ask, now_s: float) -> float:
    """Of the asking transfer. One that is new, or was away, begins where the least served is: idling earns nothing."""
    others = [
        entry.fair_bytes
        for name, entry in book.transfers.items()
        if name != ask.transfer and entry.kind is ask.kind and now_s - entry.asked_s < FRESH_S
    ]
    known = book.transfers.get(ask.transfer)
    if known is not None and now_s - known.asked_s < FRESH_S:
        return known.fair_bytes
    return max(known.fair_bytes if known else 0.0, min(others, default=0.0))
