"""Sessions on a GPU, by a real helper and a fake driver: off it and back, refused, killed in the middle, as an image.

The leader of a session uses no GPU; its command does, and a child of that. The driver refuses to speak of the leader.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ebbtide.agent.slot_locks.slot_lock import SlotLock, probe
from ebbtide.client.messages import DesiredState
from ebbtide.helper.client import Helper
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.system.process import is_alive
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, When, script_of, write_script
from ebbtide_testing.gpu_driver.fake_users import users_of
from ebbtide_train.commands.interactive_sessions import sessions
from ebbtide_train.interactive.errors import CannotRevive, SessionCrashed
from ebbtide_train.interactive.parking import helper_snapshots
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.supervision.session_states import SessionState
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.criu import criu_or_skip
from tests.train_jobs.interactive.chain import check
from tests.train_jobs.interactive.kept import SLOT, Kept, chain, lease, until

ROOT = Path(__file__).parents[3]


class Node:
    """A node's helper with a fake driver. One that is killed is started again, unless it is to stay away."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.fake = folder, folder / "driver"
        self.driver, self.helper = FakeDriver(self.fake), Helper(folder / "helper.sock")
        users_of(self.fake).mkdir()
        self._words, self.stays_away, self.deaths = words, False, 0
        self._start()
        self._closed = threading.Event()
        self._nurse = threading.Thread(target=self._nurse_it, daemon=True)
        self._nurse.start()

    def _start(self) -> None:
        socket = str(self.folder / "helper.sock")
        module = "ebbtide_testing.gpu_driver"
        command = [sys.executable, "-m", module, "--socket", socket, "--fake-driver", str(self.fake)]
        self.process = subprocess.Popen([*command, *self._words], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith("ready"):
            assert line, "the helper ended"

    def _nurse_it(self) -> None:
        while not self._closed.wait(0.05):
            if self.process.poll() is not None and not self.stays_away:
                self.deaths += 1
                self._start()

    def close(self) -> None:
        self._closed.set()
        self._nurse.join()
        self.process.kill()
        self.process.wait()

    def script(self, *rules: Rule) -> None:
        write_script(script_of(self.fake), list(rules))

    def calls(self) -> list[tuple[str, int]]:
        with open_state(self.fake) as book:
            return [(call, pid) for call, pid in book.calls]

    def maps(self) -> list[dict[str, str]]:
        with open_state(self.fake) as book:
            return list(book.gpus.values())


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Without CRIU: what is not parked in place is not parked."""
    monkeypatch.setattr(helper_snapshots, "READ_BACK_S", 120.0)  # a loaded machine takes its time to start a helper
    folder = tmp_path / "helper"
    folder.mkdir(mode=0o700)
    node = Node(folder, "--criu", str(folder / "none"))
    yield node
    node.close()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(helper_snapshots, "READ_BACK_S", 120.0)
    folder = tmp_path / "helper"
    folder.mkdir(mode=0o700)
    node = Node(folder, "--criu", str(criu_or_skip().path))
    yield node
    node.close()


def kept(root: Path, node: Node, *, epoch: int = 1, gpu: str = "") -> Kept:
    """A session of which two processes use the GPU; it runs when this returns."""
    command = chain(root / "chain", gpu=users_of(node.fake))
    one = Kept(root, command, epoch=epoch, gpu=gpu, snapshots=HelperSnapshots(node.helper, "s")).start()
    goes_on(one, root, node)
    return one


def goes_on(one: Kept, root: Path, node: Node) -> None:
    """It runs, on the GPU, from the very step where it was."""
    one.reaches(SessionState.RUNNING)
    before = lines(root)
    one.until(lambda: lines(root) > before + 2 and len(users(one, node)) == 2, "it to go on")
    assert {node.driver.state(pid) for pid in users(one, node)} == {ProcessState.RUNNING}
    check((root / "chain").read_text())


def lines(root: Path) -> int:
    file = root / "chain"
    return len(file.read_text().splitlines()) if file.exists() else 0


def users(one: Kept, node: Node) -> list[int]:
    """Its processes that use the GPU."""
    tree = one.keeper._occupation.tree
    found = []
    for process in sorted(tree.look(), key=lambda process: process.pid) if tree is not None else ():
        with suppress(OSError):
            fds = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
            found += [process.pid] if any(str(users_of(node.fake)) in target for target in fds) else []
    return found


def members(root: Path) -> list[int]:
    """Processes of the session of this folder that can hold memory."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(root) in words and ("leader.py" in words or "chain.py" in words):
            found += [process.pid] if process.info["status"] != psutil.STATUS_ZOMBIE else []
    return found


class Eye:
    """Looks all the time: a slot that is free has nobody of a session on its GPU."""

    def __init__(self, root: Path, node: Node) -> None:
        self._root, self._node = root, node
        self.seen: list[str] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._closed.wait(0.02):
            if probe(self._root / "locks", SLOT) is None:
                on = [pid for pid in members(self._root) if self._is_on(pid)]
                # Looked at again: it may have been taken between the two looks.
                if on and probe(self._root / "locks", SLOT) is None:
                    self.seen.append(f"the slot is free, and {on} are on its GPU")

    def _is_on(self, pid: int) -> bool:
        try:
            return self._node.driver.state(pid) is not ProcessState.CHECKPOINTED
        except Exception:  # noqa: BLE001 - it uses no GPU, or has ended
            return False

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        assert not self.seen, self.seen[0]


def end(one: Kept) -> None:
    one.gate.want(DesiredState.CANCEL)
    one.ends()


def test_parked_it_is_off_its_gpu_with_all_that_use_it_and_resumed_it_is_on_it_again(
    tmp_path: Path, plain: Node
) -> None:
    one = kept(tmp_path, plain)
    on_gpu = users(one, plain)
    assert one.leader().pid not in on_gpu
    eye = Eye(tmp_path, plain)
    for epoch in (2, 3):
        one.obeyed(one.gate.want(DesiredState.PARK))
        one.reaches(SessionState.PARKED)
        assert {plain.driver.state(pid) for pid in on_gpu} == {ProcessState.CHECKPOINTED}
        assert one.holder() is None and one.leader().alive() and one.place.numbers() == []
        one.obeyed(one.gate.want(DesiredState.RUN, lease(epoch)))
        goes_on(one, tmp_path, plain)
        assert users(one, plain) == on_gpu
    eye.close()
    rounds = [call for call, _ in plain.calls()]
    assert rounds == ["lock"] * 2 + ["checkpoint"] * 2 + ["restore"] * 2 + ["unlock"] * 2 + rounds[8:]
    assert {pid for _, pid in plain.calls()} == set(on_gpu), "nobody else is asked for anything"
    end(one)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule("lock", Do.TIMEOUT), "its work did not end in time"),
        (Rule("lock", Do.REFUSE, skip=1), "the driver does not want it"),
        (Rule("checkpoint", Do.REFUSE, skip=1), "the driver does not want it"),
    ],
)
def test_one_that_the_driver_does_not_take_off_runs_on_and_says_why(
    tmp_path: Path, plain: Node, rule: Rule, why: str
) -> None:
    plain.script(rule)
    one = kept(tmp_path, plain)
    eye = Eye(tmp_path, plain)
    one.obeyed(one.gate.want(DesiredState.PARK))
    one.until(lambda: why in one.gate.reports[-1].park_refused, "the reason")
    goes_on(one, tmp_path, plain)
    assert one.holder() is not None
    one.obeyed(one.gate.want(DesiredState.RUN, lease(2)))
    one.obeyed(one.gate.want(DesiredState.PARK))  # the driver wants it now
    one.reaches(SessionState.PARKED)
    eye.close()
    end(one)


def test_one_that_the_driver_loses_is_ended_before_its_slot_is_free(tmp_path: Path, plain: Node) -> None:
    plain.script(Rule("checkpoint", Do.FAIL, skip=1))
    one = kept(tmp_path, plain)
    eye = Eye(tmp_path, plain)
    one.gate.want(DesiredState.PARK)
    with pytest.raises(SessionCrashed, match="the driver has lost it"):
        one.ends()
    assert one.holder() is None and not members(tmp_path)
    eye.close()


KILLS = [(call, when) for call in ("lock", "checkpoint", "restore", "unlock") for when in When]
SHORT = {("lock", When.AFTER), ("checkpoint", When.BEFORE), ("restore", When.AFTER)}


@pytest.mark.parametrize(
    ("call", "when"),
    [
        pytest.param(*kill, id=f"{kill[1].value}-{kill[0]}", marks=() if kill in SHORT else pytest.mark.hunt)
        for kill in KILLS
    ],
)
def test_a_helper_killed_in_the_middle_costs_a_wait_and_nothing_else(
    tmp_path: Path, plain: Node, call: str, when: When
) -> None:
    """It is killed at the second of the two processes. What was done to the first is not done again."""
    plain.script(Rule(call, Do.DIE, when, skip=1))
    one = kept(tmp_path, plain)
    on_gpu, eye = users(one, plain), Eye(tmp_path, plain)
    one.obeyed(one.gate.want(DesiredState.PARK))
    one.reaches(SessionState.PARKED)
    assert {plain.driver.state(pid) for pid in on_gpu} == {ProcessState.CHECKPOINTED}
    one.obeyed(one.gate.want(DesiredState.RUN, lease(2)))
    goes_on(one, tmp_path, plain)
    eye.close()
    assert plain.deaths == 1, "it was killed, and started again"
    assert set(Counter(plain.calls()).values()) == {1}, "a call was made twice"
    end(one)


def test_a_session_that_must_leave_its_node_leaves_its_gpu_first_and_comes_back_on_another(
    tmp_path: Path, node: Node
) -> None:
    one = kept(tmp_path, node, gpu="GPU-a")
    on_gpu, eye = users(one, node), Eye(tmp_path, node)
    one.gate.want(DesiredState.STOP)
    assert one.ends().end is End.LEFT
    assert not members(tmp_path) and one.place.is_complete(1)
    two = kept(tmp_path, node, epoch=2, gpu="GPU-b")
    assert users(two, node) == on_gpu, "under the numbers that they had"
    assert node.maps() == [{"GPU-a": "GPU-b"}] * 2
    made = [call for call, _ in node.calls()]
    assert made == ["lock"] * 2 + ["checkpoint"] * 2 + ["restore"] * 2 + ["unlock"] * 2
    eye.close()
    end(two)


def test_revived_and_not_put_back_it_is_ended_before_its_slot_is_free_and_its_image_stays(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kept(tmp_path, node)
    one.gate.want(DesiredState.STOP)
    assert one.ends().end is End.LEFT
    saved = (tmp_path / "chain").read_text()
    node.script(Rule("restore", Do.REFUSE, times=99))
    left: list[list[int]] = []
    let_go = SlotLock.release

    def release(lock: SlotLock) -> None:
        left.append(members(tmp_path))
        let_go(lock)

    monkeypatch.setattr(SlotLock, "release", release)
    snapshots = HelperSnapshots(node.helper, "s")
    two = Kept(tmp_path, chain(tmp_path / "chain", gpu=users_of(node.fake)), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive, match=r"the driver does not want it.*has been ended"):
        two.ends()
    assert left and not any(left), "whoever gets the lock finds nobody"
    assert two.holder() is None and two.place.is_complete(1)
    node.script()
    (tmp_path / "chain").write_text(saved)  # what used no GPU ran on until it was ended
    three = kept(tmp_path, node, epoch=3)
    end(three)


def test_in_place_and_not_put_back_it_goes_on_as_an_image_and_loses_no_step(tmp_path: Path, node: Node) -> None:
    one = kept(tmp_path, node)
    eye = Eye(tmp_path, node)
    one.obeyed(one.gate.want(DesiredState.PARK))
    one.reaches(SessionState.PARKED)
    node.script(Rule("restore", Do.REFUSE, times=99))
    one.gate.want(DesiredState.RUN, lease(2))
    with pytest.raises(CannotRevive, match=r"the driver does not want it.*goes on from image 1"):
        one.ends()
    done = lines(tmp_path)
    assert not members(tmp_path) and one.holder() is None
    node.script()
    two = kept(tmp_path, node, epoch=3)
    assert check((tmp_path / "chain").read_text()) > done, "the same chain, in the same memory"
    eye.close()
    end(two)


def test_a_dump_that_fails_puts_it_back_on_its_gpu(tmp_path: Path, plain: Node) -> None:
    one = kept(tmp_path, plain)
    on_gpu = users(one, plain)
    one.obeyed(one.gate.want(DesiredState.STOP))
    one.until(lambda: "there can be no images here" in one.gate.reports[-1].park_refused, "the reason")
    goes_on(one, tmp_path, plain)
    assert {plain.driver.state(pid) for pid in on_gpu} == {ProcessState.RUNNING}
    end(one)


def test_a_helper_killed_while_it_revives_leaves_nobody_on_a_free_slot(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU goes on alone, and nobody says when it is done: what it brings back is ended, the lock goes after that."""
    one = kept(tmp_path, node)
    one.gate.want(DesiredState.STOP)
    assert one.ends().end is End.LEFT
    monkeypatch.setattr(helper_snapshots, "READ_BACK_S", 0.5)
    journal = node.folder / "helper.sock.state" / "journal"
    node.stays_away = True

    def kill_at_work() -> None:
        until(lambda: '"op":"revive","step":"spawned"' in journal.read_text())
        os.kill(node.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_at_work)
    killer.start()
    snapshots = HelperSnapshots(node.helper, "s")
    two = Kept(tmp_path, chain(tmp_path / "chain", gpu=users_of(node.fake)), epoch=2, snapshots=snapshots).start()
    with pytest.raises(CannotRevive):
        two.ends()
    killer.join()
    assert two.place.is_complete(1)

    def over() -> bool:
        """At every moment: who finds the lock free finds nobody."""
        if probe(tmp_path / "locks", SLOT) is not None:
            return not members(tmp_path)  # the warden keeps it for as long as something may come
        assert not members(tmp_path), "the slot is free, and processes are on it"
        return True

    facts = json.loads(journal.read_text().splitlines()[-1].partition(" ")[2])["facts"]
    until(lambda: not is_alive(facts["runner_pid"], facts["runner_started"]), lambda: "CRIU to come to its end")
    until(over, lambda: f"nobody to be left: {members(tmp_path)}")
    assert node.process.wait(30) == -signal.SIGKILL


PEERS = """
import os, socket, sys, time
os.open(f"{sys.argv[1]}/{os.getpid()}", os.O_CREAT | os.O_RDWR) if sys.argv[1:] else None
a = socket.socket(); a.bind(("127.0.0.1", int(0))); a.listen(); b = os.fork()
if b == 0:
    os.setsid(); time.sleep(99)
print(a.getsockname()[1], flush=True); keep, _ = a.accept(); print("up", flush=True); time.sleep(99)
"""


@pytest.mark.parametrize("gpu", [False, True])
def test_what_hinders_an_image_is_told_beforehand_and_a_park_in_memory_is_told_apart(
    tmp_path: Path, node: Node, gpu: bool
) -> None:
    import socket

    words = [str(users_of(node.fake))] if gpu else []
    command = [sys.executable, "-I", "-S", "-c", PEERS, *words]
    one = Kept(tmp_path, command, snapshots=HelperSnapshots(node.helper, "s")).start()
    one.reaches(SessionState.RUNNING)
    one.until(lambda: one.place.output.exists() and one.place.output.read_text().endswith("\n"), "its port")
    with socket.create_connection(("127.0.0.1", int(one.place.output.read_text()))):
        one.until(lambda: "up" in one.place.output.read_text(), "its connection to be taken")
        one.keeper._hindrances.begin()  # as in a quarter of a minute
        one.until(lambda: "TCP connection" in str((one.place.read("standing") or {}).get("cannot_image")), "the word")
        (tmp_path / "train").mkdir()
        (tmp_path / "train" / "s").symlink_to(tmp_path / "run")
        (row,) = sessions(tmp_path, None)
        report = one.gate.reports[-1]
        if gpu:
            assert row["remark"].startswith("parks in memory only") and report.in_place_hindered == ""
            one.obeyed(one.gate.want(DesiredState.PARK))
            one.reaches(SessionState.PARKED)
        else:
            assert row["remark"].startswith("cannot be parked now: process")
            assert "TCP connection to outside" in report.in_place_hindered
    end(one)


def test_without_a_helper_that_is_what_hinders(tmp_path: Path) -> None:
    snapshots = HelperSnapshots(Helper(tmp_path / "nobody.sock"), "s")
    assert "does not know it" in snapshots.in_the_way().park
    snapshots._name = "session:s:1"
    assert "no helper answers" in snapshots.in_the_way().park
    assert json.dumps(snapshots.in_the_way().image)
