"""Leases with real threads, processes and files: killed, paused, and on directories that fail or hang."""

import errno
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import NoRoom, Refused, Superseded, TransferFailed, TransferTimeout
from ebbtide.storage.files.file_operations import CreateFile, Overwrite
from ebbtide.storage.files.shared_files import perform
from ebbtide.storage.leases.lease_file import LeaseFile, Pace, Record
from ebbtide.storage.leases.lease_holder import Holding, System, claim, hold
from ebbtide.storage.leases.lease_watch import LeaseObserver, living
from ebbtide.storage.leases.liveness import Sighting
from tests.builders.store import HASTY, PATIENT, Broken, names
from tests.platform.storage.lease_process import PACE
from tests.platform.storage.played import Player, until

PATIENT_TO_OTHERS = Pace(beat_s=5.0, stale_after_s=60.0, answer_s=30.0)


def beat_of(holding: Holding) -> int:
    record = Record.decode((holding.directory / str(holding.file)).read_bytes())
    assert record is not None
    return record.beat


@pytest.fixture
def broken() -> Any:
    one = Broken()
    yield one
    one.let_go.set()


def test_what_is_held_is_living_until_the_last_holder_lets_go(tmp_path: Path) -> None:
    directory = tmp_path / "leases"
    with hold(directory, "object", who="a", pace=PATIENT) as first:
        assert directory.stat().st_mode & 0o777 == 0o700
        with hold(directory, "object", who="b", pace=PATIENT), hold(directory, "other", who="c", pace=PATIENT):
            assert living(directory, pace=PATIENT) == {"object", "other"}
        assert living(directory, pace=PATIENT) == {"object"}
        first.check()
    assert living(directory, pace=PATIENT) == frozenset()
    assert names(directory) == set()


def test_a_holder_beats_and_says_what_it_is_told_to(tmp_path: Path) -> None:
    with hold(tmp_path, "x", who="node 1", pace=PATIENT) as holding:
        until(lambda: beat_of(holding) >= 3)
        holding.say({"phase": "copying", "done_bytes": 7})
        holding.confirm()
        (seen,) = LeaseObserver(tmp_path, pace=PATIENT).look()
        assert seen.record is not None
        assert (seen.record.who, seen.record.note) == ("node 1", {"phase": "copying", "done_bytes": 7})


def test_a_confirmation_is_a_beat_of_its_own_made_after_it_was_asked_for(tmp_path: Path) -> None:
    slow = Pace(beat_s=100.0, stale_after_s=1000.0)
    with hold(tmp_path, "x", who="a", pace=slow) as holding:
        for number in (1, 2, 3):
            holding.confirm()
            assert beat_of(holding) == number
        (tmp_path / str(holding.file)).unlink()
        holding.check()  # it cannot know yet
        with pytest.raises(Superseded, match="gone or somebody else's"):
            holding.confirm()
        with pytest.raises(Superseded, match="leave all as it is"):
            holding.check()


@pytest.mark.proves("a file that is there already was not created by who asks for it")
def test_of_many_claimants_exactly_one_holds(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        claims = list(threads.map(lambda n: claim(tmp_path, "x", 1, who=str(n), pace=PATIENT), range(8)))
    (holding,) = [one for one in claims if one is not None]
    holding.check()
    assert holding.release({"outcome": "done"})
    assert claim(tmp_path, "x", 1, who="late", pace=PATIENT) is None, "a number is never used twice"
    (seen,) = LeaseObserver(tmp_path, pace=PATIENT).look()
    assert seen.record is not None and seen.record.released and seen.record.note == {"outcome": "done"}
    assert living(tmp_path, pace=PATIENT) == frozenset()


def test_whoever_was_overtaken_learns_it_from_the_next_beat_and_touches_nothing(tmp_path: Path) -> None:
    first = claim(tmp_path, "x", 1, who="a", pace=PATIENT)
    assert first is not None
    with claim(tmp_path, "x", 2, who="b", pace=PATIENT) as second:  # type: ignore[union-attr]
        until(lambda: bool(first.lost))
        with pytest.raises(Superseded, match=r"x~000000002 .* exists: somebody else took over"):
            first.check()
        before = (tmp_path / str(first.file)).read_bytes()
        assert first.release({"outcome": "done"}) is False
        assert (tmp_path / str(first.file)).read_bytes() == before
        second.check()


def test_anothers_file_in_the_place_of_ones_own_is_left_alone(tmp_path: Path) -> None:
    with hold(tmp_path, "x", who="a", pace=PATIENT) as holding:
        path = tmp_path / str(holding.file)
        other = Record("other" * 6, "somebody", 60.0).encode()
        path.with_name("new").write_bytes(other)
        path.with_name("new").replace(path)
        until(lambda: bool(holding.lost))
    assert path.read_bytes() == other


def test_a_name_from_outside_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    with pytest.raises(Refused):
        hold(tmp_path, "../x", who="a")
    with pytest.raises(Refused):
        claim(tmp_path, "a/b", 1, who="a")
    assert names(tmp_path) == set()


def test_a_fork_does_not_hold_what_its_parent_holds_whatever_its_parents_threads_were_at(tmp_path: Path) -> None:
    busy, done = threading.Event(), threading.Event()

    def keep_lock(holding: Holding) -> None:
        with holding._changed:
            busy.set()
            done.wait(60.0)

    with hold(tmp_path, "x", who="a", pace=PATIENT) as holding, ThreadPoolExecutor(1) as threads:
        keeping = threads.submit(keep_lock, holding)
        busy.wait(60.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                signal.alarm(60)
                held = not holding.lost
                holding.release()
                os._exit(3 if held else 0)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        done.set()
        keeping.result(60.0)
        holding.confirm()


# --- directories that fail or hang ---------------------------------------------------------------------------------


def test_a_directory_that_turns_read_only_is_borne_until_the_fence_and_then_named(
    tmp_path: Path, broken: Broken
) -> None:
    with hold(tmp_path, "x", who="a", pace=HASTY, system=broken.system) as holding:
        broken.error = errno.EROFS
        with pytest.raises(TransferFailed, match="EROFS"):
            holding.confirm()
        holding.check()
        until(lambda: bool(holding.lost))
        with pytest.raises(Superseded, match=r"no beat for .* 3 s are allowed: .*EROFS"):
            holding.check()
        broken.error = 0
        time.sleep(3 * HASTY.beat_s)
        assert holding.lost, "what was lost stays lost, even if nobody else has taken it"


def test_a_short_outage_is_borne(tmp_path: Path, broken: Broken) -> None:
    with hold(tmp_path, "x", who="a", pace=PATIENT, system=broken.system) as holding:
        broken.error = errno.EIO
        for _ in range(3):
            with pytest.raises(TransferFailed):
                holding.confirm()
        broken.error = 0
        holding.confirm()


def test_a_directory_that_hangs_blocks_the_beats_and_not_the_owner(tmp_path: Path, broken: Broken) -> None:
    holding = hold(tmp_path, "x", who="a", pace=HASTY, system=broken.system)
    broken.let_go.clear()
    assert broken.hung.wait(30.0)
    begun_s = time.monotonic()
    with pytest.raises((TransferTimeout, Superseded)):
        holding.confirm()
    assert time.monotonic() - begun_s < 20.0
    until(lambda: bool(holding.lost), patience_s=20.0)
    with pytest.raises(Superseded, match="no beat for"):
        holding.check()
    begun_s = time.monotonic()
    assert holding.release() is False
    assert time.monotonic() - begun_s < 20.0


def test_a_directory_that_hangs_at_first_gives_no_lease_and_keeps_none_when_it_comes_back(
    tmp_path: Path, broken: Broken
) -> None:
    broken.let_go.clear()
    with pytest.raises(TransferTimeout, match="create"):
        hold(tmp_path, "x", who="a", pace=HASTY, system=broken.system)
    with pytest.raises(TransferTimeout, match="create"):
        claim(tmp_path, "y", 1, who="a", pace=HASTY, system=broken.system)
    broken.let_go.set()
    until(lambda: names(tmp_path) == {"y~000000001"})

    def released() -> bool:
        record = Record.decode((tmp_path / "y~000000001").read_bytes())
        return record is not None and record.released

    until(released)


@pytest.mark.proves("a file that could not be made leaves nothing")
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, NoRoom), (errno.EDQUOT, NoRoom), (errno.EIO, TransferFailed)]
)
def test_a_file_that_cannot_be_made_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def fail(fd: int, data: bytes, offset: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(kind):
        hold(tmp_path, "x", who="a", pace=PATIENT)
    assert names(tmp_path) == set()


def test_without_a_thread_nothing_is_held_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TransferFailed, match=r"cannot create .*EAGAIN.*can't start new thread"):
            hold(tmp_path, "x", who="a", pace=PATIENT)
    assert names(tmp_path) == set()
    with hold(tmp_path, "x", who="a", pace=PATIENT) as holding:
        holding.confirm()


def test_who_stood_still_for_too_long_leaves_its_file_until_others_have_seen_its_silence(tmp_path: Path) -> None:
    """Its owner may be at work still, and has not looked yet: nobody may follow before the time."""
    now_s = [0.0]
    holding = claim(tmp_path, "x", 1, who="a", pace=PATIENT, system=System(holder_clock_s=lambda: now_s[0]))
    assert holding is not None
    now_s[0] = PATIENT.stale_after_s
    until(lambda: not holding._thread.is_alive())
    (seen,) = LeaseObserver(tmp_path, pace=PATIENT).look()
    assert seen.record is not None and not seen.record.released
    with pytest.raises(Superseded, match="this process stood still"):
        holding.check()
    assert holding.release() is False


def test_a_short_write_is_no_beat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold(tmp_path, "x", who="a", pace=PATIENT) as holding:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda fd, data, offset: 7)
            with pytest.raises(TransferFailed, match="EIO"):
                holding.confirm()
        holding.confirm()


@pytest.mark.proves("a handle that went stale is opened again")
def test_a_handle_that_went_stale_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    failed: list[Any] = []

    def stale_once(path: Any, *rest: Any) -> int:
        if not failed:
            failed.append(path)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, *rest)

    with hold(tmp_path, "x", who="a", pace=PATIENT) as holding:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", stale_once)
            holding.confirm()
        assert failed


def test_an_observer_of_a_directory_that_hangs_says_so_and_starts_no_second_thread(
    tmp_path: Path, broken: Broken
) -> None:
    with hold(tmp_path, "x", who="a", pace=PATIENT):
        observer = LeaseObserver(tmp_path, pace=HASTY, system=broken.system)
        broken.let_go.clear()
        before = threading.active_count()
        for _ in range(3):
            with pytest.raises(TransferTimeout, match="list"):
                observer.look()
        assert threading.active_count() == before + 1
        broken.let_go.set()
        until(lambda: threading.active_count() == before)
        assert len(observer.look()) == 1


def test_a_file_that_hangs_for_real_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / str(LeaseFile("x", 1)))  # opening it blocks until somebody writes
    with pytest.raises(TransferTimeout):
        LeaseObserver(tmp_path, pace=HASTY).look()
    os.close(os.open(tmp_path / str(LeaseFile("x", 1)), os.O_RDWR))


def test_nobody_is_taken_for_dead_where_the_directory_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match="ENOENT"):
        living(tmp_path / "not mounted", pace=HASTY)


# --- real deaths and pauses ----------------------------------------------------------------------------------------


def watch(observer: LeaseObserver, judged: Callable[[Sighting], bool]) -> Sighting:
    """Look until it holds of the one file that counts."""
    found: list[Sighting] = []

    def look() -> bool:
        found[:] = observer.look()
        return judged(found[0])

    until(look)
    return found[0]


def test_a_holder_killed_with_9_is_dead_after_its_silence_and_not_before(tmp_path: Path) -> None:
    with Player("hold", tmp_path, "x") as player:
        player.wait_for("held")
        observer = LeaseObserver(tmp_path, pace=PACE)
        watch(observer, lambda seen: seen.changed)
        player.kill()
        killed_s = time.monotonic()
        dead = watch(observer, observer.is_dead)
        assert time.monotonic() - killed_s > PACE.stale_after_s - PACE.beat_s
        assert names(tmp_path) == {str(dead.file)}
        assert living(tmp_path, pace=PACE) == frozenset()
        assert names(tmp_path) == set(), "the dead are buried"


def test_a_paused_holder_stops_believing_the_moment_it_goes_on_and_is_overtaken_by_one(tmp_path: Path) -> None:
    with Player("claim", tmp_path, "x", 1) as paused:
        paused.wait_for("held")
        observer = LeaseObserver(tmp_path, name="x", pace=PACE)
        watch(observer, lambda seen: seen.changed)
        paused.stop()
        watch(observer, observer.is_dead)
        with Player("claim", tmp_path, "x", 2) as one, Player("claim", tmp_path, "x", 2) as other:
            ends = sorted(player.wait_for("held", "taken")["event"] for player in (one, other))
            assert ends == ["held", "taken"]
            paused.go_on()
            lost = paused.wait_for("lost")
            assert "stood still" in lost["why"] or "took over" in lost["why"]
            assert paused.end() == 0
            assert "lost" not in one.events() + other.events()


def test_a_holder_paused_for_a_moment_goes_on(tmp_path: Path) -> None:
    with Player("hold", tmp_path, "x") as player:
        player.wait_for("held")
        observer = LeaseObserver(tmp_path, pace=PACE)
        watch(observer, lambda seen: seen.changed)
        player.stop()
        time.sleep(3 * PACE.beat_s)
        player.go_on()
        before = observer.look()[0].content
        watch(observer, lambda seen: seen.content != before)
        assert "lost" not in player.events()


def test_a_dead_holder_that_was_only_slow_finds_its_file_gone(tmp_path: Path) -> None:
    with Player("hold", tmp_path, "x") as player:
        player.wait_for("held")
        player.stop()
        assert living(tmp_path, pace=PACE) == frozenset()
        assert names(tmp_path) == set()
        player.go_on()
        player.wait_for("lost")
        assert player.end() == 0
        assert names(tmp_path) == set(), "it does not put its file back"


def test_the_living_are_not_buried(tmp_path: Path) -> None:
    with hold(tmp_path, "x", who="a", pace=PATIENT) as holding:
        observer = LeaseObserver(tmp_path, pace=PATIENT)
        (seen,) = observer.look()
        with pytest.raises(AssertionError):
            observer.bury(seen)
        holding.confirm()


def test_who_lives_is_told_though_others_come_and_go_all_the_time(tmp_path: Path) -> None:
    """1. A holder is dead. 2. At every look another one lets go, and a new one holds. 3. The dead one is found."""
    now_s = [0.0]
    others: list[Path] = []

    def lease_of(name: str, number: int) -> Path:
        path = tmp_path / str(LeaseFile(name, token=f"{number:032x}"))
        path.write_bytes(Record(path.name, name, PATIENT.stale_after_s).encode())
        return path

    def come_and_go(pause_s: float) -> None:
        now_s[0] += pause_s
        assert now_s[0] < 3 * PATIENT.stale_after_s, "it does not end"
        others.pop().unlink()
        others.append(lease_of("busy", round(now_s[0] * 1e6)))

    dead = lease_of("silent", 1)
    others.append(lease_of("busy", 2))
    system = System(observer_clock_s=lambda: now_s[0], sleep=come_and_go)
    assert living(tmp_path, pace=PATIENT_TO_OTHERS, system=system) == {"busy"}
    assert not dead.exists() and others[0].exists()


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "leases" / str(LeaseFile("x", 1))
    outside.write_bytes(b"secret")
    path.parent.mkdir()
    path.symlink_to(outside)
    with pytest.raises(TransferFailed, match="ELOOP"):
        LeaseObserver(path.parent, pace=PATIENT).look()
    with pytest.raises(TransferFailed, match="ELOOP"):
        perform(Overwrite(path, b"mine", b"secret"))
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert claim(path.parent, "x", 1, who="a", pace=PATIENT) is None
    assert names(tmp_path) == {"leases", "outside"} and outside.read_bytes() == b"secret"


def test_what_was_written_first_is_seen_to_be_whole(tmp_path: Path) -> None:
    assert perform(CreateFile(tmp_path / "a", b"12")) is True
    assert perform(CreateFile(tmp_path / "a", b"34")) is False
    assert perform(Overwrite(tmp_path / "a", b"56", b"99")) is False
    assert (tmp_path / "a").read_bytes() == b"12"
    assert perform(Overwrite(tmp_path / "b", b"56", b"")) is False, "writing over never makes a file"
