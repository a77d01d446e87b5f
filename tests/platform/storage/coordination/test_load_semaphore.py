"""The bound on cold loaders: never more than it lets in, in order, freed by death, and never in the way of serving."""

import errno
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.coordination.load_semaphore import LoadTerms, LoadTicket, Roster, loading, survey
from ebbtide.storage.errors import NoRoom, StorageError, TransferFailed
from ebbtide.storage.files.file_operations import Operation
from ebbtide.storage.files.shared_files import perform
from ebbtide.storage.leases.lease_file import LeaseFile, Pace, Record
from ebbtide.storage.leases.lease_holder import Holding, System, claim, hold
from ebbtide.storage.leases.liveness import Sighting
from tests.platform.storage.played import Player, until

PATIENT = Pace(beat_s=0.02, stale_after_s=60.0, answer_s=30.0)


def terms(slots: int, deadline_s: float = 60.0) -> LoadTerms:
    return LoadTerms("node 1", slots, deadline_s, pace=PATIENT)


def sighting(file: LeaseFile, *, released: bool = False, dead: bool = False) -> Sighting:
    record = Record("t", f"who has {file.name}", 60.0, released=released)
    return Sighting(file, record.encode(), 0.0, unchanged_s=100.0 if dead else 0.0)


def slot(number: int, generation: int, **state: bool) -> Sighting:
    return sighting(LeaseFile(f"loader-{number}", generation), **state)


def waiting(number: int, token: str, **state: bool) -> Sighting:
    return sighting(LeaseFile(f"waiting-{number:09d}", token=token * 32), **state)


def is_dead(seen: Sighting) -> bool:
    return seen.is_dead(60.0)


# --- who is let in -------------------------------------------------------------------------------------------------


def test_slots_are_free_when_nobody_had_them_or_they_were_released_or_their_holder_died() -> None:
    files = [slot(0, 3), slot(1, 7, released=True), slot(2, 2, dead=True), slot(9, 1)]
    roster = survey(files, 4, is_dead)
    assert roster == Roster(((1, 8), (2, 3), (3, 1)), ("who has loader-0", "who has loader-9"), ())


def test_who_waits_is_known_in_order_and_the_dead_do_not_count() -> None:
    files = [waiting(2, "b"), waiting(2, "a"), waiting(1, "c", dead=True), waiting(1, "d")]
    queue = survey(files, 1, is_dead).queue
    assert queue == (LoadTicket(1, "d" * 32), LoadTicket(2, "a" * 32), LoadTicket(2, "b" * 32))


def test_other_files_are_neither_slots_nor_waiters() -> None:
    files = [
        sighting(LeaseFile("loader-x", 1)),
        sighting(LeaseFile("other", 1)),
        sighting(LeaseFile("loader-0", token="a" * 32)),
        sighting(LeaseFile("object", token="b" * 32)),
    ]
    assert survey(files, 2, is_dead) == Roster(((0, 1), (1, 1)), (), ())


@given(free=st.integers(0, 5), waiters=st.integers(0, 8))
def test_as_many_of_the_first_in_the_queue_are_let_in_as_slots_are_free_each_to_its_own(
    free: int, waiters: int
) -> None:
    queue = tuple(LoadTicket(1 + n // 2, f"{n:032x}") for n in range(waiters))
    roster = Roster(tuple((n, 1) for n in range(free)), (), queue)
    first_choices = [roster.open_to(ticket)[:1] for ticket in queue]
    assert first_choices == [((n, 1),) if n < free else () for n in range(waiters)]
    assert bool(roster.open_to(None)) == (waiters < free), "who comes now comes after all that wait"


@pytest.mark.parametrize("slots", [0, -1])
def test_a_bound_that_lets_nobody_serve_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match="at once would let nobody serve"):
        terms(slots)


# --- with files ----------------------------------------------------------------------------------------------------


def test_the_first_goes_at_once_and_leaves_its_slot_free(tmp_path: Path) -> None:
    directory = tmp_path / "pool" / "loaders"
    for generation in (1, 2, 3):
        with loading(directory, terms(1)) as place:
            assert (place.slot, place.why) == (0, "")
            assert f"loader-0~{generation:09d}" in os.listdir(directory)
    assert not [name for name in os.listdir(directory) if name.startswith("waiting")]


def test_a_slot_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), loading(tmp_path, terms(1)):
        raise KeyError
    with loading(tmp_path, terms(1, deadline_s=0.0)) as place:
        assert place.slot == 0


def test_never_more_than_the_bound_load_at_once_and_all_do(tmp_path: Path) -> None:
    at_once: list[int] = []
    slots: set[int | None] = set()
    now, lock = [0], threading.Lock()

    def one() -> None:
        with loading(tmp_path, terms(3)) as place:
            with lock:
                now[0] += 1
                at_once.append(now[0])
                slots.add(place.slot)
            time.sleep(0.05)
            with lock:
                now[0] -= 1

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert len(at_once) == 12 and max(at_once) <= 3
    assert None not in slots


def test_they_are_let_in_as_they_came(tmp_path: Path) -> None:
    order: list[int] = []
    blocker = claim(tmp_path, "loader-0", 1, who="first", pace=PATIENT)
    assert blocker is not None

    def one(number: int) -> None:
        with loading(tmp_path, terms(1)):
            order.append(number)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=one, args=(number,)))
        threads[-1].start()
        until(lambda: sum(name.startswith("waiting") for name in os.listdir(tmp_path)) == len(threads))
    blocker.release()
    for thread in threads:
        thread.join(120.0)
    assert order == [0, 1, 2, 3, 4]


def test_whoever_comes_while_others_wait_does_not_slip_in_before_them(tmp_path: Path) -> None:
    with hold(tmp_path, "waiting-000000007", who="other", pace=PATIENT):
        waits: list[str] = []
        with loading(tmp_path, terms(1, deadline_s=0.3), on_wait=waits.append) as place:
            assert place.slot is None
        assert waits[0] == "0 load (), 1 wait before"
        with loading(tmp_path, terms(2)) as place:
            assert place.slot == 1


def test_after_the_deadline_one_goes_anyway_and_says_why(tmp_path: Path) -> None:
    with claim(tmp_path, "loader-0", 1, who="node 7", pace=PATIENT) as blocker:  # type: ignore[union-attr]
        waits: list[str] = []
        with loading(tmp_path, terms(1, deadline_s=0.3), on_wait=waits.append) as place:
            assert place.slot is None and place.waited_s >= 0.3
            assert place.why.startswith("goes without a slot after 0.3")
            assert place.why.endswith("1 load (node 7), 0 wait before")
        assert waits and waits[-1] == "1 load (node 7), 0 wait before"
        assert not [name for name in os.listdir(tmp_path) if name.startswith("waiting")]
        blocker.confirm()


def test_a_listing_that_is_old_does_not_hide_the_slots_that_are_free(tmp_path: Path) -> None:
    taken = claim(tmp_path, "loader-0", 1, who="node 7", pace=PATIENT)
    assert taken is not None

    def old_listing(operation: Operation) -> Any:
        found = perform(operation)
        return frozenset() if isinstance(found, frozenset) else found

    stale = replace(terms(2), system=System(perform=old_listing))
    with loading(tmp_path, stale) as place:
        assert place.slot == 1
    taken.release()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOSPC])
def test_a_directory_that_cannot_be_used_keeps_nobody(tmp_path: Path, code: int) -> None:
    def fail(operation: Operation) -> Any:
        error: StorageError = TransferFailed("create", operation.path, errno=code)
        raise NoRoom("the filesystem is full") if code == errno.ENOSPC else error

    begun_s = time.monotonic()
    with loading(tmp_path, replace(terms(1), system=System(perform=fail))) as place:
        assert place.slot is None and "cannot tell who loads" in place.why
    assert time.monotonic() - begun_s < 30.0


def test_a_directory_that_fails_now_and_then_is_asked_again(tmp_path: Path) -> None:
    calls = [0]

    def fail_at_first(operation: Operation) -> Any:
        calls[0] += 1
        if calls[0] <= 3:
            raise TransferFailed("list", operation.path, errno=errno.EIO)
        return perform(operation)

    waits: list[str] = []
    with loading(tmp_path, replace(terms(1), system=System(perform=fail_at_first)), on_wait=waits.append) as place:
        assert place.slot == 0
    assert len(waits) == 3 and "EIO" in waits[0]


def test_a_directory_that_hangs_keeps_nobody_beyond_the_deadline(tmp_path: Path) -> None:
    let_go = threading.Event()

    def hang(operation: Operation) -> Any:
        let_go.wait(60.0)
        return perform(operation)

    hasty = LoadTerms("n", 1, deadline_s=0.3, pace=Pace(0.02, 60.0, answer_s=0.2), system=System(perform=hang))
    begun_s = time.monotonic()
    with loading(tmp_path, hasty) as place:
        assert place.slot is None and "hangs or is very slow" in place.why
    assert time.monotonic() - begun_s < 30.0
    let_go.set()


def test_an_interrupted_wait_leaves_the_queue(tmp_path: Path) -> None:
    def interrupt(why: str) -> None:
        raise KeyboardInterrupt

    blocker: Holding | None = claim(tmp_path, "loader-0", 1, who="node 7", pace=PATIENT)
    assert blocker is not None
    with pytest.raises(KeyboardInterrupt), loading(tmp_path, terms(1), on_wait=interrupt):
        raise AssertionError("it is not its turn")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("waiting")]
    blocker.release()


# --- real processes ------------------------------------------------------------------------------------------------


def test_a_loader_that_is_killed_frees_its_slot_and_a_waiter_that_is_killed_its_place(tmp_path: Path) -> None:
    with ExitStack() as stack:
        loader = stack.enter_context(Player("load", tmp_path, 1, 1000.0))
        loader.wait_for("loads")
        first = stack.enter_context(Player("load", tmp_path, 1, 0.1))
        first.wait_for("waits")
        second = stack.enter_context(Player("load", tmp_path, 1, 0.1))
        second.wait_for("waits")
        first.kill()
        loader.kill()
        assert second.wait_for("loads")["slot"] == 0
        assert second.end() == 0
    assert not [name for name in os.listdir(tmp_path) if name.startswith("waiting")], "the dead are buried"


def test_six_processes_load_two_at_a_time(tmp_path: Path) -> None:
    with ExitStack() as stack:
        players = [stack.enter_context(Player("load", tmp_path, 2, 0.3)) for _ in range(6)]
        assert all(player.end() == 0 for player in players)
        spans = [(player.wait_for("loads")["at_s"], player.wait_for("loaded")["at_s"]) for player in players]
        assert all(player.wait_for("loads")["slot"] in (0, 1) for player in players)
    for began_s, _ in spans:
        assert sum(other <= began_s < ended_s for other, ended_s in spans) <= 2
