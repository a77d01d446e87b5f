"""The requests of one endpoint one by one: the gateway's line, and replicas that batch (`batching`).

The gateway gives a request to the replica with the fewest, and holds it while all have as many as they may. A request
is late if its first token comes later than promised, if its tokens do on average, if its replica dies, or if the
gateway gives it up. What a replica's cache still has of a prompt is not read again; a new replica's cache is empty.

Not modelled: that a prompt may be cut into steps with others, and answers that are taken back for want of room (here
they have their room from the first token on).
"""

from bisect import bisect_right
from math import inf, log2

import numpy as np

from ebbtide_simulator.model import batching
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
from ebbtide_simulator.traffic.draws import MINUTE_S, Load, lengths
from ebbtide_simulator.traffic.singles import Drawn, Singles
from ebbtide_simulator.traffic.traces import Array

AT_ONCE = 64  # requests at a replica: the gateway's default
HELD_S = 120.0  # the gateway gives up then: its default
BLOCK_TOKENS = 512  # of a recorded prefix block: Mooncake's
RECENT = 512  # first tokens of which the gateway tells
CALIBRATE_S = 1800  # of one replica that is just full: some ten thousand requests


class RequestQueue:
    """One endpoint's requests.

    Attributes:
        arrivals: what has come.
        late, asked: requests by stretches of `WINDOW_S` in which they came; of shape (stretches,).
    """

    def __init__(
        self,
        drawn: Drawn,
        ttft_slo_s: float,
        tpot_slo_s: float,
        before: tuple[float, float] | None = None,
        *,
        scored_from_s: int = 0,
    ) -> None:
        """No replica is there yet.

        Args:
            before: how long ago the last answer ended, and how long its request stayed.
            scored_from_s: a stretch begins with this second.
        """
        load, engine = drawn.load, drawn.engine
        self.arrivals = Arrivals(load)
        self._drawn = drawn
        self._speeds = batching.Speeds(
            prefill_tok_s=float(engine.prefill_tok_s),  # a whole number would have all of `batching` compiled again
            decode_tok_s=float(engine.decode_tok_s),
            step_s=float(engine.step_s),
            chunk=float(engine.chunk_tokens),
            kv_tokens=float(engine.kv_tokens),
            at_once=AT_ONCE,
            held_s=HELD_S,
            ttft_s=float(ttft_slo_s),
            tpot_s=float(tpot_slo_s),
            window_s=WINDOW_S,
            before_s=before_first_s(scored_from_s),
            block_tokens=BLOCK_TOKENS if load.rows is not None and len(load.rows.blocks) else 0,
        )
        self._blocks = load.rows.blocks if load.rows is not None else np.empty(0, np.int64)
        kept = 1 << int(log2(max(2.0, 4 * engine.kv_tokens / BLOCK_TOKENS))) if self._speeds.block_tokens else 1
        self._state = _empty(8, 1 << 14, kept, by_window(load), by_window(load), np.zeros(len(load.work_s)))
        self._turn = 0
        self._left: Singles | None = None  # of the minute at hand, what has not come yet
        self._minute = 0
        self._past: list[tuple[float, float, int]] = [(0.0, 0.0, 0)]  # seconds, stays and answers up to each step
        if before is not None:  # counts begin with this run, so up to then there was one answer less than none
            self._past = [(-inf, -before[1], -1), (-before[0], 0.0, 0)]

    @property
    def late(self) -> Array:
        """Requests by stretches; those that wait for their first token too long already are among them."""
        found, speeds = self._state.late.copy(), self._speeds
        came_s = self._waiting()
        overdue_s = came_s[self.arrivals.second - came_s > speeds.ttft_s]
        np.add.at(found, (overdue_s.astype(np.int64) + speeds.before_s) // WINDOW_S, 1.0)
        return found

    @property
    def asked(self) -> Array:
        """All that came."""
        return self._state.asked

    def serve(self, until: int, replicas: int, died: int = 0) -> Served:
        """Go on to second ``until`` with so many ready replicas; so many of those that were ready have died."""
        state, speeds = self._state, self._speeds
        begin = self.arrivals.second
        self._staff(replicas, died, float(begin))
        before_s, late = float(state.total[batching.WORK_S]), float(state.late.sum())
        _, requests, _ = self.arrivals.go_on(until)
        while self._minute * MINUTE_S < until:
            here = self._drawn.minute(self._minute) if self._left is None else self._left
            end_s = min(until, (self._minute + 1) * MINUTE_S)
            cut = int(np.searchsorted(here.came_s, end_s))
            self._room(cut)
            come = here.part(slice(0, cut))
            batching.play(
                self._state,
                float(end_s),
                come.came_s,
                come.prompt,
                come.output,
                come.begin,
                come.end,
                self._blocks,
                speeds,
            )
            if end_s < (self._minute + 1) * MINUTE_S:
                self._left = here.part(slice(cut, None))
                break
            self._left, self._minute = None, self._minute + 1
        state = self._state
        self._past.append((until, float(state.total[batching.STAY_S]), int(state.counts[batching.DONE])))
        return Served(requests, float(state.late.sum()) - late, float(state.total[batching.WORK_S]) - before_s)

    def at_work(self, replicas: int) -> AtWork:
        """What gateways would tell of requests now."""
        state = self._state
        then = self._past[max(0, bisect_right(self._past, (self.arrivals.second - STAYS_S, np.inf, 0)) - 1)]
        done = int(state.counts[batching.DONE]) - then[2]
        stay_s = (float(state.total[batching.STAY_S]) - then[1]) / done if done else 0.0
        recent = state.recent_s[: min(RECENT, int(state.counts[batching.RECENT]))]
        return AtWork(
            held=int(state.counts[batching.HELD]),
            inflight=int(state.replicas["busy"].sum()),
            stay_s=stay_s,
            ttft_p90_s=float(np.percentile(recent, 90)) if len(recent) and self.arrivals.per_s(ARRIVALS_S) else 0.0,
        )

    def stays_s(self) -> float:
        """Request-seconds at replicas, of all answers so far."""
        return float(self._state.total[batching.STAY_S])

    def waits_s(self) -> Array:
        """How long requests of each second waited for their first token, on average; of shape (seconds served,).

        Who waits still counts up to now.
        """
        seconds = self.arrivals.second
        found, came_s = self._state.waited_s[:seconds].copy(), self._waiting()
        np.add.at(found, came_s.astype(np.int64), seconds - came_s)
        means: Array = found / np.maximum(self.arrivals.load.requests[:seconds], 1.0)
        return means

    def times(self) -> dict[str, Array]:
        """How many first tokens came after so long, and how many answers had so long between tokens, by bins."""
        return {"ttft_s": self._state.ttft_bins, "tpot_s": self._state.tpot_bins}

    def prefix_tokens(self) -> tuple[float, float]:
        """Prompt tokens that a cache had, and all of them."""
        return float(self._state.total[batching.HIT_TOKENS]), float(self._state.total[batching.PROMPT_TOKENS])

    def _waiting(self) -> Array:
        """When those came that have no first token yet."""
        state = self._state
        here = np.ones(len(state.requests), bool)
        here[state.spare[: state.counts[batching.FREE]]] = False
        found: Array = state.requests["came_s"][here & np.isinf(state.requests["token_s"])]
        return found

    def _staff(self, replicas: int, died: int, now_s: float) -> None:
        """As many are ready as shall be. Those that die are the ones that came first, as any might be."""
        oldest = sorted(self._in(batching.READY), key=lambda r: self._state.replicas["turn"][r])
        for r in oldest[:died]:
            batching.kill_one(self._state, r, self._speeds)
        ready = oldest[died:]
        for _ in range(len(ready) - replicas):  # the least busy leaves, of equals the newest
            one = min(ready, key=lambda r: (self._state.replicas["busy"][r], -self._state.replicas["turn"][r]))
            ready.remove(one)
            busy = self._state.replicas["busy"][one] > 0
            self._state.replicas["state"][one] = batching.LEAVING if busy else batching.CLOSED
        for _ in range(replicas - len(ready)):
            if not self._in(batching.CLOSED):
                self._more_replicas()
            r = self._in(batching.CLOSED)[0]
            self._turn += 1
            self._state.replicas["turn"][r] = self._turn
            batching.open_one(self._state, r, now_s, self._blocks, self._speeds)

    def _in(self, which: int) -> list[int]:
        """Replicas in a state."""
        found: list[int] = np.flatnonzero(self._state.replicas["state"] == which).tolist()
        return found

    def _more_replicas(self) -> None:
        """Places for twice as many."""
        state, count = self._state, len(self._state.replicas)
        none = _empty(count, 1, state.kept_id.shape[1], state.late, state.asked, state.waited_s)
        self._state = state._replace(
            **{name: np.concatenate([getattr(state, name), getattr(none, name)]) for name in _OF_REPLICAS}
        )

    def _room(self, count: int) -> None:
        """Places for so many more requests."""
        state = self._state
        while state.counts[batching.FREE] < count:
            size, free = len(state.requests), int(state.counts[batching.FREE])
            spare = np.concatenate([state.spare, state.spare])
            spare[free : free + size] = np.arange(size, 2 * size)
            state.counts[batching.FREE] += size
            state = state._replace(requests=np.concatenate([state.requests, state.requests]), spare=spare)
        self._state = state


def at_full(engine: Engine, load: Load) -> int:
    """Requests at work at once that make a replica full, as a test of one under a steady load would find them."""
    random = np.random.default_rng(0)
    each_s = engine.work_s(load.prompt_tokens, load.output_tokens)
    counts = random.poisson(engine.full / each_s, CALIBRATE_S).astype(np.float64)
    steady = Load(lengths(counts, np.full(CALIBRATE_S, each_s), random), counts, load.prompt_tokens, load.output_tokens)
    queue = RequestQueue(Drawn(steady, engine, (0, 0)), np.inf, np.inf)
    queue.serve(CALIBRATE_S, 1)
    return max(1, round(queue.stays_s() / CALIBRATE_S))  # Little's law


_OF_REPLICAS = ("replicas", "heap_end", "heap_who", "kept_id", "kept_at")


def _empty(replicas: int, places: int, kept: int, late: Array, asked: Array, waited_s: Array) -> batching.State:
    """Nobody is there."""
    counts = np.zeros(6, np.int64)
    counts[batching.FREE] = places
    none = np.zeros(replicas, batching.REPLICA)
    none["first"], none["next_s"] = batching.NOBODY, np.inf
    return batching.State(
        replicas=none,
        requests=np.zeros(places, batching.REQUEST),
        heap_end=np.zeros((replicas, AT_ONCE)),
        heap_who=np.zeros((replicas, AT_ONCE), np.int64),
        kept_id=np.full((replicas, kept), batching.NOBODY),
        kept_at=np.zeros((replicas, kept), np.int64),
        spare=np.arange(places),
        counts=counts,
        total=np.zeros(4),
        late=late,
        asked=asked,
        waited_s=waited_s,
        ttft_bins=np.zeros(batching.BINS),
        tpot_bins=np.zeros(batching.BINS),
        recent_s=np.zeros(RECENT),
    )
