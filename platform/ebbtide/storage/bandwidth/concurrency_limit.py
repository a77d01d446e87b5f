"""How many requests to keep in flight: found by trying, since no constant is right for a laptop's disk and for Lustre.

Too few leave the link idle; too many make a shared filesystem slower for all (eight threads per GPU ran four times
slower than four on one Lustre: cudf #17185). The knee between them moves with the load of others.

A limit is judged by what it moves, and a larger one only kept if it is worth its price: 25 % more requests must move
7 % more bytes (``PRICE``). Rounds of requests are compared: at the present limit, one step above, one step below. While
nothing changes, the tries become rare, and cost a per cent or two. If requests take more than twice as long as when the
limit was last judged, it is cut at once in proportion (as gradient limiters do) and judged anew.

On simulated devices whose requests differ by 10 % it keeps 93 % of the throughput or more, and the limit between 0.6
and 1.9 times the knee; it follows a knee that moves within some 1400 requests.

Pure: no clock, no thread; `observe` is told how each request went. One per process and filesystem, across transfers, so
that what was learned stays. Not thread-safe.

Not guaranteed: a fair share among nodes, which do not know of each other; but each stops where more does not help.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from statistics import median

STEP = 1.25  # between two limits that are compared; smaller ones differ less than requests do among themselves
PRICE = 0.3  # exponent: 1.25 ** 0.3 = 1.07; with less, requests that differ by 30 % lead it far above the knee
ROUND_REQUESTS = 16  # in a round, at least
RECENT_REQUESTS = 8  # more than half of them must take longer: a few stragglers are nothing new
FIRST_PAUSE_REQUESTS = 64  # between two tries; doubled while nothing changes
PAUSE_TURNS = 8  # and at least so many times the limit: a try below costs a fifth of its round
LONGEST_PAUSE_REQUESTS = 1024  # 16 GiB of whole chunks
LATER = 2.0  # so many times longer per request means: back off at once
LOWER = 0.75  # less than that of the throughput that was judged means: judge anew
USED = 0.75  # of the limit must have been in flight, or the round says nothing about it


class Phase(Enum):
    """What the present round is for."""

    JUDGING = "what the limit moves"
    ABOVE = "whether more would move more"
    BELOW = "whether less would move as much"
    PAUSING = "whether all is as it was"


@dataclass(frozen=True, slots=True)
class Round:
    """What came of a limit.

    Attributes:
        bytes_per_s: by Little's law: requests in flight, times bytes, by the seconds that they took.
        s_per_byte: of one request.
        used: whether the limit was nearly reached.
    """

    limit: int
    bytes_per_s: float
    s_per_byte: float
    used: bool

    def beats(self, other: "Round") -> bool:
        """Whether its limit is the better one, at the price of its requests."""
        price: float = (self.limit / other.limit) ** PRICE
        return self.bytes_per_s > other.bytes_per_s * price


class Concurrency:
    """Finds the limit.

    Args:
        start, least, most: the limit at first, and its bounds. 64 requests of 16 MiB are a GiB of buffers.
    """

    def __init__(self, *, start: int = 4, least: int = 2, most: int = 64) -> None:
        if not 1 <= least <= start <= most:
            raise ValueError(f"a first limit of {start} does not lie between {least} and {most}, or these are below 1")
        self._least, self._most = least, most
        self._best = self._limit = start
        self._phase = Phase.JUDGING
        self._judged: Round | None = None
        self._growing = True
        self._pause = FIRST_PAUSE_REQUESTS
        self._pause_left = self._settling = 0
        self._recent: deque[float] = deque(maxlen=RECENT_REQUESTS)
        self._begin(start)

    @property
    def limit(self) -> int:
        """How many requests may be in flight now."""
        return self._limit

    def observe(self, nbytes: int, seconds: float, in_flight: int) -> int:
        """Learn from a request that has ended.

        Args:
            nbytes: what it moved; 0 for one that failed.
            seconds: from its beginning to its end.
            in_flight: requests under way when it ended, itself included.

        Returns:
            The limit from now on.
        """
        if self._settling > 0:
            self._settling -= 1  # it was begun under another limit
            return self._limit
        self._requests += 1
        self._bytes += max(0, nbytes)
        self._seconds += max(seconds, 1e-9)
        self._in_flight += max(1, in_flight)
        self._recent.append(max(seconds, 1e-9) / max(1, nbytes))
        if (times := self._longer()) > LATER:
            self._back_off(times)
        elif self._requests >= max(ROUND_REQUESTS, 2 * self._limit):
            self._end(self._round())
        return self._limit

    def _round(self) -> Round:
        in_flight = self._in_flight / self._requests
        s_per_byte = self._seconds / max(1, self._bytes)
        bytes_per_s = in_flight / s_per_byte if self._bytes else 0.0  # requests that all fail move nothing
        return Round(self._limit, bytes_per_s, s_per_byte, in_flight >= USED * self._limit)

    def _longer(self) -> float:
        """How many times longer a byte takes now than when the limit was judged, and than more requests explain."""
        if self._judged is None or len(self._recent) < RECENT_REQUESTS:
            return 1.0
        return median(self._recent) / (self._judged.s_per_byte * max(1.0, self._limit / self._judged.limit))

    def _back_off(self, times: float) -> None:
        """As far as if all of it came from requests that queue; if not, doubling soon finds the way back."""
        self._judged, self._growing, self._pause = None, True, FIRST_PAUSE_REQUESTS
        self._best = max(self._least, int(min(self._best, self._limit) / times))
        self._go(Phase.JUDGING, self._best)

    def _end(self, ended: Round) -> None:
        judged = self._judged
        if self._phase is Phase.JUDGING or judged is None:
            self._judged = ended
            self._try_above()
        elif self._phase is Phase.PAUSING:
            self._pause_left -= self._requests
            if self._pause_left <= 0 or (ended.used and ended.bytes_per_s < LOWER * judged.bytes_per_s):
                self._go(Phase.JUDGING, self._best)
            else:
                self._begin(self._limit)
        elif ended.used and ended.beats(judged):
            self._best, self._judged, self._pause = ended.limit, ended, FIRST_PAUSE_REQUESTS
            if self._phase is Phase.ABOVE:
                self._try_above()
            else:
                self._try_below()
        elif self._phase is Phase.ABOVE and self._growing:
            self._growing = False
            self._try_above()
        elif self._phase is Phase.ABOVE:
            self._try_below()
        else:
            self._rest()

    def _try_above(self) -> None:
        step = 2.0 if self._growing else STEP
        above = min(self._most, max(self._best + 1, int(self._best * step)))
        if above > self._best:
            self._go(Phase.ABOVE, above)
        else:
            self._growing = False
            self._try_below()

    def _try_below(self) -> None:
        below = max(self._least, min(self._best - 1, round(self._best / STEP)))
        if below < self._best:
            self._go(Phase.BELOW, below)
        else:
            self._rest()

    def _rest(self) -> None:
        """Half a step above what was judged best: the knee may lie there, and a whole step was not worth its price."""
        self._pause_left = max(self._pause, PAUSE_TURNS * self._best)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_REQUESTS)
        self._go(Phase.PAUSING, min(self._most, int(self._best * (1 + STEP) / 2)))

    def _go(self, phase: Phase, limit: int) -> None:
        self._phase = phase
        self._begin(limit)

    def _begin(self, limit: int) -> None:
        if limit != self._limit:
            self._settling = 2 * max(limit, self._limit)  # stragglers that were begun before may end after newer ones
            self._recent.clear()
        self._limit = limit
        self._requests, self._bytes, self._seconds, self._in_flight = 0, 0, 0.0, 0
