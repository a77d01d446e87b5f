"""Every event in every state: what is legal does what it says, what is not raises and changes nothing."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from ebbtide.pool.errors import IllegalTransition
from ebbtide.pool.events import (
    Body,
    CancelJob,
    DrainSeat,
    EndpointDeclared,
    EndpointRemoved,
    GrantJob,
    GrantSeat,
    JobCrashed,
    JobDurable,
    JobEnded,
    JobHeld,
    JobLoading,
    JobParked,
    JobRecovered,
    JobReleased,
    JobRunning,
    JobStopped,
    JobSubmitted,
    NodeFound,
    NodeLost,
    ParkJob,
    ParkSeat,
    ResumeJob,
    SeatDied,
    SeatDrained,
    SeatGone,
    SeatLanded,
    SeatParked,
    SeatReady,
    SeatStopped,
    SlotForeign,
    SlotFound,
    SlotFreed,
    SlotUnfenced,
    StopJob,
    WakeSeat,
)
from ebbtide.pool.ids import EndpointName, JobName, NodeId, SeatId, SlotId
from ebbtide.pool.rules.promises import violations
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SEAT_PARKS, JobState, SeatState, SlotState
from tests.platform.pool.builder import (
    CHAT,
    ENDPOINT,
    JOB,
    JOB_IN,
    NODE,
    PARKED,
    READY,
    RUNNING,
    S0,
    S1,
    S2,
    SEAT,
    SEAT_IN,
    SLOT_IN,
    SPEC,
    a_slot,
    after,
    pool,
)

J = JobState
JOB_EVENTS: Mapping[Body, Mapping[JobState, JobState]] = {
    JobSubmitted(SPEC, "i2"): {J.ENDED: J.WAITING},
    GrantJob(JOB, (S0, S1), "r"): {J.WAITING: J.STARTING},
    JobRunning(JOB, 7): {J.STARTING: J.RUNNING, J.RESUMING: J.RUNNING},
    ParkJob(JOB, "r"): {J.RUNNING: J.PARKING},
    JobParked(JOB, 9): {J.PARKING: J.PARKED},
    ResumeJob(JOB, "r"): {J.PARKED: J.RESUMING},
    StopJob(JOB, "r", preempts=True): dict.fromkeys(
        [J.STARTING, J.RUNNING, J.PARKING, J.PARKED, J.RESUMING], J.STOPPING
    ),
    CancelJob(JOB, "r"): {
        J.WAITING: J.WAITING,
        J.RECOVERING: J.RECOVERING,
        J.STOPPING: J.STOPPING,
        **dict.fromkeys([J.STARTING, J.RUNNING, J.PARKING, J.PARKED, J.RESUMING], J.STOPPING),
    },
    JobStopped(JOB, 9): {J.STOPPING: J.WAITING},
    JobCrashed(JOB, "w", 2): dict.fromkeys(
        [J.STARTING, J.RUNNING, J.PARKING, J.PARKED, J.RESUMING, J.STOPPING], J.RECOVERING
    ),
    JobRecovered(JOB): {J.RECOVERING: J.WAITING},
    JobEnded(JOB, "finished", ""): {state: J.ENDED for state in J if state is not J.ENDED},
    JobDurable(JOB, 3): {state: state for state in J},
    JobHeld(JOB, "me", "r"): {state: state for state in J if state is not J.ENDED},
    JobReleased(JOB, "me"): {},
}
SEATS = SeatState
SEAT_EVENTS: Mapping[Body, Mapping[SeatState, SeatState]] = {
    GrantSeat(SEAT, (S2,), "r"): {SEATS.COLD: SEATS.PLACING},
    SeatLanded(SEAT, "a"): {SEATS.PLACING: SEATS.STARTING},
    SeatReady(SEAT, ()): {SEATS.STARTING: SEATS.READY, SEATS.WAKING: SEATS.READY},
    ParkSeat(SEAT, "r"): {},  # of one that was started to end; the others are in test_warm
    SeatDrained(SEAT): {},
    SeatParked(SEAT): {SEATS.PARKING: SEATS.WARM},
    WakeSeat(SEAT, "r"): {SEATS.WARM: SEATS.WAKING},
    DrainSeat(SEAT, "r"): {
        SEATS.PLACING: SEATS.STOPPING,
        SEATS.STARTING: SEATS.STOPPING,
        SEATS.READY: SEATS.DRAINING,
        **dict.fromkeys(SEAT_PARKS, SEATS.STOPPING),
    },
    SeatDied(SEAT, "w"): {SEATS.READY: SEATS.STARTING},
    SeatStopped(SEAT, "w"): dict.fromkeys(
        [SEATS.PLACING, SEATS.STARTING, SEATS.READY, SEATS.DRAINING, *SEAT_PARKS], SEATS.STOPPING
    ),
    SeatGone(SEAT): {SEATS.STOPPING: SEATS.COLD},
}
T = SlotState
SLOT_EVENTS: Mapping[Body, Mapping[SlotState, SlotState]] = {
    SlotFound(a_slot(S2)): {T.LOST: T.UNFENCED},
    SlotFreed(S2): {T.UNFENCED: T.FREE, T.RECLAIMING: T.FREE},
    SlotUnfenced(S2): {T.FREE: T.UNFENCED, T.FOREIGN: T.UNFENCED},
    SlotForeign(S2, "who"): {T.UNFENCED: T.FOREIGN, T.OPENING: T.FOREIGN, T.RECLAIMING: T.FOREIGN},
}


def refused(state: PoolState, body: Body) -> str:
    """The error of an illegal event, which has changed nothing."""
    before = copy.deepcopy(state)
    with pytest.raises(IllegalTransition) as error:
        after(state, body)
    assert state == before
    return str(error.value)


@pytest.mark.proves(
    "every lease has an epoch of its own",
    "one job of a name lives at a time",
    "only a job that crashed has recovered",
    "only a job that was asked to stop has stopped",
)
@pytest.mark.parametrize("body", JOB_EVENTS, ids=lambda body: body.kind)
@pytest.mark.parametrize("now", JobState, ids=lambda state: state.value)
def test_event_of_a_job(body: Body, now: JobState) -> None:
    state = after(pool(), *JOB_IN[now])
    assert state.jobs[JOB].state is now
    then = JOB_EVENTS[body].get(now)
    if then is None:
        assert str(JOB) in refused(state, body)
        return
    changed = after(state, body, at_s=200.0)
    assert changed.jobs[JOB].state is then
    assert violations(changed) == []


@pytest.mark.proves("a seat is drained once", "only a ready replica dies into a restart")
@pytest.mark.parametrize("body", SEAT_EVENTS, ids=lambda body: body.kind)
@pytest.mark.parametrize("now", SeatState, ids=lambda state: state.value)
def test_event_of_a_seat(body: Body, now: SeatState) -> None:
    state = after(pool(), *SEAT_IN[now])
    then = SEAT_EVENTS[body].get(now)
    if then is None:
        assert refused(state, body)
        return
    changed = after(state, body, at_s=200.0)
    assert changed.seats[SEAT].state is then
    assert violations(changed) == []


@pytest.mark.proves("a lost slot comes back by being found only", "only a lost slot is found again")
@pytest.mark.parametrize("body", SLOT_EVENTS, ids=lambda body: body.kind)
@pytest.mark.parametrize("now", SlotState, ids=lambda state: state.value)
def test_event_of_a_slot(body: Body, now: SlotState) -> None:
    state = after(pool(), *SLOT_IN[now])
    if now is SlotState.LOST:
        state = after(state, NodeFound(NODE, 1000))
    assert state.slots[S2].state is now
    then = SLOT_EVENTS[body].get(now)
    if then is None:
        assert S2 in refused(state, body)
        return
    changed = after(state, body)
    assert changed.slots[S2].state is then
    assert violations(changed) == []


UNKNOWN: tuple[Body, ...] = (
    JobRunning(JobName("nobody"), 1),
    JobEnded(JobName("nobody"), "lost", ""),
    CancelJob(JobName("nobody"), "r"),
    GrantJob(JOB, (SlotId("n:9"),), "r"),
    SlotFreed(SlotId("n:9")),
    SlotFound(a_slot(SlotId("elsewhere:0"))),
    NodeLost(NodeId("elsewhere")),
    GrantSeat(SeatId("nobody/0"), (S0,), "r"),
    SeatGone(SeatId("nobody/0")),
    EndpointRemoved(EndpointName("nobody")),
)


@pytest.mark.parametrize("body", UNKNOWN, ids=lambda body: body.kind)
def test_event_about_something_unknown(body: Body) -> None:
    refused(pool(), body)


def held() -> PoolState:
    return after(pool(), *RUNNING)


def with_ready() -> PoolState:
    return after(pool(), *RUNNING, *READY)


REFUSALS: Mapping[str, Callable[[], tuple[PoolState, Body, str]]] = {
    "gang with a slot that is taken": lambda: (after(pool(), *READY), GrantJob(JOB, (S1, S2), "r"), "it is leased"),
    "gang with a slot twice": lambda: (pool(), GrantJob(JOB, (S0, S0), "r"), "twice"),
    "gang of nothing": lambda: (pool(), GrantJob(JOB, (), "r"), "0 slots"),
    "gang too small": lambda: (pool(workers_min=2), GrantJob(JOB, (S0,), "r"), "2..3"),
    "gang too large": lambda: (pool(workers_max=1), GrantJob(JOB, (S0, S1), "r"), "1..1"),
    "cancelled job is granted": lambda: (after(pool(), CancelJob(JOB, "r")), GrantJob(JOB, (S0,), "r"), "cancelled"),
    "cancelled twice": lambda: (after(pool(), CancelJob(JOB, "r")), CancelJob(JOB, "r"), "cancelled already"),
    "cancelled when finished": lambda: (
        after(pool(), JobEnded(JOB, "finished", "")),
        CancelJob(JOB, "r"),
        "over already",
    ),
    "second submission of a living job": lambda: (held(), JobSubmitted(SPEC, "i2"), "train"),
    "park of a non-preemptible job": lambda: (
        after(pool(workload_class=WorkloadClass.NON_PREEMPTIBLE), *RUNNING),
        ParkJob(JOB, "r"),
        "non-preemptible",
    ),
    "preemption of a non-preemptible job": lambda: (
        after(pool(workload_class=WorkloadClass.NON_PREEMPTIBLE), *RUNNING),
        StopJob(JOB, "r", preempts=True),
        "non-preemptible",
    ),
    "park without in_place": lambda: (after(pool(in_place=False), *RUNNING), ParkJob(JOB, "r"), "in_place"),
    "park over the host memory": lambda: (after(pool(host_bytes=19), *RUNNING), ParkJob(JOB, "r"), "20 would be used"),
    "parked with a slot not proven free": lambda: (
        after(held(), ParkJob(JOB, "r"), SlotFreed(S0)),
        JobParked(JOB, 9),
        f"{S1} is not proven free",
    ),
    "stopped with a slot not proven free": lambda: (
        after(held(), StopJob(JOB, "r", preempts=True), SlotFreed(S0)),
        JobStopped(JOB, 9),
        f"{S1} is not proven free",
    ),
    "recovered with a slot not proven free": lambda: (
        after(held(), JobCrashed(JOB, "w", 0), SlotFreed(S0)),
        JobRecovered(JOB),
        f"{S1} is not proven free",
    ),
    "resume with a slot taken by a replica": lambda: (
        after(pool(), *PARKED, GrantSeat(SEAT, (S1,), "r")),
        ResumeJob(JOB, "r"),
        f"{S1}: it is opening",
    ),
    "durable step goes back": lambda: (after(held(), JobDurable(JOB, 4)), JobDurable(JOB, 3), "from 4 to 3"),
    "replica of the wrong size": lambda: (pool(), GrantSeat(SEAT, (S0, S1), "r"), "needs 1 slots"),
    "replica on two nodes": lambda: (
        after(
            pool(),
            NodeFound(NodeId("m"), 0),
            SlotFound(a_slot(SlotId("m:0"))),
            SlotFreed(SlotId("m:0")),
            EndpointDeclared(replace(ENDPOINT, slots_per_replica=2)),
        ),
        GrantSeat(SEAT, (S0, SlotId("m:0")), "r"),
        "all its slots on one node",
    ),
    "two placements on one node": lambda: (
        after(pool(), GrantSeat(SEAT, (S0,), "r")),
        GrantSeat(SeatId("chat/1"), (S1,), "r"),
        "chat/0 is being placed",
    ),
    "seat gone with a slot not proven free": lambda: (
        after(pool(), *READY, DrainSeat(SEAT, "r"), SeatStopped(SEAT, "w")),
        SeatGone(SEAT),
        "not proven free",
    ),
    "endpoint removed with a replica": lambda: (with_ready(), EndpointRemoved(CHAT), "still has a replica"),
    "endpoint resized with a replica": lambda: (
        with_ready(),
        EndpointDeclared(replace(ENDPOINT, slots_per_replica=2)),
        "2 slots per replica",
    ),
    "slot back under a job that counts on it": lambda: (
        after(held(), NodeLost(NODE), NodeFound(NODE, 1000)),
        SlotFound(a_slot(S0)),
        "train has given it up",
    ),
    "less host memory than parked workers use": lambda: (after(pool(), *PARKED), NodeFound(NODE, 19), "19 bytes"),
}


@pytest.mark.proves(
    "a cancel of a job that is over is refused",
    "a cancelled job is granted no slot",
    "a gang has as many workers as its job asks for when granted",
    "a lost slot comes back when its gang or seat has given it up",
    "a node cannot take back host memory that is lent",
    "a non-preemptible job is not preempted",
    "a replica has as many slots as it needs",
    "a replica's slots are on one node",
    "a seat is cold when its slots are proven free",
    "a second cancel is refused",
    "an endpoint goes, or changes its slots, without a replica",
    "no job is parked that cannot park in place",
    "no park takes more host memory than its node lends",
    "no slot is granted twice at once",
    "one replica is placed on a node at a time",
    "only a free slot is granted",
    "parked, stopped and recovered mean that every slot is proven free",
    "the durable step never goes back",
)
@pytest.mark.parametrize("case", REFUSALS)
def test_refuses(case: str) -> None:
    state, body, why = REFUSALS[case]()
    assert why in refused(state, body)


def test_every_grant_has_a_new_epoch() -> None:
    state = after(pool(), *PARKED)
    resumed = after(state, ResumeJob(JOB, "r"))
    assert resumed.jobs[JOB].epoch == state.next_epoch
    assert resumed.jobs[JOB].gang_epoch == state.jobs[JOB].gang_epoch, "the processes are those of the first lease"
    assert after(resumed, GrantSeat(SEAT, (S2,), "r")).seats[SEAT].epoch == resumed.next_epoch


@pytest.mark.proves("the rest of a crashed gang hears of the crash")
def test_every_wish_has_a_new_number() -> None:
    """A gang carries out a number once: what is wanted may never change under the same one."""
    wishes: tuple[Body, ...] = (
        ParkJob(JOB, "r"),
        StopJob(JOB, "r", preempts=True),
        CancelJob(JOB, "r"),
        JobCrashed(JOB, "w", 0),
        JobEnded(JOB, "lost", ""),
    )
    for body in wishes:
        assert after(held(), body).jobs[JOB].directive > held().jobs[JOB].directive, body
    parked = after(pool(), *PARKED)
    assert after(parked, ResumeJob(JOB, "r")).jobs[JOB].directive > parked.jobs[JOB].directive
    assert after(parked, JobCrashed(JOB, "w", 0)).jobs[JOB].directive > parked.jobs[JOB].directive


@pytest.mark.proves("a park that turns into a restart is one preemption")
def test_a_park_that_turns_into_a_restart_is_one_preemption() -> None:
    state = after(pool(), *PARKED, at_s=100.0)
    stopped = after(state, StopJob(JOB, "r", preempts=True), at_s=150.0)
    assert stopped.jobs[JOB].preempted_s == (100.0,)
    assert (stopped.jobs[JOB].parks, stopped.jobs[JOB].restarts) == (1, 1)


@pytest.mark.proves("preemptions of more than an hour ago do not count")
def test_preemptions_of_more_than_an_hour_ago_are_forgotten() -> None:
    state = after(pool(), *PARKED, ResumeJob(JOB, "r"), JobRunning(JOB, 9), at_s=100.0)
    assert after(state, ParkJob(JOB, "r"), at_s=3701.0).jobs[JOB].preempted_s == (3701.0,)


@pytest.mark.proves("growing is no preemption")
def test_growing_is_no_preemption() -> None:
    job = after(held(), StopJob(JOB, "r", preempts=False)).jobs[JOB]
    assert (job.stopped_to_grow, job.restarts, job.preempted_s) == (True, 0, ())


@pytest.mark.proves("a crash falls back to the durable step")
def test_a_crash_falls_back_to_the_durable_step() -> None:
    job = after(held(), JobDurable(JOB, 3), JobCrashed(JOB, "w", 2)).jobs[JOB]
    assert (job.step, job.durable_step, job.crash_lost_steps, job.crashes) == (3, 3, 0, 1)


@pytest.mark.proves("lost steps are counted once")
def test_what_a_crash_cost_is_counted_once_by_the_gang_that_must_repeat_it() -> None:
    state = after(held(), JobDurable(JOB, 3), JobCrashed(JOB, "w", 2), SlotFreed(S0), SlotFreed(S1), JobRecovered(JOB))
    state = after(state, GrantJob(JOB, (S0, S1), "r"), JobRunning(JOB, 3, lost_steps=4))
    assert state.jobs[JOB].crash_lost_steps == 4, "it knows the step log; the report before the crash was older"
    parked = (ParkJob(JOB, "r"), SlotFreed(S0), SlotFreed(S1), JobParked(JOB, 9), ResumeJob(JOB, "r"))
    state = after(state, *parked, JobRunning(JOB, 9, lost_steps=4))
    assert state.jobs[JOB].crash_lost_steps == 4, "the same gang goes on saying so after each resume"


def test_a_job_submitted_again_goes_on_from_its_own_ref() -> None:
    state = after(held(), JobDurable(JOB, 5), JobEnded(JOB, "lost", ""), JobSubmitted(SPEC, "i2"))
    job = state.jobs[JOB]
    assert (job.step, job.durable_step, job.incarnation, job.state) == (5, 5, "i2", JobState.WAITING)
    assert state.slots[S0].state is SlotState.RECLAIMING, "the earlier gang may still be there"


@pytest.mark.proves("only a job that starts loads")
def test_only_a_job_that_starts_loads_and_no_longer_than_that() -> None:
    with pytest.raises(IllegalTransition, match="does not start"):
        after(held(), JobLoading(JOB))
    crashed = after(held(), JobCrashed(JOB, "w", 0), SlotFreed(S0), SlotFreed(S1), JobRecovered(JOB))
    state = after(crashed, GrantJob(JOB, (S0, S1), "r"), JobLoading(JOB))
    assert state.jobs[JOB].loading
    assert not after(state, JobRunning(JOB, 1)).jobs[JOB].loading
    left = after(state, StopJob(JOB, "r", preempts=True)).jobs[JOB]
    assert (left.loading, left.left_early) == (False, True)


@pytest.mark.proves("a job that begins anew has no step of before")
def test_a_job_that_begins_anew_has_no_step_of_before() -> None:
    state = after(held(), JobDurable(JOB, 5), JobEnded(JOB, "lost", ""), JobSubmitted(SPEC, "i2", fresh=True))
    job = state.jobs[JOB]
    assert (job.step, job.durable_step, job.incarnation, job.state) == (0, 0, "i2", JobState.WAITING)
    assert state.slots[S0].state is SlotState.RECLAIMING, "the earlier gang may still be there"


def test_a_node_that_dies_takes_all_its_slots() -> None:
    state = after(with_ready(), NodeLost(NODE))
    assert {record.state for record in state.slots.values()} == {SlotState.LOST}
    assert violations(state) == []
    back = after(state, JobCrashed(JOB, "w", 0), JobRecovered(JOB), NodeFound(NODE, 1000), SlotFound(a_slot(S0)))
    assert back.slots[S0].state is SlotState.UNFENCED


def test_a_started_replica_measures_its_start() -> None:
    state = after(pool(), GrantSeat(SEAT, (S2,), "r"), SeatLanded(SEAT, "a"), at_s=100.0)
    assert after(state, SeatReady(SEAT, ()), at_s=117.0).endpoints[CHAT].start_s == 17.0


def test_failures_count_on_when_a_replica_is_ready_for_a_moment() -> None:
    state = after(pool(), *READY[:2], SeatStopped(SEAT, "w"), SlotFreed(S2), SeatGone(SEAT))
    assert state.seats[SEAT].failures == 1
    assert after(state, *READY).seats[SEAT].failures == 1
