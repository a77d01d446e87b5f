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

from ebbtide.agent.slot_lock import lock_file
from ebbtide.client.messages import RankPhase, Want
from ebbtide_train.interactive.errors import CannotRevive, SessionCrashed
from ebbtide_train.interactive.image_place import ImagePlace
from ebbtide_train.interactive.keeper import End
from ebbtide_train.interactive.post import Post
from ebbtide_train.interactive.states import PHASES, TABLE, KeeperState
from ebbtide_train.interactive.tree import Tree, this_process
from tests.train_jobs.interactive.kept import SLOT, FakeSnapshots, Kept, chain, lease


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def said(file: Path, word: str) -> bool:
    return file.exists() and word in file.read_text()


def wardens(folder: Path) -> list[int]:
    rows = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [pid for pid, words in rows if str(folder) in words and "ebbtide_train.interactive.warden" in words]


def test_a_warden_ends_what_was_being_revived_as_its_keeper_died(tmp_path: Path) -> None:
    place = ImagePlace(tmp_path)
    place.make()
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    other, half = (subprocess.Popen(["sleep", "99"], start_new_session=True) for _ in range(2))
    try:
        there = this_process(half.pid)
        assert there is not None
        late = Post.await_revival(place, lock, pid=half.pid, since=there.started + 1, within_s=30.0)
        Post.await_revival(place, lock, pid=half.pid, since=there.started, within_s=30.0).close()
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
    kept.reaches(KeeperState.RUNNING)
    kept.until(lambda: lines(file) > 2, "its first steps")


def test_every_state_has_a_phase_and_only_the_end_has_no_way_on() -> None:
    assert set(TABLE) == set(PHASES) == set(KeeperState)
    assert [state for state, ways in TABLE.items() if not ways] == [KeeperState.OVER]


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
    kept.obeyed(kept.gate.want(Want.PARK))
    kept.reaches(KeeperState.PARKED)
    assert kept.holder() is None and not old.alive()
    report = kept.gate.reports[-1]
    assert (report.phase, report.step, report.durable_step) == (RankPhase.PARKED, 1, 1)
    time.sleep(0.3)
    assert kept.holder() is None, "nobody of ours takes it back"
    kept.obeyed(kept.gate.want(Want.RUN, lease(2)))
    kept.reaches(KeeperState.RUNNING)
    report = kept.gate.reports[-1]
    assert (report.lease_epoch, report.step, report.durable_step) == (2, 2, 1)
    assert kept.holder() is not None and kept.keeper._occupation.guarded()
    kept.gate.want(Want.CANCEL)
    assert kept.ends().end is End.CANCELLED
    assert kept.holder() is None and kept.place.numbers() == [] and kept.gate.reports[-1].phase is RankPhase.DONE


def test_one_that_cannot_be_dumped_says_why_and_runs_on(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.refuse = "it holds a socket"
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    for want in (Want.PARK, Want.STOP):
        number = kept.gate.want(want)
        kept.obeyed(number)
        kept.until(lambda: kept.gate.reports[-1].park_refused == "it holds a socket", "the reason")
        assert kept.keeper.state is KeeperState.RUNNING and kept.leader().alive() and kept.holder() is not None
    assert kept.place.read("record")["life"] == "running"  # type: ignore[index]
    kept.gate.want(Want.CANCEL)
    kept.ends()


@pytest.mark.parametrize("lose", ["committed", "killed", "gone"])
def test_an_outcome_that_is_unknown_is_read_back(tmp_path: Path, lose: str) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.lose = lose
    kept = Kept(tmp_path, chain(tmp_path / "c", family=True), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.gate.want(Want.PARK)
    if lose == "killed":
        with pytest.raises(SessionCrashed, match="no image"):
            kept.ends()
    else:  # the image stands: what is left of the tree is ended
        kept.reaches(KeeperState.PARKED)
        assert kept.place.is_complete(1)
        kept.gate.want(Want.CANCEL)
        kept.ends()
    assert kept.holder() is None and not kept.leader().alive()


def test_stopped_it_goes_on_under_another_keeper_elsewhere(tmp_path: Path) -> None:
    first = Kept(tmp_path, chain(tmp_path / "c")).start()
    running(first, tmp_path / "c")
    first.gate.want(Want.STOP)
    assert first.ends().end is End.LEFT
    last = first.gate.reports[-1]
    assert (last.phase, last.step, last.durable_step) == (RankPhase.STOPPED, 1, 1) and first.holder() is None
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=5).start()
    second.reaches(KeeperState.RUNNING)
    assert "revive 0001" in second.snapshots.calls  # type: ignore[attr-defined]
    second.gate.want(Want.CANCEL)
    second.ends()


def test_an_image_that_cannot_be_revived_here_stays(tmp_path: Path) -> None:
    first = Kept(tmp_path, chain(tmp_path / "c")).start()
    running(first, tmp_path / "c")
    first.gate.want(Want.STOP)
    first.ends()
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.refuse_revive = "another processor"
    second = Kept(tmp_path, chain(tmp_path / "c"), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive, match="another processor"):
        second.ends()
    assert second.holder() is None and second.place.is_complete(1)
    second.until(lambda: not wardens(second.place.folder), "its warden to go: it must not meet the next life")
    third = Kept(tmp_path, chain(tmp_path / "c"), epoch=3).start()
    third.reaches(KeeperState.RUNNING)
    third.gate.want(Want.CANCEL)
    third.ends()


def test_on_a_gpu_its_processes_stay_and_stay_guarded(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.obeyed(kept.gate.want(Want.PARK))
    kept.reaches(KeeperState.PARKED)
    report = kept.gate.reports[-1]
    assert kept.leader().alive() and kept.holder() is None and (report.step, report.durable_step) == (1, 0)
    kept.obeyed(kept.gate.want(Want.RUN, lease(2)))
    kept.reaches(KeeperState.RUNNING)
    assert kept.holder() is not None
    kept.obeyed(kept.gate.want(Want.PARK))
    kept.gate.want(Want.STOP)  # its node must go: from there to an image
    assert kept.ends().end is End.LEFT
    assert kept.place.is_complete(1) and not kept.leader().alive() and kept.holder() is None


def tree_that_the_lock_speaks_for(kept: Kept) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(lock_file(kept.locks, SLOT).read_bytes()).get("tree")
    return found


def test_a_lock_speaks_for_the_tree_from_before_it_runs_until_it_is_gone(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots)
    seen: list[dict[str, Any] | None] = []
    snapshots.at_revival = lambda: seen.append(tree_that_the_lock_speaks_for(kept))
    kept.start()
    running(kept, tmp_path / "c")
    first, told = kept.leader(), tree_that_the_lock_speaks_for(kept)
    assert told is not None and (told["pid"], told["started"], told["until_s"]) == (first.pid, first.started, 0.0)
    kept.obeyed(kept.gate.want(Want.PARK))
    kept.reaches(KeeperState.PARKED)
    assert lock_file(kept.locks, SLOT).read_bytes() == b""
    kept.obeyed(kept.gate.want(Want.RUN, lease(2)))
    kept.reaches(KeeperState.RUNNING)
    (expected,) = seen
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert expected is not None and expected["pid"] == first.pid and expected["until_s"] > now_s
    after, told = kept.leader(), tree_that_the_lock_speaks_for(kept)
    assert told is not None and (told["pid"], told["started"], told["until_s"]) == (after.pid, after.started, 0.0)
    kept.gate.want(Want.CANCEL)
    kept.ends()
    assert lock_file(kept.locks, SLOT).read_bytes() == b""


def test_a_lock_had_anew_speaks_for_a_tree_that_stayed_on_its_node(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session", gpu=True)
    kept = Kept(tmp_path, chain(tmp_path / "c"), snapshots=snapshots).start()
    running(kept, tmp_path / "c")
    kept.obeyed(kept.gate.want(Want.PARK))
    kept.obeyed(kept.gate.want(Want.RUN, lease(2)))
    kept.reaches(KeeperState.RUNNING)
    told = tree_that_the_lock_speaks_for(kept)
    assert told is not None and told["pid"] == kept.leader().pid
    kept.gate.want(Want.CANCEL)
    kept.ends()


@pytest.mark.parametrize("victim", ["leader", "warden"])
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
        kept.gate.want(Want.CANCEL)
        assert kept.ends().end is End.CANCELLED
        assert ("tidied" in kept.place.output.read_text()) == (name == "tidy")
