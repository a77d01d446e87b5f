"""The course of a single flight: its table, and many participants in a world of late answers, pauses and deaths."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebbtide.storage.coordination.flight_machine import BEGIN, EDGES, Course, Limits, advance
from ebbtide.storage.coordination.flight_states import (
    ENDED,
    OVER,
    Claim,
    Claimed,
    Elapsed,
    Erred,
    GiveUp,
    Look,
    Looked,
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
from tests.examples import examples
from tests.platform.storage.flight_model import Participant, Story
from tests.platform.storage.shared_model import Directory, World

LIMITS = Limits(until_s=1000.0, poll_s=5.0, settle_s=60.0, tries=8)
SEEDS = st.integers(0, 2**32)


def reading(**remembered: int) -> Course:
    return Course(State.READING, **remembered)


def test_every_state_is_in_the_table_and_only_ended_ones_have_no_way_on() -> None:
    assert set(EDGES) == set(State)
    assert {state for state, edges in EDGES.items() if not edges} == ENDED
    reached = {after for edges in EDGES.values() for states in edges.values() for after in states}
    assert reached == set(State) - {BEGIN[0].state}


@pytest.mark.parametrize("state", list(State))
def test_an_event_that_cannot_come_is_refused(state: State) -> None:
    for event in (Looked(True), Seen(1, Standing.NONE), Claimed(), Worked(), Elapsed()):
        if type(event) not in EDGES[state]:
            with pytest.raises(AssertionError, match="cannot come"):
                advance(Course(state), event, 0.0, LIMITS)


def test_what_is_there_is_returned_at_once() -> None:
    course, first = BEGIN
    assert first == Look()
    assert advance(course, Looked(True), 0.0, LIMITS)[1] == Return()


def test_the_first_one_claims_looks_once_more_and_works() -> None:
    course, instruction = advance(Course(), Looked(False), 0.0, LIMITS)
    assert instruction == Read(0)
    course, instruction = advance(course, Seen(0, Standing.NONE), 0.0, LIMITS)
    assert instruction == Claim(1)
    course, instruction = advance(course, Claimed(), 0.0, LIMITS)
    assert instruction == Look()
    assert advance(course, Looked(True), 0.0, LIMITS)[1] == Return(), "somebody finished between look and claim"
    course, instruction = advance(course, Looked(False), 0.0, LIMITS)
    assert instruction == Work(failures=0)
    assert advance(course, Worked(), 0.0, LIMITS)[1] == Return()


def test_whoever_was_second_looks_for_the_first_even_where_a_cached_listing_hides_it() -> None:
    course, _ = advance(reading(), Seen(3, Standing.DEAD), 0.0, LIMITS)
    assert advance(course, Taken(), 0.0, LIMITS)[1] == Read(at_least=4)


def test_an_attempt_that_could_not_be_claimed_is_not_believed_to_exist() -> None:
    course, _ = advance(reading(), Seen(3, Standing.DEAD), 0.0, LIMITS)
    course, instruction = advance(course, NotClaimable("EIO", hopeless=False), 0.0, LIMITS)
    assert instruction == Pause(5.0, "cannot claim the work: EIO")
    assert advance(course, Elapsed(), 5.0, LIMITS)[1] == Read(at_least=3)


def test_a_node_that_may_not_write_says_so_and_does_not_wait() -> None:
    course, _ = advance(reading(), Seen(0, Standing.NONE), 0.0, LIMITS)
    assert advance(course, NotClaimable("EROFS", hopeless=True), 0.0, LIMITS)[1] == RaiseOwnError()


def test_a_living_leader_is_waited_for_until_the_deadline() -> None:
    course = reading()
    for now_s in (0.0, 500.0, 998.0):
        course, instruction = advance(course, Seen(1, Standing.LIVING, what="60 %"), now_s, LIMITS)
        assert instruction == Pause(min(5.0, 1000.0 - now_s), "60 %")
        course, _ = advance(course, Elapsed(), now_s, LIMITS)
    assert advance(course, Seen(1, Standing.LIVING, what="60 %"), 1000.0, LIMITS)[1] == GiveUp("60 %")


def test_a_directory_that_cannot_be_read_is_asked_again() -> None:
    assert advance(reading(), Unreadable("it hangs"), 0.0, LIMITS)[1] == Pause(
        5.0, "cannot tell who is at work: it hangs"
    )


def test_an_error_of_the_input_is_told_to_those_who_came_before_it_was_known() -> None:
    course, _ = advance(reading(), Seen(7, Standing.LIVING), 0.0, LIMITS)
    course, _ = advance(course, Elapsed(), 5.0, LIMITS)
    assert advance(course, Seen(7, Standing.REFUSED, what="a pickle"), 5.0, LIMITS)[1] == RaiseLeadersError("a pickle")


@pytest.mark.parametrize("standing", sorted(OVER, key=str))
def test_whoever_comes_after_an_end_without_result_begins_anew_at_once(standing: Standing) -> None:
    course, instruction = advance(reading(), Seen(7, standing, failures=5), 0.0, LIMITS)
    assert instruction == Claim(8)
    course, _ = advance(course, Claimed(), 0.0, LIMITS)
    assert advance(course, Looked(False), 0.0, LIMITS)[1] == Work(failures=0), "old failures are no reason for patience"


def test_a_result_that_is_said_to_be_there_is_looked_for_until_caches_have_expired() -> None:
    course, _ = advance(reading(), Seen(1, Standing.LIVING), 0.0, LIMITS)
    for now_s in (5.0, 30.0, 64.0):
        course, _ = advance(course, Elapsed(), now_s, LIMITS)
        course, instruction = advance(course, Seen(1, Standing.DONE), now_s, LIMITS)
        assert instruction == Look()
        assert advance(course, Looked(True), now_s, LIMITS)[1] == Return()
        course, instruction = advance(course, Looked(False), now_s, LIMITS)
        assert isinstance(instruction, Pause)
    course, _ = advance(course, Elapsed(), 65.0, LIMITS)
    assert advance(course, Seen(1, Standing.DONE), 65.0, LIMITS)[1] == Claim(2), "it has gone again"


def test_after_a_failure_the_next_waits_a_little_and_the_one_that_failed_longer() -> None:
    waited = {}
    for itself in (0, 1):
        course = Course(State.READING, number=1, arrived=0, failed_itself=itself)
        now_s = 0.0
        while True:
            course, instruction = advance(course, Seen(1, Standing.FAILED, 2, "EIO"), now_s, LIMITS)
            if isinstance(instruction, Claim):
                break
            assert isinstance(instruction, Pause) and "EIO" in instruction.why
            now_s += 1.0
            course, _ = advance(course, Elapsed(), now_s, LIMITS)
        waited[itself] = now_s
        course, _ = advance(course, Claimed(), now_s, LIMITS)
        assert advance(course, Looked(False), now_s, LIMITS)[1] == Work(failures=2)
    assert waited == {0: 4.0, 1: 8.0}


def test_after_so_many_attempts_of_whomever_one_gives_up_and_says_what_the_last_met() -> None:
    course, _ = advance(reading(), Seen(2, Standing.LIVING), 0.0, LIMITS)
    for number, standing in ((8, Standing.DEAD), (8, Standing.FAILED), (8, Standing.LEFT)):
        again, _ = advance(course, Elapsed(), 1.0, LIMITS)
        assert advance(again, Seen(number, standing, what="killed"), 999.0, LIMITS)[1] in (
            Claim(9),
            Pause(1.0, "killed; trying again soon"),
        )
        again, _ = advance(course, Elapsed(), 1.0, LIMITS)
        assert advance(again, Seen(number + 1, standing, what="killed"), 999.0, LIMITS)[1] == GiveUp(
            "8 attempts have come to nothing; the last: killed"
        )


def test_an_error_of_ones_own_ends_it_or_lets_others_try() -> None:
    leading = Course(State.LEADING, number=4, arrived=3)
    assert advance(leading, Erred(final=True), 0.0, LIMITS)[1] == RaiseOwnError()
    course, instruction = advance(leading, Erred(final=False), 0.0, LIMITS)
    assert instruction == Read(4) and course.failed_itself == 4


# --- many of them --------------------------------------------------------------------------------------------------


def chaos(seed: int, fails: Callable[[int], str], *, deaths: bool = True) -> tuple[Story, list[Participant]]:
    """Two to six participants; the first survives."""
    random = Random(seed)
    directory = Directory(list_lag_s=random.choice([0.0, 60.0]), read_lag_s=random.choice([0.0, 2.0, 4.0]))
    world = World(random, directory, slow=random.choice([0.0, 0.05, 0.15]), failing=random.choice([0.0, 0.05]))
    story, participants = Story(), []
    for number in range(random.randint(2, 6)):
        one = Participant(world, number, story, steps=random.randint(0, 8), fails=fails, deadline_s=30_000.0)
        participants.append(one)
        arrives_s = random.choice([0.0, 0.0, random.uniform(0.0, 30.0)])
        world.at(arrives_s, lambda one=one: one.process.start(one.main()))  # type: ignore[misc]
        for _ in range(random.randint(0, 3)):
            pause_s = random.choice([0.3, 3.0, 10.0, 20.0, 60.0])
            world.at(random.uniform(0.0, 120.0), lambda one=one, pause_s=pause_s: one.process.pause(pause_s))  # type: ignore[misc]
        if deaths and number and random.random() < 0.4:
            world.at(random.uniform(0.0, 60.0), one.process.kill)
    world.run(25_000.0)
    return story, participants


def judge(story: Story) -> None:
    """Nobody believes to lead after a later attempt has believed it; nothing is published twice."""
    newest = 0
    for _, attempt in story.checks:
        assert attempt >= newest, f"attempt {attempt} went on after {newest} had begun"
        newest = attempt
    assert len(story.published) <= 1


@settings(max_examples=examples(400), deadline=None)
@given(SEEDS)
@example(4555874)
def test_one_publishes_and_nobody_waits_for_ever_whoever_dies_or_sleeps_and_whatever_caches_say(seed: int) -> None:
    story, participants = chaos(seed, lambda attempt: "")
    judge(story)
    assert len(story.published) == 1
    living = {number for number, one in enumerate(participants) if one.process.alive}
    assert {number: story.ended.get(number) for number in living} == dict.fromkeys(living, "Return")


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_an_error_of_the_input_ends_it_for_all(seed: int) -> None:
    story, participants = chaos(seed, lambda attempt: "refused")
    judge(story)
    assert not story.published
    for number, one in enumerate(participants):
        if one.process.alive:
            assert story.ended.get(number) in ("RaiseOwnError", "RaiseLeadersError")


def test_without_deaths_and_pauses_an_error_of_the_input_is_met_once() -> None:
    story, world = Story(), World(Random(1), Directory(), slow=0.0)
    for number in range(6):
        one = Participant(world, number, story, steps=3, fails=lambda attempt: "refused", deadline_s=100.0)
        one.process.start(one.main())
    world.run(50.0)
    assert len(story.begun) == 1
    assert sorted(story.ended.values()) == ["RaiseLeadersError"] * 5 + ["RaiseOwnError"]


@settings(max_examples=examples(150), deadline=None)
@given(SEEDS)
def test_work_that_fails_a_few_times_is_done_in_the_end(seed: int) -> None:
    story, participants = chaos(seed, lambda attempt: "failed" if attempt <= 3 else "", deaths=False)
    judge(story)
    assert len(story.published) == 1
    assert set(story.ended.values()) == {"Return"} and len(story.ended) == len(participants)
