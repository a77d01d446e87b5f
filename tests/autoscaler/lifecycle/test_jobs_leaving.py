"""What is said of each job while a pool goes down: it never says "nothing lost" where steps are repeated."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.transitions import JobState
from ebbtide_autoscaler.lifecycle.jobs_leaving import (
    ON_ITS_WAY,
    LeavingJob,
    follow,
    how_it_went,
    how_to_go_on,
    waits_for,
)
from tests.builders.commands import a_row


def after(*rows: dict[str, Any]) -> LeavingJob:
    known: dict[str, LeavingJob] = {}
    for row in rows:
        known = follow(known, {"jobs": [row]})
    return known["train"]


def test_jobs_that_have_no_slots_are_not_waited_for() -> None:
    for state in ("waiting", "recovering", "ended"):
        assert follow({}, {"jobs": [a_row(state)]}) == {}


def test_one_that_steps_aside_goes_on_from_its_last_step() -> None:
    one = after(a_row(), a_row("stopping"), a_row("waiting", step=10, durable_step=10))
    assert not one.awaited and one.repeats == 0
    assert how_it_went(one) == "job train has stepped aside at step 10, all of it on the shared filesystem"
    assert list(how_to_go_on({"train": one}, "pool.yaml")) == ["`ebbtide up pool.yaml` lets go on: train from step 10"]


@pytest.mark.parametrize("then", ["recovering", "waiting"])
def test_one_that_crashes_on_its_way_is_told_as_such_with_its_steps(then: str) -> None:
    why = "it did not step aside within its grace of 30 s"
    one = after(a_row(), a_row("stopping", step=12), a_row(then, step=4, crashes=1, last_error=f"{why}\nmore"))
    assert not one.awaited and one.repeats == 8
    told = f"job train has crashed on its way ({why}): it goes on from step 4, and repeats 8 steps at least"
    assert how_it_went(one) == told


def test_a_crash_of_long_ago_is_none_of_now() -> None:
    one = after(a_row(crashes=3), a_row("waiting", crashes=3, durable_step=9))
    assert not one.crashed and "has stepped aside" in how_it_went(one)


def test_one_that_does_not_come_to_a_safe_point_is_ended_with_the_pool() -> None:
    one = after(a_row("stopping"))
    assert one.awaited and one.repeats == 5
    assert how_it_went(one) == "job train is ended with the pool: it goes on from step 4, and repeats 5 steps at least"


def test_one_that_only_starts_repeats_nothing() -> None:
    one = after(a_row("starting", step=4))
    assert waits_for(one) == "starts; it can be asked to step aside when it runs"
    assert how_it_went(one) == "job train is ended with the pool: it goes on from step 4, and repeats none"


def test_a_full_disk_is_waited_for_and_named() -> None:
    one = after(a_row("stopping", park_refused="no space left on /shared"))
    assert one.awaited and waits_for(one) == "its checkpoint cannot be published yet: no space left on /shared"
    old = after(a_row("running", commit_error="of the checkpoint before"))
    assert "cannot be published" not in waits_for(old), "what failed before says nothing of the one to come"


def test_a_session_that_refuses_is_not_waited_for_and_what_is_lost_is_said() -> None:
    row = a_row("stopping", interactive=True, park_refused="no helper runs on its node", step=1, durable_step=0)
    one = after(row)
    assert not one.awaited
    told = "session train is ended with the pool (no helper runs on its node): what it has in memory is lost, and "
    assert how_it_went(one) == told + "there is no image of it"
    assert how_it_went(after({**row, "step": 3, "durable_step": 2})) == told + "it goes back to its image 2"


def test_a_session_becomes_an_image() -> None:
    one = after(a_row(interactive=True))
    assert waits_for(one) == "becomes an image on the shared filesystem"
    # Once it has left there are no reports of it: that it is a session is known from before.
    gone = after(a_row(interactive=True), a_row("waiting", durable_step=9))
    assert how_it_went(gone) == "session train has stepped aside at its image, all of it on the shared filesystem"


def test_one_that_was_started_by_hand_is_to_be_started_by_hand_again() -> None:
    one = after(a_row(), a_row("waiting", durable_step=9, restorable=False))
    (line,) = how_to_go_on({"train": one}, "pool.yaml")
    assert line.startswith("train from step 9: submit it again after `ebbtide up`")


def test_one_that_ends_by_itself_or_is_forgotten_is_over() -> None:
    for one in (after(a_row(), a_row("ended")), follow({"train": after(a_row())}, {"jobs": []})["train"]):
        assert not one.awaited and how_it_went(one) == "job train has ended by itself"
        assert list(how_to_go_on({"train": one}, "f")) == []


ROWS = st.builds(
    a_row,
    st.sampled_from([state.value for state in JobState]),
    step=st.integers(0, 99),
    durable_step=st.integers(0, 99),
    crashes=st.integers(0, 2),
    interactive=st.booleans(),
    park_refused=st.sampled_from([None, "no"]),
)


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_whatever_it_goes_through_no_safe_end_is_told_that_is_none(rows: list[dict[str, Any]]) -> None:
    known: dict[str, LeavingJob] = {}
    for row in rows:
        known = follow(known, {"jobs": [row]})
    for one in known.values():
        safe = "all of it on the shared filesystem" in how_it_went(one)
        assert safe == (one.state not in ON_ITS_WAY and one.state != "ended" and not one.crashed)
        assert one.step >= max(row["step"] for row in rows[-1:])
        assert not one.awaited or one.state in ON_ITS_WAY
        assert waits_for(one)
