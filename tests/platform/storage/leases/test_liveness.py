"""Who counts as dead, and who must stop believing: whatever clocks, servers and schedulers do, the holder is first."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.file_operations import Operation
from ebbtide.storage.leases import lease_file
from ebbtide.storage.leases.lease_file import LeaseFile, Pace, Record
from ebbtide.storage.leases.liveness import Sighting, Tenancy
from tests.examples import examples
from tests.platform.storage.shared_model import Directory, Process, Sleep, World

FILE = LeaseFile("object", token="a" * 32)
PACE = Pace(beat_s=1.0, stale_after_s=12.0)
HERE = Path("/shared/leases")


def content(beat: int, **more: Any) -> bytes:
    return replace(Record("t", "w", stale_after_s=12.0, beat=beat), **more).encode()


def seen(*looks: tuple[float, float, bytes], least_s: float = 12.0) -> Sighting:
    """After looks that each began and ended then, and read that."""
    (_, first_s, first), *others = looks
    sighting = Sighting(FILE, first, first_s)
    for began_s, ended_s, read in others:
        sighting = sighting.again(read, began_s, ended_s, least_s)
    return sighting


def test_a_holder_is_dead_when_its_file_was_seen_unchanged_for_long_enough() -> None:
    looks = [(float(t), t + 0.1, content(1)) for t in range(15)]
    assert not seen(*looks[:14]).is_dead(12.0)
    assert seen(*looks).is_dead(12.0)


def test_any_change_is_a_sign_of_life_and_time_starts_again() -> None:
    looks = [(float(t), t + 0.1, content(1 if t < 11 else 2)) for t in range(22)]
    sighting = seen(*looks)
    assert sighting.changed and not sighting.is_dead(12.0)


def test_only_the_time_between_looks_counts_not_that_of_a_look_that_hung() -> None:
    looks = [(0.0, 0.0, content(1))] + [(4.0 * n, 4.0 * n + 3.9, content(1)) for n in range(1, 20)]
    assert seen(*looks).unchanged_s < 4.0 + 19 * 0.11


def test_an_observer_that_was_paused_itself_condemns_nobody_when_it_wakes_up() -> None:
    looks = [(0.0, 0.0, content(1)), (1.0, 1.0, content(1)), (1000.0, 1000.0, content(1))]
    assert not seen(*looks).is_dead(12.0)
    assert seen(*looks, (1004.0, 1004.0, content(1)), (1008.0, 1008.0, content(1))).is_dead(12.0)


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    assert seen((5.0, 5.0, content(1)), (1.0, 1.0, content(1))).unchanged_s == 0.0


def test_a_file_that_asks_for_more_patience_gets_it_and_one_that_asks_for_less_does_not() -> None:
    patient = [(4.0 * n, 4.0 * n, content(1, stale_after_s=30.0)) for n in range(9)]
    assert not seen(*patient[:8]).is_dead(12.0) and seen(*patient).is_dead(12.0)
    hasty = [(1.0 * n, 1.0 * n, content(1, stale_after_s=0.5)) for n in range(13)]
    assert not seen(*hasty[:12]).is_dead(12.0) and seen(*hasty).is_dead(12.0)


def test_a_file_without_a_word_dies_like_any_other_and_a_released_one_is_not_dead() -> None:
    assert seen(*[(3.0 * n, 3.0 * n, b"") for n in range(6)]).is_dead(12.0)
    assert seen(*[(3.0 * n, 3.0 * n, b"\0garbage") for n in range(6)]).is_dead(12.0)
    assert not seen(*[(3.0 * n, 3.0 * n, content(1, released=True)) for n in range(6)]).is_dead(12.0)


def test_a_holder_gives_up_at_half_of_what_observers_bear_counted_from_the_beginning_of_its_last_good_beat() -> None:
    tenancy = Tenancy(PACE.fence_s, 100.0).beaten(102.0, 105.9, "")
    assert tenancy.at(108.0).lost == ""
    assert "no beat for 6.1 s, 6 s are allowed: this process stood still" in tenancy.at(108.1).lost


def test_a_beat_after_too_long_a_gap_does_not_bring_it_back() -> None:
    tenancy = Tenancy(PACE.fence_s, 100.0).beaten(106.5, 106.6, "")
    assert tenancy.lost and tenancy.beaten(106.7, 106.8, "").at(106.9).lost == tenancy.lost


def test_a_beat_that_ended_too_late_counts_as_too_long_a_gap() -> None:
    assert Tenancy(PACE.fence_s, 100.0).beaten(101.0, 106.5, "").lost


def test_failing_beats_are_borne_until_the_fence_and_then_named() -> None:
    tenancy = Tenancy(PACE.fence_s, 100.0).failed("EROFS", 103.0)
    assert tenancy.lost == "" and tenancy.at(105.0).lost == ""
    assert tenancy.beaten(105.0, 105.0, "").at(110.0).lost == "", "it has recovered"
    assert "EROFS" in tenancy.at(107.0).lost


def test_an_objection_ends_it_at_once() -> None:
    assert Tenancy(PACE.fence_s, 100.0).beaten(101.0, 101.0, "somebody else's").lost == "somebody else's"


Run = Generator[Operation | Sleep, Any, None]


class Pair:
    """A holder that beats, and an observer that watches it."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        directory = Directory(read_lag_s=random.choice([0.0, 2.0, 5.0]))
        self.world = World(random, directory, slow=random.choice([0.05, 0.2, 0.5]), failing=random.choice([0.0, 0.2]))
        self.holder, self.observer = self.world.process(0), self.world.process(1)
        self.condemned_s: float | None = None
        self.believed_s = 0.0

    def hold(self) -> Run:
        tenancy = Tenancy(PACE.fence_s, self.holder.clock_s())
        record = Record("t", "w", PACE.stale_after_s)
        made = yield from _attempt(lease_file.create(HERE, FILE, record))
        self.holder.start(self._believe(lambda: tenancy))
        while made == "" and not tenancy.lost:
            yield Sleep(PACE.beat_s)
            record = replace(record, beat=record.beat + 1)
            began_s = self.holder.clock_s()
            objection = yield from _attempt(lease_file.beat(HERE, FILE, record))
            ended_s = self.holder.clock_s()
            tenancy = (
                tenancy.failed("EIO", ended_s) if objection is None else tenancy.beaten(began_s, ended_s, objection)
            )

    def _believe(self, tenancy: Any) -> Run:
        while not tenancy().at(self.holder.clock_s()).lost:
            self.believed_s = self.world.now_s
            yield Sleep(0.1)

    def watch(self) -> Run:
        sighting: Sighting | None = None
        while self.condemned_s is None:
            yield Sleep(self.world.random.uniform(0.1, 3.0))
            began_s = self.observer.clock_s()
            contents = yield from _attempt(lease_file.look(HERE))
            if contents and FILE in contents:
                ended_s = self.observer.clock_s()
                sighting = (
                    sighting.again(contents[FILE], began_s, ended_s, PACE.stale_after_s)
                    if sighting
                    else Sighting(FILE, contents[FILE], ended_s)
                )
                if sighting.is_dead(PACE.stale_after_s):
                    self.condemned_s = self.world.now_s


def _attempt(steps: Any) -> Generator[Operation, Any, Any]:
    try:
        return (yield from steps)
    except StorageError:
        return None


def someone_pauses(world: World, process: Process) -> None:
    for _ in range(world.random.randint(0, 6)):
        pause_s = world.random.choice([1.0, 5.0, 11.0, 14.0, 40.0])
        world.at(world.random.uniform(0.0, 100.0), lambda pause_s=pause_s: process.pause(pause_s))  # type: ignore[misc]


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 2**32))
def test_whoever_is_condemned_has_stopped_believing_before(seed: int) -> None:
    pair = Pair(seed)
    pair.holder.start(pair.hold())
    pair.observer.start(pair.watch())
    someone_pauses(pair.world, pair.holder)
    someone_pauses(pair.world, pair.observer)
    pair.world.run(150.0)
    if pair.condemned_s is not None:
        assert pair.believed_s < pair.condemned_s


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_whoever_dies_is_condemned_in_the_end(seed: int) -> None:
    pair = Pair(seed)
    pair.holder.start(pair.hold())
    pair.observer.start(pair.watch())
    pair.world.at(pair.world.random.uniform(0.0, 50.0), pair.holder.kill)
    pair.world.run(600.0)
    assert pair.condemned_s is not None or not pair.world.directory.names()
