"""What `ebbtide up` waits for, and when it gives up; by the status that the arbiter really gives."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.events import Body, GrantSeat, SeatGone, SeatLanded, SeatReady, SeatStopped, SlotFreed
from ebbtide.pool.ids import EndpointName
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.config_agreement import seats_to_change
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.lifecycle.rollout import Rollout, failures_before, rollout
from ebbtide_autoscaler.service.pool_view import view
from tests.builders.policy import NOW, S0, S1, SEAT0, SEAT1, a_pool, fold
from tests.builders.pool_files import file

CHAT = EndpointName("chat")
FAILS: tuple[Body, ...] = (
    GrantSeat(SEAT1, (S1,), "r"), SeatLanded(SEAT1, "a"), SeatStopped(SEAT1, "no luck"), SlotFreed(S1), SeatGone(SEAT1),
)  # fmt: skip
COMES: tuple[Body, ...] = (GrantSeat(SEAT0, (S0,), "r"), SeatLanded(SEAT0, "a"))
SERVES: tuple[Body, ...] = (*COMES, SeatReady(SEAT0, ()))


def declared(config: PoolFile, state: PoolState | None = None) -> PoolState:
    """The file is in force."""
    state = a_pool() if state is None else state
    record = state.endpoints[CHAT]
    return replace(state, endpoints={CHAT: replace(record, spec=config.endpoints[0].spec())})


def look(
    config: PoolFile,
    state: PoolState,
    *,
    waits: Mapping[str, str] | None = None,
    before: Mapping[str, int] | None = None,
    watched: set[str] | None = None,
) -> Rollout:
    status = view(state, Observation(started_s=NOW), waits or {}, NOW)
    rolling = seats_to_change(config, state)
    watched = set(rolling) | (watched or set())
    return rollout(config, rolling, status, before=before or {}, watched=watched)


def test_without_a_minimum_nothing_is_waited_for() -> None:
    assert look(file(0), declared(file(0))) == Rollout()
    assert look(file(0), fold(declared(file(0)), *FAILS, *FAILS, at_s=NOW)) == Rollout(), "a later start is no rollout"


def test_an_endpoint_that_always_has_a_replica_is_waited_for_until_one_serves() -> None:
    config = file(1)
    state = declared(config)
    assert look(config, state).left == ("chat: it has no replica yet",)
    assert look(config, fold(state, *COMES, at_s=NOW)).left == ("chat: its first replica starts",)
    assert look(config, fold(state, *SERVES, at_s=NOW)) == Rollout()


def test_the_second_failed_start_is_the_end_and_the_cause_comes_first() -> None:
    config = file(1)
    once, twice = (fold(declared(config), *FAILS * times, at_s=NOW - 1) for times in (1, 2))
    assert look(config, once) == Rollout(("chat: it has no replica yet; a start failed: no luck",), (), False)
    assert look(config, twice).failed == (
        "chat: no luck (2 starts failed in a row; it has no replica, and is tried again; more: ebbtide logs chat/1)",
    )


def test_one_failed_start_is_the_end_where_another_would_end_alike() -> None:
    config = file(1)
    refused = fold(declared(config), *FAILS[:2], SeatStopped(SEAT1, "no such value", permanent=True), at_s=NOW - 1)
    said = "chat: no such value (it would end alike on every slot; it has no replica, and is tried again; "
    assert look(config, refused).failed == (f"{said}more: ebbtide logs chat/1)",)
    assert look(file(0), fold(declared(file(0)), *FAILS[:2], *refused_then_gone(), at_s=NOW)) == Rollout()
    mended = file(1, seed=1)
    assert not look(mended, declared(mended, fold(refused, *FAILS[3:], at_s=NOW))).failed


def refused_then_gone() -> tuple[Body, ...]:
    return (SeatStopped(SEAT1, "no such value", permanent=True), *FAILS[3:])


def test_a_revision_that_fails_is_the_end_while_the_old_replica_serves_on() -> None:
    old, new = file(0), file(0, seed=1)
    state = declared(new, fold(declared(old), *SERVES, at_s=NOW - 100))
    assert look(new, state).left == ("chat: chat/0",)
    failed = fold(state, *FAILS * 2, at_s=NOW - 1)
    (said,) = look(new, failed).failed
    assert said.startswith("chat: no luck (2 starts failed in a row; the replicas that it had serve on")


def test_a_revision_whose_old_replica_had_to_go_first_is_watched_to_its_end() -> None:
    """No slot was free for the new one beside the old one."""
    config = file(0)
    state = declared(config)
    assert look(config, fold(state, *FAILS, at_s=NOW), watched={"chat"}).left
    assert look(config, fold(state, *FAILS * 2, at_s=NOW), watched={"chat"}).failed
    assert look(config, fold(state, *COMES, at_s=NOW), watched={"chat"}).left
    assert look(config, fold(state, *SERVES, at_s=NOW), watched={"chat"}) == Rollout()
    assert look(config, state, watched={"chat"}) == Rollout(), "no replica is wanted now"


def test_failures_from_before_do_not_end_it() -> None:
    config = file(1)
    state = fold(declared(config), *FAILS * 3, at_s=NOW - 1)
    status = view(state, Observation(started_s=NOW), {}, NOW)
    before = failures_before(config, status)
    assert before == {"chat": 3}
    assert not look(config, state, before=before).failed
    assert look(config, fold(state, *FAILS, at_s=NOW), before=before).failed
    assert failures_before(file(1, seed=1), status) == {}, "of another revision they say nothing"


@pytest.mark.parametrize(("waits", "waiting"), [({}, False), ({"chat": "no slot is free"}, True)])
def test_what_only_waits_for_slots_is_told_apart(waits: dict[str, str], waiting: bool) -> None:
    config = file(1)
    found = look(config, declared(config), waits=waits)
    assert found.waiting is waiting and found.left[0].endswith("no slot is free" if waits else "no replica yet")
    assert not look(config, fold(declared(config), *COMES, at_s=NOW), waits=waits).waiting
    assert not look(config, fold(declared(config), *FAILS, at_s=NOW), waits=waits).waiting


def test_failures_of_the_file_before_do_not_end_a_rollback() -> None:
    """The arbiter has taken the file, and not yet declared its endpoints anew."""
    bad, good = file(1, seed=1), file(1)
    state = fold(declared(bad, fold(declared(good), *SERVES, at_s=NOW - 100)), *FAILS * 2, at_s=NOW - 1)
    assert look(bad, state).failed
    assert look(good, state) == Rollout(("chat: chat/0",), (), False)


def test_an_endpoint_that_is_not_declared_yet_or_leaves_is_left() -> None:
    config = file(1)
    empty: dict[str, Any] = {"endpoints": []}
    assert rollout(config, {"chat": []}, empty, before={}, watched=set()).left == ("chat: being taken in",)
    assert rollout(config, {"old": ["old/0"]}, empty, before={}, watched=set()).left == ("old: old/0",)
    assert rollout(config, {}, empty, before={}, watched=set()) == Rollout()
