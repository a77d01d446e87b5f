"""The requests of one endpoint as a fluid: what waits at the gateway, and who is answered in time. Pure.

So much work arrives each second, and ready replicas take up to their share ``full`` each; the rest waits, first come
first served. A request is late if it must wait for longer than its promised time to the first token; one that finds
replicas that are not full is in time. Within a replica nothing is modelled: that is what ``full`` stands for.

Not guaranteed: what a single long request does to its neighbours. The request-level simulation is for that.
"""

from dataclasses import dataclass

import numpy as np

from ebbtide_autoscaler.simulate.draws import Load
from ebbtide_autoscaler.simulate.engine import Engine
from ebbtide_autoscaler.simulate.traces import Array

FEW = 64  # seconds: with so many arrays begin to pay


@dataclass(frozen=True, slots=True)
class Served:
    """What a stretch of seconds brought.

    Attributes:
        requests: that arrived.
        late: of those, that were, or will be, answered too late.
        done_s: replica-seconds of work.
    """

    requests: float
    late: float
    done_s: float


class Queue:
    """One endpoint's requests, second by second."""

    def __init__(self, load: Load, engine: Engine, ttft_slo_s: float, *, timed: bool = False) -> None:
        """``timed``: it can say afterwards how long each second's requests waited."""
        self._waiting_s: list[float] | None = [] if timed else None  # at the end of each second
        self.backlog_s = 0.0  # replica-seconds that wait
        self.second = 0  # the next one
        self.last = 0  # the end of the last one in which a request came; 0: none did yet
        self._load, self._engine, self._slo_s = load, engine, ttft_slo_s
        self._work_so_far = _so_far(load.work_s)
        self._requests_so_far = _so_far(load.requests)

    def serve(self, until: int, replicas: int) -> Served:
        """Go on to second ``until`` with so many ready replicas."""
        begin, end = self.second, min(until, len(self._load.work_s))
        self.second = until
        rate = replicas * self._engine.full
        if end <= begin:
            return Served(0.0, 0.0, 0.0)
        requests = self._requests_so_far[end] - self._requests_so_far[begin]
        work_s = self._work_so_far[end] - self._work_so_far[begin]
        if requests:
            self.last = next(
                at for at in range(end, begin, -1) if self._requests_so_far[at] > self._requests_so_far[at - 1]
            )
        span = slice(begin, end)
        before_s = self.backlog_s
        late = self._late_of(self._load.work_s[span], self._load.requests[span], rate)
        return Served(requests, late, before_s + work_s - self.backlog_s)

    def _late_of(self, work_s: Array, requests: Array, rate: float) -> float:
        """How many of these come too late; what waits afterwards is kept."""
        if len(work_s) <= FEW:
            return self._late_one_by_one(work_s.tolist(), requests.tolist(), rate)
        # Lindley: what waits is how far the surplus is above its lowest point so far.
        surplus = self.backlog_s + np.cumsum(work_s - rate)
        backlog_s = surplus - np.minimum(np.minimum.accumulate(surplus), 0.0)
        before_s = np.concatenate(([self.backlog_s], backlog_s[:-1]))
        self.backlog_s = float(backlog_s[-1])
        if self._waiting_s is not None:
            self._waiting_s += backlog_s.tolist()
        # Who arrives in a second finds what waited before it and, on average, half of what came with it.
        return float(requests[before_s + work_s / 2 > rate * (self._slo_s + 0.5)].sum() if rate else requests.sum())

    def _late_one_by_one(self, work_s: list[float], requests: list[float], rate: float) -> float:
        """The same; quicker for a few seconds than arrays are."""
        waits_s, late, most_s = self.backlog_s, 0.0, rate * (self._slo_s + 0.5)
        for here_s, count in zip(work_s, requests, strict=True):
            if not rate or waits_s + here_s / 2 > most_s:
                late += count
            waits_s = max(0.0, waits_s + here_s - rate)
            if self._waiting_s is not None:
                self._waiting_s.append(waits_s)
        self.backlog_s = waits_s
        return late

    def waits_s(self) -> Array:
        """How long requests of each second waited, first come, first served; of shape (seconds served,).

        Who waits still counts up to the end. Half of what came in the same second is before a request.
        """
        assert self._waiting_s is not None, "it was not asked to remember"
        left_s = np.array(self._waiting_s)
        seconds = len(left_s)
        came_s = np.array(self._work_so_far[: seconds + 1])
        done_s = np.concatenate(([0.0], np.maximum.accumulate(came_s[1:] - left_s)))
        middle_s = (came_s[:-1] + came_s[1:]) / 2
        at_s = np.arange(seconds) + 0.5
        # The moment up to which as much is done as had come before; of a flat stretch the end, since nobody works then.
        end_s = np.interp(middle_s, done_s, np.arange(seconds + 1.0), right=float(seconds))
        waited: Array = np.maximum(end_s - at_s, 0.0)
        return waited

    def requests(self, seconds: int) -> Array:
        """How many came in each of the first so many seconds."""
        return self._load.requests[:seconds]

    def arriving_per_s(self, window: int) -> float:
        """Requests that arrived per second, over the last ``window`` seconds."""
        return self._lately(self._requests_so_far, window) / max(1, min(window, self.second))

    def mean_work_s(self, window: int) -> float:
        """Replica-seconds of a request of the last ``window`` seconds; 0: there was none."""
        requests = self._lately(self._requests_so_far, window)
        return self._lately(self._work_so_far, window) / requests if requests else 0.0

    def arriving_s(self, window: int) -> float:
        """Replica-seconds that arrived per second, over the last ``window`` seconds."""
        return self._lately(self._work_so_far, window) / max(1, min(window, self.second))

    def _lately(self, so_far: list[float], window: int) -> float:
        end = min(self.second, len(so_far) - 1)
        return so_far[end] - so_far[max(0, end - window)]


def _so_far(values: Array) -> list[float]:
    found: list[float] = [0.0, *np.cumsum(values).tolist()]
    return found
