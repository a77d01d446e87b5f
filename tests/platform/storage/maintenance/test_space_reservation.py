"""Room: who asks for more than there is gets one clear answer, and two who ask at once never get too much."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import NoRoom
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.maintenance.garbage_plan import Fate, Verdict
from ebbtide.storage.maintenance.space_reservation import (
    RESERVATION,
    Reservation,
    lack_bytes,
    measure,
    reserve,
    what_to_change,
    what_to_collect,
)
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.store_limits import Budget
from tests.examples import examples
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import (
    CHUNK,
    KEY,
    NO_GRACE,
    ROOMY,
    leftovers,
    publish_model,
    random_bytes,
    store_at,
    within,
)

SIZES = st.integers(0, 1000)


@pytest.mark.proves("the budget of the store is kept", "what is free for others stays free")
@pytest.mark.parametrize(
    ("room", "budget", "lack"),
    [
        (Reservation(100, 0, 0, 100), Budget(None, 0), 0),
        (Reservation(100, 0, 0, 101), Budget(None, 0), 1),
        (Reservation(100, 0, 0, 100), Budget(None, 10), 10),
        (Reservation(100, 0, 50, 150), Budget(None, 0), 0),
        (Reservation(5, 0, 50, 50), Budget(None, 10), 0),  # nothing is to come: what is kept free is no concern of ours
        (Reservation(1000, 60, 0, 40), Budget(100, 0), 0),
        (Reservation(1000, 60, 0, 41), Budget(100, 0), 1),
        (Reservation(1000, 60, 50, 41), Budget(100, 0), 10),
        (Reservation(0, 60, 0, 90), Budget(100, 0), 90),
    ],
)
def test_what_is_missing(room: Reservation, budget: Budget, lack: int) -> None:
    assert lack_bytes(room, budget) == lack


@pytest.mark.parametrize(
    ("room", "budget", "what"),
    [
        (Reservation(1000, 60, 0, 41), Budget(100, 0), "raise pool.storage.models_max"),
        (
            Reservation(10, 60, 0, 41),
            Budget(100, 0),
            "raise pool.storage.models_max",
        ),  # it is the first that is in the way
        (Reservation(100, 60, 0, 91), Budget(None, 10), "lower pool.storage.keep_free"),
        (Reservation(100, 0, 0, 101), Budget(None, 10), ""),  # a full disk is no matter of words in a file
    ],
)
def test_what_is_to_be_changed_is_named(room: Reservation, budget: Budget, what: str) -> None:
    assert lack_bytes(room, budget) > 0
    assert what_to_change(room, budget, "models_max") == what


@settings(max_examples=examples(200), deadline=None)
@given(st.builds(Reservation, SIZES, SIZES, SIZES, SIZES), st.builds(Budget, st.none() | SIZES, SIZES), SIZES)
def test_more_room_never_lacks_more_and_what_lacks_is_enough(room: Reservation, budget: Budget, more: int) -> None:
    lack = lack_bytes(room, budget)
    roomier = Reservation(
        room.free_bytes + more, max(0, room.stored_bytes - more), room.written_bytes, room.reserved_bytes
    )
    assert lack_bytes(roomier, budget) <= lack
    freed = Reservation(room.free_bytes + lack, room.stored_bytes - lack, room.written_bytes, room.reserved_bytes)
    assert lack_bytes(freed, budget) == 0


@pytest.mark.proves("who wrote more than it reserved counts with what it wrote")
def test_room_is_measured_and_reserved_until_the_work_ends(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store)
    stored = measure(store.ports).stored_bytes
    assert stored > 262_144
    with store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK) as work:
        reserve(store.ports, work.attempt, 100_000)
        assert measure(store.ports).reserved_bytes == 100_000
        work.add(work.staging.write_bytes("a.safetensors", random_bytes(150_000)))
        room = measure(store.ports)
        assert room.reserved_bytes == room.written_bytes > 150_000 and room.stored_bytes == stored
        object_id = work.publish()
    assert not (store.paths.object(object_id) / RESERVATION).exists()
    room = measure(store.ports)
    assert room.reserved_bytes == room.written_bytes == 0 and room.stored_bytes > stored + 150_000


@pytest.mark.proves("who is refused has reserved nothing")
def test_a_refusal_says_what_is_missing_and_what_could_go_and_reserves_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store)
    tight = within(store, Budget(max_bytes=1_000_000, keep_free_bytes=0))
    with store.publication(Kind.MODEL, KEY) as work:
        with pytest.raises(NoRoom, match=r"no room for 2\.0 MB .* 1\.3 MB are missing .*budget 1\.0 MB") as told:
            reserve(tight.ports, work.attempt, 2_000_000)
        assert "would free 0 bytes, which is not enough. The largest that it keeps: " in str(told.value)
        assert "named by org/model:latest" in str(told.value)
        assert str(told.value).endswith("-> raise pool.storage.models_max in the pool's file: ebbtide up")
        assert measure(store.ports).reserved_bytes == 0
        reserve(tight.ports, work.attempt, 500_000)
        reserve(tight.ports, work.attempt, 100_000)
        assert measure(store.ports).reserved_bytes == 100_000
    store.refs.delete("org/model", "latest")
    freed = r"Collecting garbage would free 266\d\d\d bytes\."
    with store.publication(Kind.MODEL, KEY) as work, pytest.raises(NoRoom, match=freed):
        reserve(tight.ports, work.attempt, 800_000, grace=NO_GRACE)
    assert leftovers(store) == []


def test_the_free_space_of_the_filesystem_counts(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with (
        store.publication(Kind.MODEL, KEY) as work,
        pytest.raises(NoRoom, match=r"kept for others.*lower pool\.storage\.keep_free"),
    ):
        reserve(within(store, Budget(keep_free_bytes=1 << 60)).ports, work.attempt, 1)


def test_those_who_reserve_at_once_never_get_more_than_there_is(tmp_path: Path) -> None:
    store = within(store_at(tmp_path / "store"), Budget(max_bytes=350_000, keep_free_bytes=0))

    def ask(number: int) -> bool:
        with store.publication(Kind.MODEL, KEY, attempt_name=f"a{number}", keep=True) as work:
            try:
                reserve(store.ports, work.attempt, 100_000)
            except NoRoom:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        granted = sum(pool.map(ask, range(8)))
    assert granted <= 3
    assert measure(store.ports).reserved_bytes == granted * 100_000


def test_a_file_of_full_length_that_is_hardly_written_is_still_to_come(tmp_path: Path) -> None:
    """Where nothing can be allocated ahead, files get their length first and their bytes later."""
    store = store_at(tmp_path / "store")
    with store.publication(Kind.MODEL, KEY, attempt_name="first") as work:
        reserve(store.ports, work.attempt, 100_000_000)
        path = store.paths.work(work.attempt) / "a.safetensors"
        path.write_bytes(b"x" * 10_000)
        os.truncate(path, 100_000_000)
        room = measure(store.ports)
        assert room.reserved_bytes == 100_000_000 and room.written_bytes < 1_000_000
        assert lack_bytes(replace(room, free_bytes=50_000_000), ROOMY) > 49_000_000


@pytest.mark.proves("holes that stay are not to come", "without a reservation a file's length counts")
def test_holes_that_whoever_reserved_does_not_mean_to_fill_are_not_to_come(tmp_path: Path) -> None:
    """What is fetched to mend a file has holes where the file is right."""
    store = store_at(tmp_path / "store")
    with store.publication(Kind.MODEL, KEY) as work:
        path = store.paths.work(work.attempt) / "a.safetensors"
        path.touch()
        os.truncate(path, 100_000_000)
        assert measure(store.ports).reserved_bytes == 100_000_000, "nobody has said anything"
        reserve(store.ports, work.attempt, 1000)
        assert measure(store.ports).reserved_bytes == 1000
        path.write_bytes(random_bytes(10_000))
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        room = measure(store.ports)
        assert room.reserved_bytes == room.written_bytes == 10_000, "what is there is there"


def test_a_refusal_on_a_full_quota_says_what_could_go(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store, tag=None)

    class OnlyReservations(CountedCalls):
        def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT and Path(path).name != RESERVATION:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            return super().open(path, flags, mode)

    with store.publication(Kind.MODEL, KEY) as work:
        crowded = within(store_at(tmp_path / "store", disk=Disk(OnlyReservations())), Budget(max_bytes=1_000_000))
        with pytest.raises(NoRoom, match="Collecting garbage would free 266"):
            reserve(crowded.ports, work.attempt, 800_000, grace=NO_GRACE)


@pytest.mark.proves("a reservation below zero counts for nothing")
def test_a_reservation_that_makes_no_sense_counts_for_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    for number, text in enumerate((b"", b"-5", b"x" * 100, b"1e9", b"99\n")):
        (store.paths.incoming / str(number)).mkdir()
        (store.paths.incoming / str(number) / RESERVATION).write_bytes(text)
        (store.paths.incoming / str(number) / "a").touch()
        os.truncate(store.paths.incoming / str(number) / "a", 1000 if number < 4 else 0)
    (store.paths.incoming / "file").write_bytes(b"stranger")
    assert measure(store.ports).reserved_bytes == 4 * 1000 + 99


def test_the_advice_names_the_largest_first() -> None:
    def kept(size: int) -> Verdict:
        return Verdict(Path(f"o{size}"), Fate.KEEP, f"why {size}", size * 10**9)

    told = what_to_collect([*map(kept, (1, 4, 2, 3)), Verdict(Path("x"), Fate.TRASH, "", 10**9)], 2 * 10**9)
    assert told == (
        "Collecting garbage would free 1.0 GB, which is not enough. The largest that it keeps: "
        "o4 (4.0 GB: why 4); o3 (3.0 GB: why 3); o2 (2.0 GB: why 2)"
    )
    assert (
        what_to_collect([Verdict(Path("x"), Fate.REMOVE, "", 3 * 10**12)], 1) == "Collecting garbage would free 3.0 TB."
    )
