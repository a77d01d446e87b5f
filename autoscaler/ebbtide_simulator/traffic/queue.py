"""The requests of one endpoint as a fluid: what waits at the gateway, and who is answered in time. Pure.

So much work arrives each second, and ready replicas take up to their share ``full`` each; the rest waits, first come
first served. A request is late if it must wait for longer than its promised time to the first token; one that finds
replicas that are not full is in time. Within a replica nothing is modelled: that is what ``full`` stands for.

Not guaranteed: what a single long request does to its neighbours. `requests` is for that.
"""

import numpy as np

from ebbtide_simulator.model.engine import Engine
from ebbtide_simulator.traffic.arrivals import (
    ARRIVALS_S,
    STAYS_S,
    WINDOW_S,
    Arrivals,
    AtWork,
    Served,
    before_first_s,
    by_window,
)
from ebbtide_simulator.traffic.draws import Load
from ebbtide_simulator.traffic.traces import Array

FEW = 64  # seconds: with so many arrays begin to pay
TTFT_S = 0.1  # at a replica that is not full; what waits at the gateway is not in it, as gateways tell it


class Queue:
    """One endpoint's requests, second by second.

    Attributes:
        arrivals: what has come.
        late: requests by stretches of `WINDOW_S`, of shape (stretches,), each where the step began that brought it.
        asked: all of them, likewise.
        backlog_s: replica-seconds that wait.
    """

    def __init__(
        self, load: Load, engine: Engine, ttft_slo_s: float, *, timed: bool = False, scored_from_s: int = 0
    ) -> None:
        """Nothing has come yet.

        Args:
            timed: it can say afterwards how long each second's requests waited.
            scored_from_s: a stretch begins with this second.
        """
        self._waiting_s: list[float] | None = [] if timed else None  # at the end of each second
        self.arrivals = Arrivals(load)
        self.backlog_s = 0.0
        self.late, self.asked = by_window(load), by_window(load)
        self._before_s = before_first_s(scored_from_s)
        self._by_second: list[float] = load.work_s.tolist()
        self._load, self._engine, self._slo_s = load, engine, ttft_slo_s
        self._at_full = requests_at_full(engine, load)

    def serve(self, until: int, replicas: int, died: int = 0) -> Served:
        """Go on to second ``until`` with so many ready replicas."""
        rate, before_s = replicas * self._engine.full, self.backlog_s
        span, requests, work_s = self.arrivals.go_on(until)
        if span.stop == span.start:
            return Served(0.0, 0.0, 0.0)
        late = self._late_in(span, rate)
        window = (span.start + self._before_s) // WINDOW_S
        self.late[window] += late
        self.asked[window] += requests
        return Served(requests, late, before_s + work_s - self.backlog_s)

    def turn_away(self) -> None:
        """Nobody waits any more: their endpoint is gone."""
        self.backlog_s = 0.0

    def at_work(self, replicas: int) -> AtWork:
        """What gateways would tell of requests now, with so many ready replicas."""
        load, engine = self._load, self._engine
        each_s = self.arrivals.mean_work_s(STAYS_S) or engine.work_s(load.prompt_tokens, load.output_tokens)
        # A longer prompt or answer takes its share of the replica, and so of the others' time, for longer.
        stay_s = self._at_full * each_s / engine.full
        rate, arriving = replicas * engine.full, self.arrivals.work_per_s(ARRIVALS_S)
        served = rate if self.backlog_s else min(rate, arriving)
        return AtWork(
            held=round(self.backlog_s / each_s),
            inflight=round(served / each_s * stay_s),
            stay_s=stay_s,
            ttft_p90_s=TTFT_S if served else 0.0,
        )

    def _late_in(self, span: slice, rate: float) -> float:
        """How many of these seconds' requests come too late; what waits afterwards is kept."""
        if rate and not self.backlog_s and max(self._by_second[span]) <= rate:  # each is served in its own second
            if self._waiting_s is not None:
                self._waiting_s += [0.0] * (span.stop - span.start)
            return 0.0
        return self._late_of(self._load.work_s[span], self._load.requests[span], rate)

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
        """How long requests of each second waited on average, first come, first served; of shape (seconds served,).

        Who waits still counts up to the end; of a second without requests it is 0. All of it is as much as waits,
        summed over time (Little's law).
        """
        assert self._waiting_s is not None, "it was not asked to remember"
        seconds = len(self._waiting_s)
        grid, came_s = np.arange(seconds + 1.0), np.array(self.arrivals.work_before(seconds))
        done_s = np.maximum.accumulate(came_s - np.array([0.0, *self._waiting_s]))
        # Between two of these amounts of work neither its coming nor its being done changes speed: the middle stands
        # for all of it. None lies on a flat stretch, when nobody comes or works.
        amounts_s = np.union1d(came_s, done_s)
        middle_s = (amounts_s[:-1] + amounts_s[1:]) / 2
        each_s = np.interp(middle_s, done_s, grid) - np.interp(middle_s, came_s, grid)
        came_in = np.searchsorted(came_s, middle_s, side="right") - 1
        summed_s = np.bincount(came_in, np.maximum(each_s, 0.0) * np.diff(amounts_s), minlength=seconds)
        work_s = np.diff(came_s)
        means: Array = np.divide(summed_s, work_s, out=np.zeros(seconds), where=work_s > 0)
        return means


def requests_at_full(engine: Engine, load: Load) -> int:
    """Requests at work at once that make a replica full, whatever an autoscaler aims at."""
    return max(1, round(engine.running(load.prompt_tokens, load.output_tokens)))
