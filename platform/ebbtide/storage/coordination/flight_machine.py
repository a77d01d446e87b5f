"""One participant of a single flight: what happened goes in, what to do comes out. Pure.

Everybody who wants a thing asks: is it there? If not, who is making it? Nobody, or somebody dead or done for: claim the
next attempt, look once more (it may have been finished in between), and lead. Somebody alive: wait and ask again.

What a leader leaves behind decides for the others. *Done*: they look for the thing, for a while (``settle_s``) even if
their filesystem's cache does not show it yet. *Refused*: an error that each of them would meet too; whoever came before
it was told takes it over, whoever comes later tries anew, since the user may have changed something. *Failed*: the next
may fare better, after a pause that doubles from failure to failure, and is longer for the one that failed.
Nothing, for longer than a living process can be silent: it is *dead*, and the next attempt is claimed.
"""

from dataclasses import dataclass, replace
from typing import NoReturn

from ebbtide.pool.backoff import backoff_s
from ebbtide.storage.coordination.flight_states import (
    OVER,
    Claim,
    Claimed,
    Elapsed,
    Erred,
    Event,
    GiveUp,
    Instruction,
    Look,
    Looked,
    Lost,
    NotClaimable,
    Pause,
    RaiseLeadersError,
    RaiseOwnError,
    Read,
    Return,
    Seen,
    Standing,
    State,
    Taken,
    Unreadable,
    Work,
    Worked,
)

# Which events may come in which state, and where they may lead.
_AFTER_READING = frozenset({State.CLAIMING, State.WAITING, State.SETTLING, State.FAILED})
EDGES: dict[State, dict[type[Event], frozenset[State]]] = {
    State.LOOKING: {Looked: frozenset({State.FINISHED, State.READING})},
    State.READING: {Seen: _AFTER_READING, Unreadable: frozenset({State.WAITING, State.FAILED})},
    State.CLAIMING: {
        Claimed: frozenset({State.LOOKING_AGAIN}),
        Taken: frozenset({State.READING}),
        NotClaimable: frozenset({State.WAITING, State.FAILED}),
    },
    State.LOOKING_AGAIN: {Looked: frozenset({State.FINISHED, State.LEADING})},
    State.LEADING: {
        Worked: frozenset({State.FINISHED}),
        Erred: frozenset({State.READING, State.FAILED}),
        Lost: frozenset({State.READING}),
    },
    State.WAITING: {Elapsed: frozenset({State.READING})},
    State.SETTLING: {Looked: frozenset({State.FINISHED, State.WAITING, State.FAILED})},
    State.FINISHED: {},
    State.FAILED: {},
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Until when and how often.

    Attributes:
        until_s: by the clock of ``now_s``: when waiting ends.
        poll_s: between two looks at somebody else's work.
        settle_s: how long a result that is said to be there may stay hidden by a cache.
        tries: attempts, of whomever, after which a participant gives up; it counts from its own arrival.
    """

    until_s: float
    poll_s: float
    settle_s: float
    tries: int


@dataclass(frozen=True, slots=True)
class Course:
    """What a participant remembers.

    Attributes:
        number: the newest attempt that it knows of.
        arrived: the newest attempt that was over when it came; None: it has not read yet.
        failures: attempts in a row that failed, as of ``number``.
        failed_itself: the attempt of its own that failed last.
        patient_with, patient_until_s: an attempt whose end it has seen, and until when it holds back because of it.
    """

    state: State = State.LOOKING
    number: int = 0
    arrived: int | None = None
    failures: int = 0
    failed_itself: int = 0
    patient_with: int = 0
    patient_until_s: float = 0.0


Step = tuple[Course, Instruction]
BEGIN: Step = (Course(), Look())


def advance(course: Course, event: Event, now_s: float, limits: Limits) -> Step:
    """What to remember and to do next."""
    allowed = EDGES[course.state].get(type(event))
    if allowed is None:
        _impossible(course, event)
    after, instruction = _advance(course, event, now_s, limits)
    assert after.state in allowed, f"{course.state} may not become {after.state} by {event}"
    return after, instruction


def _advance(course: Course, event: Event, now_s: float, limits: Limits) -> Step:
    match course.state, event:
        case _, Looked(found=True) | Worked():
            return replace(course, state=State.FINISHED), Return()
        case State.LOOKING_AGAIN, Looked():
            return replace(course, state=State.LEADING), Work(course.failures)
        case State.SETTLING, Looked():
            why = f"attempt {course.number} has finished, but its result cannot be seen here yet"
            return _pause(course, why, now_s, limits)
        case State.LOOKING, Looked():
            return _read(course)
        case _, Seen():
            return _seen(course, event, now_s, limits)
        case _, Unreadable():
            return _pause(course, f"cannot tell who is at work: {event.why}", now_s, limits)
        case _, Claimed():
            return replace(course, state=State.LOOKING_AGAIN), Look()
        case _, NotClaimable(hopeless=False):
            known = replace(course, number=course.number - 1)  # the attempt that was to be claimed need not exist
            return _pause(known, f"cannot claim the work: {event.why}", now_s, limits)
        case _, NotClaimable() | Erred(final=True):
            return replace(course, state=State.FAILED), RaiseOwnError()
        case _, Erred():
            return _read(replace(course, failed_itself=course.number))
        case _, Taken() | Lost() | Elapsed():
            return _read(course)
    _impossible(course, event)


def _seen(course: Course, seen: Seen, now_s: float, limits: Limits) -> Step:
    arrived = course.arrived
    if arrived is None:
        arrived = seen.number if seen.standing in OVER else seen.number - 1
    course = replace(course, number=seen.number, arrived=arrived, failures=0)
    told = seen.number > arrived  # the end of this attempt concerns everybody who had come by then
    match seen.standing:
        case Standing.LIVING:
            return _pause(course, seen.what, now_s, limits)
        case Standing.REFUSED if told:
            return replace(course, state=State.FAILED), RaiseLeadersError(seen.what)
        case Standing.DONE if told:
            course = _patient(course, limits.settle_s, now_s)
            if now_s < course.patient_until_s:
                return replace(course, state=State.SETTLING), Look()
        case Standing.FAILED if told:
            pause_s = backoff_s(seen.failures) * (2 if seen.number == course.failed_itself else 1)
            course = _patient(replace(course, failures=seen.failures), pause_s, now_s)
            if seen.number - arrived < limits.tries and now_s < course.patient_until_s:
                return _pause(course, f"{seen.what}; trying again soon", now_s, limits)
    if seen.number - arrived >= limits.tries:
        if seen.number == course.failed_itself:
            return replace(course, state=State.FAILED), RaiseOwnError()
        why = f"{limits.tries} attempts have come to nothing; the last: {seen.what or seen.standing.value}"
        return replace(course, state=State.FAILED), GiveUp(why)
    return replace(course, state=State.CLAIMING, number=seen.number + 1), Claim(seen.number + 1)


def _patient(course: Course, for_s: float, now_s: float) -> Course:
    """Counted from the first time that this attempt's end was seen."""
    if course.patient_with == course.number:
        return course
    return replace(course, patient_with=course.number, patient_until_s=now_s + for_s)


def _read(course: Course) -> Step:
    return replace(course, state=State.READING), Read(course.number)


def _pause(course: Course, why: str, now_s: float, limits: Limits) -> Step:
    left_s = limits.until_s - now_s
    if left_s <= 0:
        return replace(course, state=State.FAILED), GiveUp(why)
    return replace(course, state=State.WAITING), Pause(min(limits.poll_s, left_s), why)


def _impossible(course: Course, event: Event) -> NoReturn:
    raise AssertionError(f"{event} cannot come in {course.state}")
