"""What has come for one endpoint so far, by the second. Pure.

Whoever serves (`queue` as a fluid, `requests` one by one) is asked for the same load, and a gateway tells of what comes
in the same words.
"""

from dataclasses import dataclass

import numpy as np

from ebbtide_simulator.traffic.draws import Load
from ebbtide_simulator.traffic.traces import Array

ARRIVALS_S = 15  # seconds over which arrivals are averaged, as gateways tell of requests at work
STAYS_S = 60  # and how long requests stay
WINDOW_S = 300  # of the worst five minutes


@dataclass(frozen=True, slots=True)
class Served:
    """What a stretch of seconds brought.

    Attributes:
        requests: that arrived.
        late: of those, that were, or will be, answered too late; where requests are played one by one, those of which
            that came out in this stretch.
        done_s: replica-seconds of work.
    """

    requests: float
    late: float
    done_s: float


@dataclass(frozen=True, slots=True)
class AtWork:
    """Requests as gateways tell of them.

    Attributes:
        held: that wait for a replica.
        inflight: at replicas.
        stay_s: mean time at a replica.
        ttft_p90_s: to the first token from there on; 0: there was none.
        tpot_p90_s: between two tokens of an answer; 0: nobody knows.
    """

    held: int
    inflight: int
    stay_s: float
    ttft_p90_s: float
    tpot_p90_s: float = 0.0


class Arrivals:
    """A load, and the second up to which it has been played."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.second = 0  # the next one
        self.last = 0  # the end of the last one in which a request came; 0: none did yet
        self._work_so_far, self._requests_so_far = so_far(load.work_s), so_far(load.requests)

    def go_on(self, until: int) -> tuple[slice, float, float]:
        """To second ``until``: which seconds that are, their requests and their replica-seconds."""
        begin, end = self.second, min(until, len(self.load.work_s))
        self.second = until
        if end <= begin:
            return slice(begin, begin), 0.0, 0.0
        requests = self._requests_so_far[end] - self._requests_so_far[begin]
        if requests:
            self.last = next(
                at for at in range(end, begin, -1) if self._requests_so_far[at] > self._requests_so_far[at - 1]
            )
        return slice(begin, end), requests, self._work_so_far[end] - self._work_so_far[begin]

    def work_before(self, seconds: int) -> list[float]:
        """Replica-seconds that had come at the start of each of so many seconds, and at the end of the last."""
        return self._work_so_far[: seconds + 1]

    def count(self) -> float:
        """Of all requests so far."""
        return self._requests_so_far[min(self.second, len(self._requests_so_far) - 1)]

    def per_s(self, window: int) -> float:
        """Requests that arrived per second, over the last ``window`` seconds."""
        return self._lately(self._requests_so_far, window) / max(1, min(window, self.second))

    def mean_work_s(self, window: int) -> float:
        """Replica-seconds of a request of the last ``window`` seconds; 0: there was none."""
        requests = self._lately(self._requests_so_far, window)
        return self._lately(self._work_so_far, window) / requests if requests else 0.0

    def work_per_s(self, window: int) -> float:
        """Replica-seconds that arrived per second, over the last ``window`` seconds."""
        return self._lately(self._work_so_far, window) / max(1, min(window, self.second))

    def _lately(self, values: list[float], window: int) -> float:
        end = min(self.second, len(values) - 1)
        return values[end] - values[max(0, end - window)]


def so_far(values: Array) -> list[float]:
    """Sums before each one, and after the last."""
    found: list[float] = [0.0, *values.cumsum().tolist()]
    return found


def by_window(load: Load) -> Array:
    """A count for each stretch of `WINDOW_S`, of nothing yet; the first one may be shorter, see `before_first_s`."""
    return np.zeros(len(load.work_s) // WINDOW_S + 2)


def before_first_s(scored_from_s: int) -> int:
    """Seconds that the first stretch lacks, so that one begins with the first second that is scored."""
    return -scored_from_s % WINDOW_S
