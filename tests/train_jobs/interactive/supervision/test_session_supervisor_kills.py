"""kill -9 of the keeper at every edge of its table: no process is left on a free slot, and the next keeper goes on.

A process of its own keeps the session and kills itself right before the edge is taken; orders come to it by a file.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ebbtide.agent.errors import SlotBusy
from ebbtide.agent.slot_locks.slot_lock import SlotLock, lock_file, probe
from ebbtide.client.messages import DesiredState
from ebbtide_train.interactive.parking.tree_occupancy import TreeOccupancy
from ebbtide_train.interactive.process_tree.leader import me
from ebbtide_train.interactive.process_tree.watchdog_client import WatchdogClient
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.interactive.supervision.session_states import TABLE, SessionState
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.train_jobs.interactive.kept import SLOT, Kept, chain, lease, members, until

ROOT = Path(__file__).parents[4]
S = SessionState
# Edge, the orders that lead there, and what the next keeper does.
KILLS = {
    (S.NEW, S.STARTING): ("", "starts"),
    (S.STARTING, S.RUNNING): ("", "lost"),
    (S.RUNNING, S.LEAVING): ("park", "lost"),
    (S.LEAVING, S.ASIDE): ("park", "revives"),
    (S.ASIDE, S.PARKED): ("park", "revives"),
    (S.PARKED, S.RESUMING): ("park run", "revives"),
    (S.RESUMING, S.RUNNING): ("park run", "revives"),
    (S.RUNNING, S.ENDING): ("cancel", "lost"),
    (S.ENDING, S.OVER): ("cancel", "starts"),
    (S.PARKED, S.ENDING): ("park cancel", "revives"),
    (S.NEW, S.RESUMING): ("", "revives"),
}
SHORT = {(S.STARTING, S.RUNNING), (S.LEAVING, S.ASIDE), (S.RESUMING, S.RUNNING)}
ELSEWHERE = {
    (S.NEW, S.OVER): "nothing runs and nothing is held",
    (S.STARTING, S.OVER): "the same: the start has failed",
    (S.RESUMING, S.OVER): "the same: the image stays",
    (S.LEAVING, S.RUNNING): "as a kill while it runs",
    (S.LEAVING, S.ENDING): "as a kill while it runs",
    (S.ASIDE, S.RESUMING): "as from parked",
    (S.ASIDE, S.OVER): "as from aside to parked",
    (S.ASIDE, S.ENDING): "as from parked",
    (S.PARKED, S.OVER): "as from aside to parked",
}


def test_every_edge_of_the_table_is_killed_at_or_said_to_be_like_another() -> None:
    assert {*KILLS, *ELSEWHERE} == {(now, then) for now, ways in TABLE.items() for then in ways}
    assert not {*KILLS} & {*ELSEWHERE}


def edges() -> list[object]:
    return [
        pytest.param(edge, id=f"{edge[0].value}-{edge[1].value}", marks=() if edge in SHORT else pytest.mark.hunt)
        for edge in KILLS
    ]


@pytest.mark.parametrize("edge", edges())
def test_killed_at_this_edge(tmp_path: Path, edge: tuple[SessionState, SessionState]) -> None:
    orders, then = KILLS[edge]
    command = chain(tmp_path / "c", family=True)
    if edge == (S.NEW, S.RESUMING):
        first = Kept(tmp_path, command).start()
        first.reaches(S.RUNNING)
        first.gate.want(DesiredState.STOP)
        assert first.ends().end is End.LEFT
    (tmp_path / "orders").write_text(orders)
    plan = f"{edge[0].value}>{edge[1].value} 2"
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.train_jobs.interactive.kept", str(tmp_path), json.dumps(command), plan], cwd=ROOT
    )
    assert keeper.wait(30) == -signal.SIGKILL

    # At every moment: who finds the lock free finds nobody. Afterwards: the lock is free, for nobody is left.
    def free() -> bool:
        if probe(tmp_path / "locks", SLOT) is not None:
            return False
        left = members(tmp_path)
        assert not left, f"the slot is free, and processes {left} are on it"
        return True

    until(free, lambda: f"the slot to be free; {members(tmp_path)}")
    after = Kept(tmp_path, command, epoch=50).start()
    if then == "lost":
        verdict = after.ends()
        assert verdict.end is End.FAILED and "no image of it" in verdict.text
        return
    after.reaches(S.RUNNING)
    revived = any(call.startswith("revive") for call in after.snapshots.calls)  # type: ignore[attr-defined]
    assert revived == (then == "revives")
    after.gate.want(DesiredState.CANCEL)
    after.ends()
    assert not members(tmp_path)


def complete(family: list[int]) -> bool:
    """Four, of whom one has left its session and lost its parent: until then that is to be a fifth one's."""
    try:
        return len(family) == 4 and any(os.getsid(pid) not in family for pid in family)
    except ProcessLookupError:
        return False


def kept_apart(root: Path) -> tuple[subprocess.Popen[bytes], psutil.Process, psutil.Process]:
    """A keeper in a process of its own, its warden and its leader, with a family of four at work."""
    command = json.dumps(chain(root / "c", family=True))
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.train_jobs.interactive.kept", str(root), command, "- 2"], cwd=ROOT
    )
    try:
        until(lambda: complete(members(root)), lambda: f"the family: {members(root)}")
    except AssertionError:
        keeper.kill()
        raise
    leader = psutil.Process(json.loads((root / "run" / "session" / "leader.json").read_text())["pid"])
    warden = leader.parent()
    assert warden is not None and warden.ppid() != keeper.pid, "Ray kills the children of a worker that it kills"
    return keeper, warden, leader


def kill_both(keeper: subprocess.Popen[bytes], warden: psutil.Process) -> None:
    warden.suspend()  # it must not do it
    keeper.kill()
    keeper.wait()
    warden.kill()


def test_keeper_and_warden_killed_together_the_slot_is_taken_until_the_leader_has_ended_the_tree(
    tmp_path: Path,
) -> None:
    keeper, warden, leader = kept_apart(tmp_path)
    leader.suspend()  # it takes half a second at most to notice; here it takes as long as we look
    kill_both(keeper, warden)
    lock = SlotLock(tmp_path / "locks", SLOT, workload="next", epoch=9, ledger="l")
    with pytest.raises(SlotBusy, match=r"s \(epoch 2, processes that outlived its holder"):
        lock.acquire(1.0)
    assert len(members(tmp_path)) == 4 and probe(tmp_path / "locks", SLOT) is not None
    leader.resume()
    lock.acquire(5.0)
    assert not members(tmp_path), "who gets the lock finds nobody"
    lock.release()


def test_where_the_leader_is_killed_too_the_slot_is_taken_as_long_as_its_process_group_lives(tmp_path: Path) -> None:
    keeper, warden, leader = kept_apart(tmp_path)
    leader.suspend()
    kill_both(keeper, warden)
    leader.kill()
    until(lambda: leader.pid not in members(tmp_path), lambda: "the leader to be gone")
    lock = SlotLock(tmp_path / "locks", SLOT, workload="next", epoch=9, ledger="l")
    left = members(tmp_path)
    assert left
    with pytest.raises(SlotBusy):
        lock.acquire(0.3)
    for pid in left:
        psutil.Process(pid).kill()
    lock.acquire(5.0)
    lock.release()


@pytest.mark.proves("a tree that is gone is not named in the lock")
def test_a_tree_that_is_gone_is_not_named_in_a_lock_that_is_still_held(tmp_path: Path) -> None:
    place = SessionFolder(tmp_path / "run")
    place.make()
    place.write("spec", {"command": ["sleep", "100"], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}})
    lock = SlotLock(tmp_path / "locks", SLOT, workload="s", epoch=2, ledger="l")

    def named() -> int | None:
        tree = json.loads(lock_file(tmp_path / "locks", SLOT).read_bytes()).get("tree")
        return None if tree is None else int(tree["pid"])

    occupation = TreeOccupancy(place, lambda _lease: lock)
    occupation.take(lease(2))
    leader = occupation.start()
    assert named() == leader.pid
    occupation.end(0.0)
    assert named() is None, "its number may be another process's before the lock is released"
    occupation.release()


@pytest.mark.proves("a leader that was not named runs nothing")
def test_a_leader_whose_keeper_dies_before_it_has_named_it_runs_nothing(tmp_path: Path) -> None:
    place = SessionFolder(tmp_path / "run")
    place.make()
    place.write("keeper", me())
    place.write("spec", {"command": ["touch", str(tmp_path / "ran")], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}})
    waits, go = os.pipe()
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    post, leader = WatchdogClient.start(place, lock, waits)
    for descriptor in (lock, waits):
        os.close(descriptor)
    assert leader.alive() and not (tmp_path / "ran").exists()
    os.close(go)  # as the keeper's death does
    until(lambda: not leader.alive(), lambda: "the leader to end")
    post.close()
    assert not (tmp_path / "ran").exists()
