"""Driving the pool into each kind of move, and knowing that it is in it.

A move is ``reach``: bring the pool near it, from whatever state it is in, and ``enter``: start it and return at the
moment in which the status shows it. What was seen at that moment is returned, for the table.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.integration.kills.pool import Pool, Stuck, brief, seats_of
from tests.integration.kills.users import Users

SETTLE_S = (
    150.0  # from anywhere to training on all slots: drain 20 s, a crash's backoff, restart, grow; 10 s when quiet
)
ENTER_S = 60.0
PARKED_S = 35.0  # from a question to a replica beside the parked job: 5 to 8 s; the job waits for 20 s
TRICKLE_S = 0.5  # a user each
LONG_TOKENS = 750  # 15 s at the engine's 50 tokens/s
ENDLESS_TOKENS = 20 * LONG_TOKENS  # longer than any move takes; whoever asks for so many hangs up
PER_REPLICA = 4  # target_requests of the endpoint


class Move(Enum):
    """The kinds of move, in the order of a tide."""

    PARKING = "parking"
    STARTING = "replica starting"
    RESUMING = "resuming in place"
    STOPPING = "stopping to go on smaller"
    IDLE = "nothing (serving and training)"
    DRAINING = "replica draining"
    GROWING = "growing back"


@dataclass(frozen=True, slots=True)
class Way:
    """How to get into one move."""

    reach: Callable[[Pool, Users], None]
    enter: Callable[[Pool, Users], str]


def _states(status: dict[str, Any]) -> set[str]:
    return {seat["state"] for seat in seats_of(status)}


def _ready(status: dict[str, Any]) -> int:
    return [seat["state"] for seat in seats_of(status)].count("ready")


def _slots(status: dict[str, Any]) -> int:
    return sum(slot["state"] != "lost" for slot in status["slots"])


def trains_everywhere(pool: Pool, status: dict[str, Any]) -> bool:
    """No replica, and the job runs on every slot of two machines."""
    job = pool.job(status)
    return job["state"] == "running" and len(job["slots"]) == _slots(status) == 4 and _states(status) <= {"cold"}


def _low_tide(pool: Pool, users: Users) -> None:
    users.ebb()
    pool.wait("the job trains on all slots", lambda s: trains_everywhere(pool, s), SETTLE_S, every_s=0.1)
    first = pool.job()["step"]
    pool.wait("and makes steps", lambda s: pool.job(s)["step"] > first, 30)


def _catch(pool: Pool, what: str, holds: Callable[[dict[str, Any]], bool], limit_s: float = ENTER_S) -> str:
    seen: dict[str, Any] = {}

    def look(status: dict[str, Any]) -> bool:
        seen.update(status)
        return holds(status)

    pool.wait(what, look, limit_s, every_s=0.0)
    return brief(seen)


def _job_is(pool: Pool, *states: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: pool.job(status)["state"] in states


def _park(pool: Pool, users: Users) -> str:
    users.ask(count=2)
    return _catch(pool, "the job parks", _job_is(pool, "parking"))


def _start(pool: Pool, users: Users) -> str:
    users.ask(count=2)
    return _catch(pool, "a replica starts", lambda s: "starting" in _states(s))


def _parked(pool: Pool, users: Users) -> None:
    """A replica that starts slowly finds the job gone on with fewer workers; then it is tried again."""
    for last in (False, False, True):
        _low_tide(pool, users)
        users.ask(count=2)
        try:
            pool.wait("parked for a replica", lambda s: _job_is(pool, "parked")(s) and "ready" in _states(s), PARKED_S)
            return
        except Stuck:
            if last:
                raise


def _resume(pool: Pool, users: Users) -> str:
    users.ebb()
    return _catch(pool, "the job resumes", _job_is(pool, "resuming"))


def _stop(pool: Pool, users: Users) -> str:
    users.trickle(every_s=TRICKLE_S)
    return _catch(pool, "the job stops to go on smaller", _job_is(pool, "stopping"))


def _served(pool: Pool, users: Users) -> None:
    """A replica serves a trickle and the job trains on what is left: the middle of a tide."""
    users.ebb()
    users.trickle(every_s=TRICKLE_S)
    pool.wait(
        "serving and training",
        lambda s: "ready" in _states(s) and pool.job(s)["state"] == "running",
        SETTLE_S,
        every_s=0.1,
    )


def _idle(pool: Pool, users: Users) -> str:
    deadline_s = time.monotonic() + ENTER_S
    calm_s = time.monotonic()
    while time.monotonic() < deadline_s:
        status = pool.status()
        calm = _states(status) <= {"ready", "cold"} and pool.job(status)["state"] == "running"
        calm_s = calm_s if calm else time.monotonic()
        if time.monotonic() - calm_s > 1.5:
            return brief(status)
        time.sleep(0.1)
    raise Stuck(f"no calm within {ENTER_S:g} s: {brief(pool.status())}")


def _two_replicas(pool: Pool, users: Users) -> None:
    """Two replicas, each with streams that last; the job on the rest, if it has come that far."""
    users.ebb()
    users.ask(tokens=ENDLESS_TOKENS, count=2 * PER_REPLICA)
    pool.wait("two replicas", lambda s: _ready(s) == 2, SETTLE_S)
    users.ask(tokens=LONG_TOKENS, count=PER_REPLICA - 1)  # some at each replica; one replica is enough for them
    time.sleep(0.5)


def _drain(pool: Pool, users: Users) -> str:
    users.hang_up(2 * PER_REPLICA)  # the oldest; the others' streams end within the drain's limit
    return _catch(pool, "a replica drains", lambda s: "draining" in _states(s))


def _smaller(pool: Pool, users: Users) -> None:
    _served(pool, users)
    if len(pool.job()["slots"]) == _slots(pool.status()):
        raise Stuck("the job has all slots while a replica serves")


def _grow(pool: Pool, users: Users) -> str:
    users.ebb()

    def growing(status: dict[str, Any]) -> bool:
        return pool.job(status)["state"] == "starting" and _states(status) <= {"cold"}

    return _catch(pool, "the job grows back", growing, SETTLE_S)


def _parked_beside(pool: Pool, users: Users) -> None:
    """A replica serves a trickle, and the job, which trained beside it, is parked for another endpoint's."""
    _served(pool, users)
    pool.wait(
        "the job trains on all that one replica leaves",
        lambda s: _ready(s) == 1 and pool.job(s)["state"] == "running" and len(pool.job(s)["slots"]) == _slots(s) - 1,
        SETTLE_S,
        every_s=0.1,
    )
    users.ask(tokens=ENDLESS_TOKENS, count=PER_REPLICA, model="side")
    pool.wait("parked for a second endpoint", lambda s: pool.job(s)["state"] == "parked" and _ready(s) == 2, SETTLE_S)


def _resume_beside(pool: Pool, users: Users) -> str:
    users.hang_up(PER_REPLICA)
    return _catch(pool, "the job resumes beside a replica", lambda s: _job_is(pool, "resuming")(s) and _ready(s) > 0)


def _smallest(pool: Pool, users: Users) -> None:
    """Two replicas, and the job has gone on with what they leave."""
    users.ebb()
    users.trickle(every_s=TRICKLE_S)
    users.ask(tokens=ENDLESS_TOKENS, count=2 * PER_REPLICA)
    pool.wait(
        "two replicas, and the job runs on two slots",
        lambda s: _ready(s) == 2 and pool.job(s)["state"] == "running" and len(pool.job(s)["slots"]) == 2,
        SETTLE_S,
        every_s=0.1,
    )


def _grow_beside(pool: Pool, users: Users) -> str:
    users.hang_up(2 * PER_REPLICA)
    return _catch(pool, "the job grows beside a replica", lambda s: _job_is(pool, "starting")(s) and _ready(s) > 0)


WAYS: Mapping[Move, Way] = {
    Move.PARKING: Way(_low_tide, _park),
    Move.STARTING: Way(_low_tide, _start),
    Move.RESUMING: Way(_parked, _resume),
    Move.STOPPING: Way(_parked, _stop),
    Move.IDLE: Way(_served, _idle),
    Move.DRAINING: Way(_two_replicas, _drain),
    Move.GROWING: Way(_smaller, _grow),
}

BESIDE: Mapping[Move, Way] = {
    Move.RESUMING: Way(_parked_beside, _resume_beside),
    Move.GROWING: Way(_smallest, _grow_beside),
}
"""The same moves while a replica serves, so that there is one that can die."""
