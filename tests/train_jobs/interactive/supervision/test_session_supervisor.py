"""A kept session: run, parked, resumed, ended, cancelled; the lock is held exactly while something of it is there."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from ebbtide.agent.errors import SlotBusy
from ebbtide.agent.slot_locks.slot_lock import SlotLock, lock_file
from ebbtide.client.messages import DesiredState, RankPhase
from ebbtide.system.process import is_alive
from ebbtide_train.commands.interactive_sessions import sessions
from ebbtide_train.interactive.errors import CannotRevive, SessionCrashed
from ebbtide_train.interactive.parking.tree_occupancy import TreeOccupancy
from ebbtide_train.interactive.ports import InTheWay
from ebbtide_train.interactive.process_tree.tree import Tree, this_process
from ebbtide_train.interactive.process_tree.watchdog_client import WatchdogClient
from ebbtide_train.interactive.session_folder import COMMIT, SessionFolder
from ebbtide_train.interactive.supervision.session_states import PHASES, TABLE, SessionState
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.train_jobs.interactive.kept import SLOT, FakeSnapshots, Kept, chain, lease


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def said(file: Path, word: str) -> bool:
    return file.exists() and word in file.read_text()


def wardens(folder: Path) -> list[int]:
    rows = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [
        pid
        for pid, words in rows
        if str(folder) in words and "ebbtide_train.interactive.process_tree.watchdog" in words
    ]


def test_a_warden_ends_what_was_being_revived_as_its_keeper_died(tmp_path: Path) -> None:
    place = SessionFolder(tmp_path)
    place.make()
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    other, half = (subprocess.Popen(["sleep", "99"], start_new_session=True) for _ in range(2))
    try:
        there = this_process(half.pid)
        assert there is not None
        late = WatchdogClient.await_revival(place, lock, pid=half.pid, since=there.started + 1, within_s=30.0)
        WatchdogClient.await_revival(place, lock, pid=half.pid, since=there.started, within_s=30.0).close()
        assert half.wait(10) == -signal.SIGKILL
        assert other.poll() is None and late.alive(), "of another start time: not the one"
        late.dismiss()
        late.close()
    finally:
        other.kill()
        other.wait()
        half.kill()
        os.close(lock)


def running(kept: Kept, file: Path) -> None:
    kept.reaches(SessionState.RUNNING)
    kept.until(lambda: lines(file) > 2, "its first steps")


def test_every_state_has_a_phase_and_only_the_end_has_no_way_on() -> None:
    assert set(TABLE) == set(PHASES) == set(SessionState)
    assert [state for state, ways in TABLE.items() if not ways] == [SessionState.OVER]


def test_it_runs_to_its_end_in_a_process_session_of_its_own_with_nothing_inherited(tmp_path: Path) -> None:
    look = "import os; print(os.getsid(0) != os.getpgid(0) or 1, sorted(os.listdir('/proc/self/fd')), dict(os.environ))"
    more = "; print('terminal', os.isatty(0), os.readlink('/proc/self/fd/0'))"
    kept = Kept(tmp_path, [sys.executable, "-I", "-S", "-c", look + more]).start()
    verdict = kept.ends()
    assert (verdict.end, verdict.code) == (End.FINISHED, 0)
    said = kept.place.output.read_text()
    assert "['0', '1', '2', '3']" in said, said  # 3 is the listing itself
    assert "'CUDA_VISIBLE_DEVICES': '0'" in said and "terminal False /dev/null" in said
    assert kept.holder() is None and kept.gate.reports[-1].phase is RankPhase.DONE
    assert kept.place.folder.stat().st_mode & 0o777 == 0o700


def test_a_command_that_fails_says_how_with_the_end_of_its_log(tmp_path: Path) -> None:
    kept = Kept(tmp_path, [sys.executable, "-I", "-S", "-c", "print('so it went'); raise SystemExit(3)"]).start()
    verdict = kept.ends()
    assert (verdict.end, verdict.code) == (End.FAILED, 3)
    assert "ended with 3" in verdict.text and "so it went" in verdict.text


@pytest.mark.parametrize("command", [["no-such-program-here"], ["/dev/null"]])
def test_a_command_that_is_none_fails_with_the_reason(tmp_path: Path, command: list[str]) -> None:
    verdict = Kept(tmp_path, command).start().ends()
    assert verdict.code in (126, 127) and "cannot run" in verdict.text


def test_what_it_leaves_behind_at_its_end_is_ended_with_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path, chain(tmp_path / "c", steps=40, family=True)).start()
    running(kept, tmp_path / "c")
    kept.until(
        lambda: kept.keeper._occupation.tree is None or len(kept.keeper._occupation.tree.look()) == 4, "a family"
    )
    tree = kept.keeper._occupation.tree
    assert tree is not None and len(tree.look()) == 4, "the one that left everything is found"
    assert kept.ends().code == 0
    assert Tree(tree.leader).gone() and not [p for p in tree._known if p.alive()]


def test_parked_it_holds_nothing_and_resumed_it_is_there_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path, chain(tmp_path / "c")).start()
    running(kept, tmp_path / "c")
    assert kept.holder() is not None
    report = kept.gate.reports[-1]
    assert (report.phase, report.step, report.durable_step) == (RankPhase.RUNNING, 1, 0)
    old = kept.leader()
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.reaches(SessionState.PARKED)
    assert kept.holder() is None and not old.alive()
    report = kept.gate.reports[-1]
    assert (report.phase, report.step, report.durable_step) == (RankPhase.PARKED, 1, 1)
    time.sleep(0.3)
    assert kept.holder() is None, "nobody of ours takes it back"
    kept.obeyed(kept.gate.want(DesiredState.RUN, lease(2)))
    kept.reaches(SessionState.RUNNING)
    report = kept.gate.reports[-1]
    assert (report.lease_epoch, report.step, report.durable_step) == (2, 2, 1)
    assert kept.holder() is not None and kept.keeper._occupation.guarded()
    kept.gate.want(DesiredState.CANCEL)
    assert kept.ends().end is End.CANCELLED
    assert kept.holder() is None and kept.place.numbers() == [] and kept.gate.reports[-1].phase is RankPhase.DONE


def test_one_that_cannot_be_dumped_says_why_and_runs_on(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.refuse = "it holds a socket"
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    for want in (DesiredState.PARK, DesiredState.STOP):
        number = kept.gate.want(want)
        kept.obeyed(number)
        kept.until(lambda: kept.gate.reports[-1].park_refused == "it holds a socket", "the reason")
        assert kept.keeper.state is SessionState.RUNNING and kept.leader().alive() and kept.holder() is not None
    assert kept.place.read("record")["life"] == "running"  # type: ignore[index]
    kept.gate.want(DesiredState.CANCEL)
    kept.ends()


@pytest.mark.parametrize("lose", ["committed", "killed", "gone"])
def test_an_outcome_that_is_unknown_is_read_back(tmp_path: Path, lose: str) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.lose = lose
    kept = Kept(tmp_path, chain(tmp_path / "c", family=True), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.gate.want(DesiredState.PARK)
    if lose == "killed":
        with pytest.raises(SessionCrashed, match="no image"):
            kept.ends()
    else:  # the image stands: what is left of the tree is ended
        kept.reaches(SessionState.PARKED)
        assert kept.place.is_complete(1)
        kept.gate.want(DesiredState.CANCEL)
        kept.ends()
    assert kept.holder() is None and not kept.leader().alive()


def test_stopped_it_goes_on_under_another_keeper_elsewhere(tmp_path: Path) -> None:
    first = Kept(tmp_path, chain(tmp_path / "c")).start()
    running(first, tmp_path / "c")
    first.gate.want(DesiredState.STOP)
    assert first.ends().end is End.LEFT
    last = first.gate.reports[-1]
    assert (last.phase, last.step, last.durable_step) == (RankPhase.STOPPED, 1, 1) and first.holder() is None
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=5).start()
    second.reaches(SessionState.RUNNING)
    assert "revive 0001" in second.snapshots.calls  # type: ignore[attr-defined]
    second.gate.want(DesiredState.CANCEL)
    second.ends()


def left(root: Path) -> Kept:
    """A session that has left, of which image 1 is all there is."""
    one = Kept(root, chain(root / "c")).start()
    running(one, root / "c")
    one.gate.want(DesiredState.STOP)
    assert one.ends().end is End.LEFT
    return one


def test_an_image_that_was_still_being_made_as_its_keeper_died_is_waited_for(tmp_path: Path) -> None:
    one = left(tmp_path)
    one.place.write("record", {**(one.place.read("record") or {}), "life": "imaging", "images": 0})
    one.place.discard(1)
    snapshots = FakeSnapshots(one.place.folder)
    snapshots.comes_late = True
    two = Kept(tmp_path, chain(tmp_path / "c"), epoch=2, snapshots=snapshots).start()
    two.reaches(SessionState.RUNNING)
    assert snapshots.calls[:2] == ["settled 0001", "revive 0001"], "half a moment later it was all of the session"
    two.gate.want(DesiredState.CANCEL)
    two.ends()


def test_an_image_that_came_to_stand_too_late_is_in_nobodys_way(tmp_path: Path) -> None:
    one = left(tmp_path)
    late = one.place.image(2)
    late.mkdir()
    (late / COMMIT).touch()
    two = Kept(tmp_path, chain(tmp_path / "c"), epoch=2).start()
    two.reaches(SessionState.RUNNING)
    two.parks()
    assert two.place.numbers() == [2]
    two.gate.want(DesiredState.CANCEL)
    two.ends()


def test_an_image_that_cannot_be_revived_here_stays(tmp_path: Path) -> None:
    first = Kept(tmp_path, chain(tmp_path / "c")).start()
    running(first, tmp_path / "c")
    first.gate.want(DesiredState.STOP)
    first.ends()
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.refuse_revive = "another processor"
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive, match="another processor"):
        second.ends()
    assert second.holder() is None and second.place.is_complete(1)
    second.until(lambda: not wardens(second.place.folder), "its warden to go: it must not meet the next life")
    third = Kept(tmp_path, chain(tmp_path / "c"), epoch=3).start()
    third.reaches(SessionState.RUNNING)
    third.gate.want(DesiredState.CANCEL)
    third.ends()


def test_on_a_gpu_its_processes_stay_and_stay_guarded(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.reaches(SessionState.PARKED)
    report = kept.gate.reports[-1]
    assert kept.leader().alive() and kept.holder() is None and (report.step, report.durable_step) == (1, 0)
    kept.obeyed(kept.gate.want(DesiredState.RUN, lease(2)))
    kept.reaches(SessionState.RUNNING)
    assert kept.holder() is not None
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.gate.want(DesiredState.STOP)  # its node must go: from there to an image
    assert kept.ends().end is End.LEFT
    assert kept.place.is_complete(1) and not kept.leader().alive() and kept.holder() is None


def parked_as_image(root: Path) -> None:
    """A session that has left, and goes on from its image under another keeper."""
    first = Kept(root, chain(root / "c")).start()
    running(first, root / "c")
    first.gate.want(DesiredState.STOP)
    assert first.ends().end is End.LEFT


@pytest.fixture
def lived_at_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the leader of the folder's session, the last of it to be killed, lived when its slot was let go."""
    found: list[bool] = []
    let_go, place = SlotLock.release, SessionFolder(tmp_path / "run")

    def release(lock: SlotLock) -> None:
        if lock.held:
            led = place.read("leader")
            assert led is not None
            found.append(is_alive(led["pid"], led["started"]))
        let_go(lock)

    monkeypatch.setattr(SlotLock, "release", release)
    return found


def test_one_that_the_driver_does_not_put_back_is_ended_before_its_slot_is_free(
    tmp_path: Path, lived_at_release: list[bool]
) -> None:
    """Its processes were revived, and live, off their GPU."""
    parked_as_image(tmp_path)
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.refuse_gpu = "the GPU is full"
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive, match=r"the GPU is full; what was brought back of it has been ended"):
        second.ends()
    assert lived_at_release == [False, False] and second.holder() is None
    assert second.place.is_complete(1) and second.place.read("record")["life"] == "imaged"  # type: ignore[index]
    second.until(lambda: not wardens(second.place.folder), "its warden to go: it must not meet the next life")
    third = Kept(tmp_path, chain(tmp_path / "c"), epoch=3).start()
    third.reaches(SessionState.RUNNING)
    third.gate.want(DesiredState.CANCEL)
    third.ends()


def test_a_revival_of_which_nothing_came_leaves_the_slot_free(tmp_path: Path, lived_at_release: list[bool]) -> None:
    parked_as_image(tmp_path)
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.lose_revive = "never"
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive, match="has been ended"):
        second.ends()
    assert second.holder() is None and lived_at_release == [False, False] and second.place.is_complete(1)


def test_a_revival_of_which_something_may_still_come_keeps_the_slot_beyond_its_keeper(tmp_path: Path) -> None:
    parked_as_image(tmp_path)
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.lose_revive = "later"
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive, match="its watchdog keeps the slot"):
        second.ends()
    assert second.place.is_complete(1)
    next_lock = SlotLock(tmp_path / "locks", SLOT, workload="next", epoch=9, ledger="l")
    with pytest.raises(SlotBusy):
        next_lock.acquire(1.0)
    (warden,) = wardens(second.place.folder)
    os.kill(warden, signal.SIGKILL)
    with pytest.raises(SlotBusy, match="processes that outlived its holder"):
        next_lock.acquire(0.5)  # the lock's file speaks for what is expected
    assert snapshots.started is not None and Tree(snapshots.started).kill(5.0)


def test_who_had_the_leaders_number_before_is_not_taken_for_it(tmp_path: Path) -> None:
    place = SessionFolder(tmp_path)
    place.make()
    lock = SlotLock(tmp_path / "locks", SLOT, workload="s", epoch=1, ledger="l")
    occupation = TreeOccupancy(place, lambda _lease: lock)
    stranger = subprocess.Popen(["sleep", "99"])
    try:
        there = this_process(stranger.pid)
        assert there is not None
        place.write("leader", {"pid": stranger.pid})
        occupation.take(lease(1))
        time.sleep(0.02)  # a clock tick: it began before
        occupation.expect()
        assert occupation.came() is None
        occupation._expected = there
        assert occupation.came() == there
        occupation.left()
    finally:
        stranger.kill()
        stranger.wait()
        lock.release()


def test_in_place_and_not_put_back_it_goes_on_as_an_image(tmp_path: Path, lived_at_release: list[bool]) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.reaches(SessionState.PARKED)
    snapshots.refuse_gpu = "another chip"
    kept.gate.want(DesiredState.RUN, lease(2))
    with pytest.raises(CannotRevive, match="another chip; it goes on from image 1"):
        kept.ends()
    assert lived_at_release == [True, False], "in place it stayed, off the GPU; then nothing of it"
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=3).start()
    second.reaches(SessionState.RUNNING)
    assert "revive 0001" in second.snapshots.calls  # type: ignore[attr-defined]
    second.gate.want(DesiredState.CANCEL)
    second.ends()


def test_in_place_neither_put_back_nor_imaged_it_is_lost_and_its_slot_free(
    tmp_path: Path, lived_at_release: list[bool]
) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.reaches(SessionState.PARKED)
    snapshots.refuse_gpu, snapshots.refuse = "another chip", "it holds a socket"
    kept.gate.want(DesiredState.RUN, lease(2))
    with pytest.raises(CannotRevive, match="another chip; nor can it become an image: it holds a socket"):
        kept.ends()
    assert lived_at_release[-1] is False and kept.holder() is None


def test_on_another_gpu_it_comes_back_by_a_map_from_the_one_that_it_left(tmp_path: Path) -> None:
    a, b, c = (f"GPU-{letter}" for letter in "abc")
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), gpu=a, snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    for epoch, gpu in ((2, a), (3, b)):
        kept.obeyed(kept.gate.want(DesiredState.PARK))
        kept.obeyed(kept.gate.want(DesiredState.RUN, lease(epoch, gpu)))
        kept.reaches(SessionState.RUNNING)
    kept.gate.want(DesiredState.STOP)
    assert kept.ends().end is End.LEFT
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=5, gpu=c, snapshots=snapshots).start()
    second.reaches(SessionState.RUNNING)
    back = [call for call in snapshots.calls if call.startswith("return")]
    assert back == ["return_to_gpu", f"return_to_gpu {{'{a}': '{b}'}}", f"return_to_gpu {{'{b}': '{c}'}}"]
    second.gate.want(DesiredState.CANCEL)
    second.ends()


def test_what_would_keep_it_from_being_parked_is_told_before_anybody_asks(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.hinders = InTheWay(park="it holds a socket", image="it holds a socket")
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    kept.reaches(SessionState.RUNNING)
    kept.until(lambda: kept.gate.reports[-1].in_place_hindered == "it holds a socket", "the pool to be told")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "s").symlink_to(tmp_path / "run")
    (row,) = sessions(tmp_path, None)
    assert row["cannot_park"] == row["cannot_image"] == "it holds a socket"
    assert row["remark"] == "cannot be parked now: it holds a socket"
    kept.gate.want(DesiredState.CANCEL)
    kept.ends()


def tree_that_the_lock_speaks_for(kept: Kept) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(lock_file(kept.locks, SLOT).read_bytes()).get("tree")
    return found


@pytest.mark.proves(
    "a tree is named in its slot's lock before it is revived",
    "a tree is named in its slot's lock before it runs",
    "a tree that was revived is named in its slot's lock as it is now",
)
def test_a_lock_speaks_for_the_tree_from_before_it_runs_until_it_is_gone(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots)
    seen: list[dict[str, Any] | None] = []
    snapshots.at_revival = lambda: seen.append(tree_that_the_lock_speaks_for(kept))
    kept.start()
    running(kept, tmp_path / "c")
    first, told = kept.leader(), tree_that_the_lock_speaks_for(kept)
    assert told is not None and (told["pid"], told["started"], told["until_s"]) == (first.pid, first.started, 0.0)
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.reaches(SessionState.PARKED)
    assert lock_file(kept.locks, SLOT).read_bytes() == b""
    kept.obeyed(kept.gate.want(DesiredState.RUN, lease(2)))
    kept.reaches(SessionState.RUNNING)
    (expected,) = seen
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert expected is not None and expected["pid"] == first.pid and expected["until_s"] > now_s
    after, told = kept.leader(), tree_that_the_lock_speaks_for(kept)
    assert told is not None and (told["pid"], told["started"], told["until_s"]) == (after.pid, after.started, 0.0)
    kept.gate.want(DesiredState.CANCEL)
    kept.ends()
    assert lock_file(kept.locks, SLOT).read_bytes() == b""


@pytest.mark.proves("a tree that stayed is named in the lock had anew")
def test_a_lock_had_anew_speaks_for_a_tree_that_stayed_on_its_node(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.obeyed(kept.gate.want(DesiredState.PARK))
    kept.obeyed(kept.gate.want(DesiredState.RUN, lease(2)))
    kept.reaches(SessionState.RUNNING)
    told = tree_that_the_lock_speaks_for(kept)
    assert told is not None and told["pid"] == kept.leader().pid
    kept.gate.want(DesiredState.CANCEL)
    kept.ends()


@pytest.mark.parametrize("victim", ["leader", "watchdog"])
def test_whoever_guards_it_is_killed_nothing_is_left_unwatched(tmp_path: Path, victim: str) -> None:
    kept = Kept(tmp_path, chain(tmp_path / "c", family=True)).start()
    running(kept, tmp_path / "c")
    tree = kept.keeper._occupation.tree
    assert tree is not None
    kept.until(lambda: len(tree.look()) == 4, "the family")
    members = tree.look()
    leader = kept.leader().pid
    warden = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(leader if victim == "leader" else warden, signal.SIGKILL)
    with pytest.raises(SessionCrashed, match=f"its {victim} process was killed"):
        kept.ends()
    assert not [process for process in members if process.alive()] and kept.holder() is None


def test_asked_to_end_it_may_tidy_up_and_is_killed_if_it_does_not(tmp_path: Path) -> None:
    tidy = "import signal, sys, time\nsignal.signal(15, lambda *_: (print('tidied'), sys.exit(0)))\n"
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
    more = "print('up', flush=True)\ntime.sleep(99)"
    for name, program in (("tidy", tidy), ("deaf", deaf)):
        kept = Kept(tmp_path / name, [sys.executable, "-I", "-S", "-c", program + more], stop_s=0.5).start()
        output = kept.place.output
        kept.until(partial(said, output, "up"), "it to be up")
        kept.gate.want(DesiredState.CANCEL)
        assert kept.ends().end is End.CANCELLED
        assert ("tidied" in kept.place.output.read_text()) == (name == "tidy")
