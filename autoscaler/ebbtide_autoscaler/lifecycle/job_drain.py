"""Before a pool goes down: its jobs step aside, each with all that it has done on the shared filesystem.

The arbiter hears again and again that the pool is being taken down; while it does it grants nothing and asks every job
to publish its checkpoint and leave. It forgets that by itself when the word stops, so a command that is killed here
leaves a pool that goes on.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ebbtide.system.interrupts import undisturbed
from ebbtide_autoscaler.lifecycle.jobs_leaving import LeavingJob, follow, how_it_went, waits_for

WORD_S = 15.0  # for how long the word is good: three times what a call and a look may take
LOOK_EVERY_S = 0.3
AGAIN_S = 10.0  # a line that has not changed is said again, with the seconds, so that a terminal is not silent
ARBITER_S = 15.0  # one that restarts answers within seconds; one that is gone for longer asks no job
STARTS_S = 30.0  # beside a job's grace: for a gang that is just starting, 10-20 s on 2 cores, before it can be asked


class StillUp(RuntimeError):
    """The wait was interrupted; the pool is up, and the message says how to go on."""


class _NotKnown(RuntimeError):
    """The arbiter runs a version that cannot be told that its pool goes down."""


class Link(Protocol):
    """The part of `ArbiterLink` that is used here."""

    def call(self, method: str, *args: object, timeout_s: float = ...) -> Any:
        """None: the arbiter does not answer."""


def drain_jobs(
    link: Link,
    *,
    by: str,
    grace_s: float | None,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, LeavingJob]:
    """Wait until every job has left its slots, or the time is over; says how each comes along and how it went.

    Args:
        by: who takes the pool down, for those who wonder.
        grace_s: seconds to wait at most; None: as long as the most patient job says in its `grace_s`, and a start.

    Returns:
        The jobs that were on their way, by name. The arbiter grants nothing for some seconds more.

    Raises:
        StillUp: interrupted; the pool is up, and its jobs go on.
    """
    try:
        return _Drain(link, by=by, grace_s=grace_s, say=say, clock=clock, sleep=sleep).run()
    except _NotKnown:
        say("the arbiter runs an older version that asks no job to step aside: the pool is taken down as with --now")
        return {}
    except KeyboardInterrupt:
        with undisturbed():
            link.call("reopen_pool")
        raise StillUp(
            "interrupted: the pool is still up and its jobs go on; those that have stepped aside get their slots back. "
            "`ebbtide down` again waits for them, `ebbtide down --now` does not"
        ) from None


class _Drain:
    """One wait; lives for one call of `drain_jobs`."""

    def __init__(
        self,
        link: Link,
        *,
        by: str,
        grace_s: float | None,
        say: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._link, self._by, self._grace_s = link, by, grace_s
        self._say, self._clock, self._sleep = say, clock, sleep
        self._jobs: dict[str, LeavingJob] = {}
        self._said: dict[str, tuple[str, float]] = {}  # the last line about each, and when that was
        self._began_s = self._heard_s = clock()

    def run(self) -> dict[str, LeavingJob]:
        silent = False
        while True:
            status = self._look()
            now_s = self._clock()
            if status is not None:
                self._heard_s = now_s
                self._take(follow(self._jobs, status))
            awaited = [one for one in self._jobs.values() if one.awaited]
            if status is None and now_s - self._heard_s > ARBITER_S:
                self._say("the arbiter does not answer, so no job can be asked to step aside: the pool is taken down")
                break
            if status is not None and not awaited:
                break
            if awaited and now_s - self._began_s >= self._limit_s():
                break
            still = self._still(status)
            if status is None and not awaited and not silent:
                silent = True
                self._say("the arbiter does not answer; it is asked again")
            for one in awaited:
                self._tell(one.name, waits_for(one) + still, now_s)
            self._sleep(LOOK_EVERY_S)
        for one in self._jobs.values():
            if one.awaited:
                self._say(f"the wait ended after {now_s - self._began_s:.0f} s: {how_it_went(one)}")
        return self._jobs

    def _look(self) -> Mapping[str, Any] | None:
        try:
            heard = self._link.call("close_pool", self._by, WORD_S)
        except AttributeError:  # Ray's handle of an actor has the methods of its class only
            raise _NotKnown from None
        if heard is None:
            return None
        found: Mapping[str, Any] | None = self._link.call("status", timeout_s=5.0)
        return found if found is not None and "jobs" in found else None

    def _take(self, now: dict[str, LeavingJob]) -> None:
        for name, one in now.items():
            before = self._jobs.get(name)
            if not one.awaited and (before is None or before.awaited):
                self._say(how_it_went(one))
        self._jobs = now

    def _limit_s(self) -> float:
        if self._grace_s is not None:
            return self._grace_s
        return max((one.grace_s for one in self._jobs.values()), default=0.0) + STARTS_S

    def _still(self, status: Mapping[str, Any] | None) -> str:
        if status is None:
            return "; the arbiter does not answer"
        arbiter = status["arbiter"]
        stands = arbiter.get("frozen") and arbiter.get("frozen_by") not in ("", "person", None)
        return f"; nothing moves: {arbiter['frozen']}" if stands else ""

    def _tell(self, name: str, words: str, now_s: float) -> None:
        said, at_s = self._said.get(name, ("", 0.0))
        if words != said or now_s - at_s >= AGAIN_S:
            one, passed_s = self._jobs[name], now_s - self._began_s
            what = "session" if one.interactive else "job"
            at = "" if one.interactive else f" (step {one.step})"
            self._say(f"{what} {name}{at} {words}; {passed_s:.0f} s of {self._limit_s():.0f} s at most")
            self._said[name] = (words, now_s)
