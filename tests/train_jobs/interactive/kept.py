"""Keepers under test: with a gate that the test speaks through, and snapshots that are faked by processes.

As a program, ``python -m tests.train_jobs.interactive.kept FOLDER COMMAND_JSON PLAN [SOCKET]``, it is one keeper in a
process of its own, which kills itself at the edge that PLAN names; with the helper at SOCKET, if it is given.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.messages import DesiredState, JobDirective, Lease, RankReport, SlotRef
from ebbtide.helper.client import Helper
from ebbtide_train.interactive.errors import CannotPark, CannotRevive, OutcomeUnknown
from ebbtide_train.interactive.idle_detection.idle_rules import IdleRules
from ebbtide_train.interactive.idle_detection.idle_watch import IdleWatch
from ebbtide_train.interactive.idle_detection.owner_notices import OwnerNotices
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.ports import InTheWay
from ebbtide_train.interactive.process_tree.leader import GO
from ebbtide_train.interactive.process_tree.tree import Process, Tree, this_process
from ebbtide_train.interactive.process_tree.watchdog import LEADER
from ebbtide_train.interactive.session_folder import COMMIT, SessionFolder
from ebbtide_train.interactive.spec import SessionSpec
from ebbtide_train.interactive.supervision.session_states import SessionState
from ebbtide_train.interactive.supervision.session_supervisor import SessionSupervisor, Verdict

SLOT = SlotRef("here", 0)
CHAIN = Path(__file__).with_name("chain.py")


def lease(epoch: int, gpu: str = "") -> Lease:
    return Lease("s", epoch, (replace(SLOT, uuid=gpu),))


def chain(
    file: Path,
    *,
    steps: int = 100_000,
    code: int = 0,
    family: bool = False,
    gpu: Path | None = None,
    ballast_mib: int = 0,
) -> tuple[str, ...]:
    more = ["family"] if family else ["gpu", str(gpu)] if gpu is not None else []
    more = ["ballast", str(ballast_mib)] if ballast_mib else more
    return (sys.executable, "-I", "-S", str(CHAIN), str(file), str(steps), str(code), *more)


@dataclass
class FakeGate:
    """The pool's side, spoken by the test."""

    now: JobDirective
    reports: list[RankReport] = field(default_factory=list)

    def directive(self) -> JobDirective | None:
        return self.now

    def report(self, report: RankReport) -> None:
        self.reports.append(report)

    def begin(self) -> DesiredState:
        return DesiredState.RUN

    def heard(self) -> int:
        """The number of the last order that was carried out."""
        return self.reports[-1].directive if self.reports else 0

    def want(self, want: DesiredState, under: Lease | None = None) -> int:
        self.now = JobDirective(self.now.number + 1, want, under)
        return self.now.number


@dataclass
class FakeWishes:
    """Takes everything in."""

    heard: list[str] = field(default_factory=list)

    def park(self, why: str) -> bool:
        self.heard.append(f"park: {why}")
        return True

    def resume(self, why: str) -> bool:
        self.heard.append(f"resume: {why}")
        return True


class NoMeter:
    def use(self) -> float | None:
        return None


class FakeSnapshots:
    """An image is a folder with COMMIT; making one kills the tree, reviving it starts the command again."""

    def __init__(self, folder: Path, *, gpu: bool = False) -> None:
        self.folder, self.gpu = folder, gpu
        self.refuse = self.lose = self.refuse_revive = self.lose_revive = self.refuse_gpu = ""
        self.hinders = InTheWay()
        self.calls: list[str] = []
        self.started: Process | None = None  # by a revival
        self.comes_late = False  # what is waited for comes to stand meanwhile
        self.at_revival: Callable[[], object] = lambda: None

    def register(self, leader: Process) -> None:
        self.calls.append("register")

    def image(self, leader: Process, image_dir: Path) -> None:
        self.calls.append(f"image {image_dir.name}")
        if self.refuse:
            raise CannotPark(self.refuse)
        if self.lose == "before":
            raise OutcomeUnknown("the helper does not answer")
        if self.lose != "killed":
            image_dir.mkdir(parents=True)
            (image_dir / COMMIT).touch()
        if self.lose == "committed":  # stopped, and not killed yet
            os.kill(leader.pid, signal.SIGSTOP)
            raise OutcomeUnknown("the helper was killed")
        assert Tree(leader).kill(30.0)
        if self.lose:
            raise OutcomeUnknown("the helper was killed")

    def revive(self, image_dir: Path) -> Process:
        self.calls.append(f"revive {image_dir.name}")
        if self.refuse_revive:
            raise CannotRevive(self.refuse_revive)
        self.at_revival()
        if self.lose_revive == "never":
            raise OutcomeUnknown("the helper does not answer", over=True)
        if self.lose_revive == "later":
            threading.Timer(0.5, self._start).start()
            raise OutcomeUnknown("the helper does not answer")
        found = self._start()
        if self.lose_revive == "there":
            raise OutcomeUnknown("the answer was lost", over=True)
        return found

    def _start(self) -> Process:
        with (self.folder / "output.log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LEADER), str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={},
                start_new_session=True,
            )
        assert started.stdin is not None
        started.stdin.write(GO)
        started.stdin.close()
        threading.Thread(target=started.wait, daemon=True).start()
        found = self.started = this_process(started.pid)
        assert found is not None
        return found

    def settled(self, image_dir: Path) -> None:
        self.calls.append(f"settled {image_dir.name}")
        if self.comes_late:
            image_dir.mkdir(parents=True, exist_ok=True)
            (image_dir / COMMIT).touch()

    def discard(self, image_dir: Path) -> None:
        SessionFolder(self.folder.parent).discard(int(image_dir.name))

    def forget(self) -> None:
        self.calls.append("forget")

    def leave_gpu(self, leader: Process) -> bool:
        if self.gpu and self.refuse:
            raise CannotPark(self.refuse)
        self.calls.append("leave_gpu") if self.gpu else None
        return self.gpu

    def return_to_gpu(self, leader: Process, gpu_map: Mapping[str, str]) -> None:
        if self.gpu:
            self.calls.append(f"return_to_gpu {dict(gpu_map)}" if gpu_map else "return_to_gpu")
        if self.refuse_gpu:
            raise CannotRevive(self.refuse_gpu)

    def in_the_way(self) -> InTheWay:
        return self.hinders


class Kept:
    """One keeper in a thread."""

    def __init__(
        self,
        root: Path,
        command: Sequence[str],
        *,
        epoch: int = 1,
        gpu: str = "",
        snapshots: object = None,
        idle: IdleRules | None = None,
        herald: OwnerNotices | None = None,
        stop_s: float = 2.0,
        edge: Callable[[SessionState, SessionState], None] = lambda _now, _then: None,
    ) -> None:
        self.place = SessionFolder(root / "run")
        self.locks = root / "locks"
        self.gate = FakeGate(JobDirective(0, DesiredState.RUN, lease(epoch, gpu)))
        self.wishes = FakeWishes()
        self.snapshots = FakeSnapshots(self.place.folder) if snapshots is None else snapshots
        rules = idle or IdleRules()
        spec = SessionSpec(
            name="s", command=tuple(command), cwd=str(root), env={"PATH": "/usr/bin:/bin"}, idle=rules, stop_s=stop_s
        )
        watch = IdleWatch(
            rules,
            session="s",
            owner=spec.owner,
            herald=herald or OwnerNotices(()),
            meter=NoMeter(),
            touched_s=self.place.touched_s,
        )
        self.keeper = SessionSupervisor(
            spec,
            self.place,
            lease=lease(epoch, gpu),
            incarnation="i",
            node="here",
            gate=self.gate,
            lock_for=lambda given: SlotLock(self.locks, SLOT, workload="s", epoch=given.epoch, ledger="l"),
            snapshots=self.snapshots,  # type: ignore[arg-type] # tests give fakes and the real one
            wishes=self.wishes,
            idle=watch,
            slot_env=lambda _lease: {"CUDA_VISIBLE_DEVICES": "0"},
        )
        step = self.keeper._to

        def observed(state: SessionState, *, park_refused: str = "") -> None:
            edge(self.keeper.state, state)
            step(state, park_refused=park_refused)

        self.keeper._to = observed  # type: ignore[method-assign]
        self._leader = Process(0, 0)
        self.verdict: Verdict | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.verdict = self.keeper.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def start(self) -> "Kept":
        self.thread.start()
        return self

    def until(self, condition: Callable[[], object], what: str = "", timeout_s: float = 60.0) -> None:
        until(condition, lambda: f"{what}; {self.keeper.state}, {self.verdict}, {self.error!r}", timeout_s)

    def reaches(self, state: SessionState) -> None:
        self.until(lambda: self.keeper.state is state, f"it to be {state.value}")

    def obeyed(self, number: int) -> None:
        self.until(lambda: self.gate.heard() >= number, f"order {number} to be carried out")

    def parks(self) -> None:
        """It is asked to, and does."""
        self.obeyed(self.gate.want(DesiredState.PARK))
        self.until(lambda: self.keeper.state in (SessionState.PARKED, SessionState.RUNNING), "it to be aside, or not")
        assert self.keeper.state is SessionState.PARKED, self.gate.reports[-1].park_refused

    def ends(self) -> Verdict:
        self.thread.join(20.0)
        if self.error is not None:
            raise self.error
        assert self.verdict is not None, f"it is still {self.keeper.state}"
        return self.verdict

    def leader(self) -> Process:
        tree = self.keeper._occupation.tree
        if tree is not None:
            self._leader = tree.leader
        return self._leader

    def holder(self) -> object:
        from ebbtide.agent.slot_locks.slot_lock import probe

        return probe(self.locks, SLOT)


def until(condition: Callable[[], object], what: Callable[[], str] = str, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what()}"
        time.sleep(0.01)


def members(root: Path) -> list[int]:
    """Processes of the session of this folder that live, by their command lines."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(root) in words and ("leader.py" in words or "chain.py" in words) and "kept" not in words:
            found += [process.pid] if process.info["status"] != psutil.STATUS_ZOMBIE else []
    return found


def main(root: str, command: str, plan: str, socket: str = "") -> None:
    """Keep a session; ``plan``: "STATE>STATE EPOCH", the edge to die at, or no edge; orders come by a file."""
    edge, epoch = plan.split()

    def die(now: SessionState, then: SessionState) -> None:
        if f"{now.value}>{then.value}" == edge:
            os.kill(os.getpid(), signal.SIGKILL)

    snapshots = HelperSnapshots(Helper(Path(socket)), "s") if socket else None
    kept = Kept(Path(root), json.loads(command), epoch=int(epoch), snapshots=snapshots, edge=die).start()
    orders = Path(root) / "orders"
    while kept.thread.is_alive():
        said = orders.read_text().split() if orders.exists() else []
        for word in said[kept.gate.now.number :]:
            number = kept.gate.want(
                DesiredState(word), lease(int(epoch) + kept.gate.now.number + 1) if word == "run" else None
            )
            until(lambda n=number: kept.gate.heard() >= n or not kept.thread.is_alive())  # type: ignore[misc]
        time.sleep(0.01)
    print(kept.verdict, kept.error)


if __name__ == "__main__":
    main(*sys.argv[1:])
