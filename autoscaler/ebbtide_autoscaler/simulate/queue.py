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


@dataclass(frozen=True, slots=True)
class Served:
    """What a stretch of seconds brought: all of shape (seconds,).

    Attributes:
        late: requests that were, or will be, answered too late.
        done_s: replica-seconds of work.
    """

    late: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    done_s: "np.ndarray[tuple[int], np.dtype[np.float64]]"


class Queue:
    """One endpoint's requests, second by second."""

    def __init__(self, load: Load, engine: Engine, ttft_slo_s: float) -> None:
        self.backlog_s = 0.0  # replica-seconds that wait
        self.second = 0  # the next one
        self._load, self._engine, self._slo_s = load, engine, ttft_slo_s

    def serve(self, until: int, replicas: int) -> Served:
        """Go on to second ``until`` with so many ready replicas."""
        span = slice(self.second, min(until, len(self._load.work_s)))
        work_s, requests = self._load.work_s[span], self._load.requests[span]
        self.second = until
        rate = replicas * self._engine.full
        if not len(work_s):
            return Served(work_s, work_s)
        # Lindley: what waits is how far the surplus is above its lowest point so far.
        surplus = self.backlog_s + np.cumsum(work_s - rate)
        backlog_s = surplus - np.minimum(np.minimum.accumulate(surplus), 0.0)
        before_s = np.concatenate(([self.backlog_s], backlog_s[:-1]))
        done_s = before_s + work_s - backlog_s
        # Who arrives in a second finds what waited before it and, on average, half of what came with it.
        ahead_s = before_s + work_s / 2
        late = np.where(ahead_s > rate * (self._slo_s + 0.5), requests, 0.0) if rate else requests
        self.backlog_s = float(backlog_s[-1])
        return Served(late, done_s)

    def arriving_s(self, window: int) -> float:
        """Replica-seconds that arrived per second, over the last ``window`` seconds."""
        recent = self._load.work_s[max(0, self.second - window) : self.second]
        return float(recent.mean()) if len(recent) else 0.0
