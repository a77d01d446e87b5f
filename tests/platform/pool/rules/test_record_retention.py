"""Ended jobs are forgotten, oldest first: never one that lives, has a slot or is wanted again; and they stay few."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import Body, CancelJob, Event, GrantJob, JobEnded, JobForgotten, JobSubmitted, SlotFreed
from ebbtide.pool.handlers.apply import apply, replay
from ebbtide.pool.ids import JobName, RecordId
from ebbtide.pool.rules import record_retention
from ebbtide.pool.rules.promises import violations, violations_since
from ebbtide.pool.rules.record_retention import ENDED_KEPT, ENDED_KEPT_MAX, SPARED_S, to_forget
from ebbtide.pool.state import JobRecord, PoolState
from ebbtide.pool.transitions import JobState
from tests.examples import examples
from tests.platform.pool.builder import JOB, JOB_IN, RUNNING, S0, S1, SPEC, after, pool

LATE_S = 10_000.0
NOBODY: frozenset[JobName] = frozenset()


def ended(count: int, *, outcome: str = "finished: well", first: int = 0, since_s: float = 1000.0) -> PoolState:
    """A pool with so many ended jobs, one a second."""
    names = [JobName(f"j{number}") for number in range(first, first + count)]
    jobs = {
        name: JobRecord(
            spec=replace(SPEC, name=name), incarnation="i", state=JobState.ENDED, since_s=since_s + n, outcome=outcome
        )
        for n, name in enumerate(names)
    }
    return PoolState(jobs=jobs)


def forgotten(state: PoolState, now_s: float, restorable: frozenset[JobName] = NOBODY) -> PoolState:
    """What is left when all that is to go has gone."""
    for _ in range(1 + len(state.jobs) // record_retention.AT_ONCE):
        state = after(state, *map(JobForgotten, to_forget(state, now_s, restorable=restorable)), at_s=now_s)
    assert to_forget(state, now_s, restorable=restorable) == ()
    return state


@pytest.mark.proves("the last two hundred ended jobs are kept")
def test_the_newest_are_kept_and_the_oldest_go_a_few_at_a_time() -> None:
    for few in (1, ENDED_KEPT // 2 + 1, ENDED_KEPT - 1, ENDED_KEPT):
        assert to_forget(ended(few), LATE_S, restorable=NOBODY) == ()
    assert to_forget(ended(ENDED_KEPT + 2), LATE_S, restorable=NOBODY) == ("j0", "j1")
    many = ended(5000)
    assert len(to_forget(many, LATE_S, restorable=NOBODY)) == record_retention.AT_ONCE
    left = forgotten(many, LATE_S)
    assert list(left.jobs) == [f"j{number}" for number in range(5000 - ENDED_KEPT, 5000)]


@pytest.mark.proves("an ended job is spared for a while")
def test_one_that_has_just_ended_is_spared_for_who_waits_for_its_end() -> None:
    state = ended(ENDED_KEPT + 50)
    assert to_forget(state, 1000.0 + ENDED_KEPT, restorable=NOBODY) == ()
    assert to_forget(state, 1000.0 + SPARED_S + 1.5, restorable=NOBODY) == ("j0", "j1")


@pytest.mark.proves(
    "a job is restored three times without progress",
    "an ended job that is wanted again is spared",
    "no cancelled job is restored",
    "no job that ended otherwise than lost is restored",
)
def test_one_that_was_lost_and_can_be_restored_waits_for_that_unless_it_never_will() -> None:
    state = ended(ENDED_KEPT + 1, outcome="lost: silent")
    assert to_forget(state, LATE_S, restorable=NOBODY) == ("j0",)
    j0 = frozenset({JobName("j0")})
    assert to_forget(state, LATE_S, restorable=j0) == ("j1",)
    for changes in ({"cancelled": True}, {"restores": record_retention.RESTORES_MAX}, {"outcome": "finished: well"}):
        record = replace(state.jobs[JobName("j0")], **changes)
        given_up = replace(state, jobs={**state.jobs, JobName("j0"): record})
        assert to_forget(given_up, LATE_S, restorable=j0) == ("j0",)


@pytest.mark.proves("what is spared has a bound too")
def test_those_that_are_spared_are_bounded_too_and_the_wanted_ones_go_last() -> None:
    lost = ended(ENDED_KEPT_MAX, outcome="lost: silent", since_s=0.0)
    state = replace(lost, jobs={**lost.jobs, **ended(100, first=ENDED_KEPT_MAX, since_s=LATE_S).jobs})
    left = forgotten(state, LATE_S + 100, frozenset(lost.jobs))
    assert len(left.jobs) == ENDED_KEPT_MAX and set(lost.jobs) <= set(left.jobs)
    assert len(forgotten(ended(3000, since_s=LATE_S), LATE_S).jobs) == ENDED_KEPT_MAX


@pytest.mark.proves("no job that lives is forgotten")
@pytest.mark.parametrize("state", [one for one in JobState if one is not JobState.ENDED])
def test_a_job_that_is_not_over_is_never_forgotten(state: JobState) -> None:
    before = after(pool(), *JOB_IN[state])
    with pytest.raises(IllegalTransition, match="only what is over"):
        after(before, JobForgotten(JOB))


@pytest.mark.proves(
    "no job is forgotten before its slots are proven free", "no job that has a slot is chosen to be forgotten"
)
def test_a_job_is_not_forgotten_while_a_slot_is_on_its_way_back_not_even_of_an_earlier_submission() -> None:
    over = after(pool(), *RUNNING, JobEnded(JOB, "lost", "silent"))
    again = after(over, JobSubmitted(SPEC, "i2", restored=True), JobEnded(JOB, "failed", ""))
    for state in (over, again):
        with pytest.raises(IllegalTransition, match="proven free"):
            after(state, JobForgotten(JOB))
        with pytest.raises(IllegalTransition, match="proven free"):
            after(state, SlotFreed(S0), JobForgotten(JOB))
        assert JOB not in after(state, SlotFreed(S0), SlotFreed(S1), JobForgotten(JOB)).jobs


def test_a_name_that_was_forgotten_is_a_new_job_and_nothing_else_can_happen_to_it() -> None:
    state = after(pool(), JobEnded(JOB, "finished", ""), JobForgotten(JOB))
    for body in (JobForgotten(JOB), CancelJob(JOB, "r"), JobEnded(JOB, "lost", ""), GrantJob(JOB, (S0,), "r")):
        with pytest.raises(IllegalTransition, match="not known"):
            after(state, body)
    for restored in (False, True):
        fresh = after(state, JobSubmitted(SPEC, "i2", restored=restored)).jobs[JOB]
        assert (fresh.state, fresh.incarnation, fresh.restores) == (JobState.WAITING, "i2", 0)


@pytest.mark.proves("no slot is occupied by an unknown occupant")
def test_a_slot_whose_occupant_was_forgotten_would_break_a_promise() -> None:
    before = after(pool(), *RUNNING, JobEnded(JOB, "finished", ""))
    assert violations(before) == []
    state = replace(before, jobs={})
    assert any("does not know" in wrong for wrong in violations(state))
    assert violations_since(before, state) == violations(state)


NAMES = tuple(JobName(f"n{number}") for number in range(12))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["submit", "restore", "grant", "finish", "lose", "cancel", "free", "forget"]),
        st.sampled_from([0.1, 1.0, 5.0]),
    ),
    max_size=120,
)


@settings(max_examples=examples(80), deadline=None, derandomize=True, database=None)
@given(STEPS, st.frozensets(st.sampled_from(NAMES)))
def test_whatever_happens_only_what_is_over_goes_and_what_is_left_is_bounded(
    steps: list[tuple[JobName, str, float]], restorable: frozenset[JobName]
) -> None:
    kept, kept_max, spared_s = 2, 5, 3.0
    with pytest.MonkeyPatch.context() as small:
        small.setattr(record_retention, "ENDED_KEPT", kept)
        small.setattr(record_retention, "ENDED_KEPT_MAX", kept_max)
        small.setattr(record_retention, "SPARED_S", spared_s)
        start = state = pool()
        events: list[Event] = []
        now_s = 100.0

        def send(body: Body) -> None:
            nonlocal state
            event = Event(RecordId(f"1-{len(events)}"), now_s, None, body)
            try:
                state = apply(state, event)
            except IllegalTransition:
                assert not isinstance(body, JobForgotten), "what is chosen can be done"
                return
            events.append(event)
            assert violations(state) == []

        for name, what, pause_s in steps:
            now_s += pause_s
            held = [slot for slot, record in state.slots.items() if record.occupant == name]
            ways: dict[str, tuple[Body, ...]] = {
                "submit": (JobSubmitted(replace(SPEC, name=name), f"i{len(events)}"),),
                "restore": (JobSubmitted(replace(SPEC, name=name), f"i{len(events)}", restored=True),),
                "grant": (GrantJob(name, state.free_slots()[:1], "r"),),
                "finish": (JobEnded(name, "finished", ""),),
                "lose": (JobEnded(name, "lost", "silent"),),
                "cancel": (CancelJob(name, "r"),),
                "free": tuple(map(SlotFreed, held)),
                "forget": (),
            }
            for body in ways[what]:
                send(body)
            going = to_forget(state, now_s, restorable=restorable)
            occupants = {record.occupant for record in state.slots.values()}
            for gone in going:
                assert state.jobs[gone].state is JobState.ENDED and gone not in occupants
                send(JobForgotten(gone))
            ended_now = [one for one, job in state.jobs.items() if job.state is JobState.ENDED]
            bound = kept_max + sum(one in occupants for one in ended_now)
            assert len(ended_now) <= bound
            old = [
                one
                for one in ended_now
                if now_s - state.jobs[one].since_s >= spared_s and one not in occupants and one not in restorable
            ]
            assert len(old) <= kept or len(ended_now) <= kept
        assert replay(events, start) == state
