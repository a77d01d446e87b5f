"""A shared directory that is full or hangs: training goes on, and says how far it is safe."""

import itertools
import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ebbtide.client.messages import DesiredState, JobDirective, Lease, RankPhase, RankReport, SlotRef
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.storage.checkpoints.manager.host_staging import HostCopies
from ebbtide.storage.errors import NoRoom
from ebbtide_train.session.checkpoints import durability as durability_module
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.checkpoints.durability import Durability, Version
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import CheckpointFailed, CommitHopeless, GangBroken, Preempted
from ebbtide_train.session.loop import park as park_module
from ebbtide_train.session.loop import safe_point as safe_point_module
from ebbtide_train.session.parking.occupancy import Occupancy
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.step_log import step_lines
from tests.builders.training import parameters
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)
LEASE = Lease("job", 7, (SlotRef("here", 0),))


def run_here(
    run_dir: Path,
    wants: Mapping[int, DesiredState | Away],
    gate: ScriptedGate | None = None,
    *,
    steps: int = 6,
    **settings: object,
) -> ScriptedGate:
    """Train the tiny job in this process; its global switches are put back."""
    gate = gate or ScriptedGate(wants, lease=LEASE)
    found = replace(gangs.plan_of(run_dir, world=1, epoch=7).settings(0), **settings)  # type: ignore[arg-type]
    try:
        with activate(TrainingSession(found, gate)):
            tiny.train({"steps": steps})
    finally:
        torch.use_deterministic_algorithms(False)
    return gate


@pytest.mark.proves(
    "a commit that fails keeps the gang where it is",
    "a write that failed is told",
    "an order that is taken back is obeyed while commits fail",
    "the steps that count as durable rise only by a commit",
)
def test_a_full_disk_keeps_the_job_running_instead_of_losing_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot leave: it waits where it is and says why; the order is taken back; in the end there is space again."""
    publish, calls = CheckpointStore.publish, [0]

    def full(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        calls[0] += 1
        if calls[0] <= 5:
            raise CheckpointFailed("no space left")
        publish(self, state, ref)

    monkeypatch.setattr(CheckpointStore, "publish", full)
    monkeypatch.setattr(safe_point_module, "RETRY_S", 0.01)
    gate = TakenBack({2: DesiredState.STOP}, lease=LEASE)
    run_here(tmp_path, {}, gate)
    assert [line.step for line in step_lines(tmp_path)] == list(range(6))
    refused = [report for report in gate.reports if report.park_refused]
    assert {(r.phase, r.directive, r.durable_step, r.step, r.park_refused) for r in refused} == {
        (RankPhase.RUNNING, 0, 0, 2, "no space left")
    }
    assert any(r.commit_error == "no space left" and r.step == 6 for r in gate.reports), "the last commit failed once"
    assert (gate.reports[-1].durable_step, gate.reports[-1].commit_error) == (6, "")


class TakenBack(ScriptedGate):
    """Takes the order back once it was refused three times."""

    def report(self, report: RankReport) -> None:
        super().report(report)
        if len([r for r in self.reports if r.park_refused]) == 3 and report.park_refused:
            self._say(DesiredState.RUN, self._lease)


@pytest.mark.proves("the last step is committed before the job is done")
def test_a_disk_that_stays_full_fails_the_job_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: CheckpointStore, state: object, ref: Ref) -> None:
        raise CheckpointFailed("no space left")

    monkeypatch.setattr(CheckpointStore, "publish", full)
    with pytest.raises(CheckpointFailed, match="no space left"):
        run_here(tmp_path, {}, last_commit_s=0.0)
    assert [line.step for line in step_lines(tmp_path)] == list(range(6))


def test_a_parked_job_becomes_durable_once_there_is_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, calls = CheckpointStore.publish, [0]

    def full(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise CheckpointFailed("no space left")
        publish(self, state, ref)

    monkeypatch.setattr(CheckpointStore, "publish", full)
    monkeypatch.setattr(durability_module, "_AGAIN_S", 0.01)
    gate = ScriptedGate({2: Away(until=lambda report: report.durable_step == 2)}, lease=LEASE)
    run_here(tmp_path, {}, gate)
    parked = [(r.durable_step, r.commit_error) for r in gate.reports if r.phase is RankPhase.PARKED]
    assert parked == [(0, ""), (0, "no space left"), (2, "")]


@pytest.mark.proves("nothing ends the writer of checkpoints in silence")
def test_what_nobody_thought_of_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share that is broken in any way for a moment does not end the writer."""
    publish, calls, looks = CheckpointStore.publish, [0], itertools.count()

    def broken(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(5, "Input/output error")
        publish(self, state, ref)

    monkeypatch.setattr(CheckpointStore, "publish", broken)
    monkeypatch.setattr(durability_module, "_AGAIN_S", 0.01)
    gate = ScriptedGate({2: Away(until=lambda report: report.durable_step == 2 or next(looks) > 500)}, lease=LEASE)
    run_here(tmp_path, {}, gate)
    parked = [(r.durable_step, r.commit_error) for r in gate.reports if r.phase is RankPhase.PARKED]
    assert parked == [(0, ""), (0, "OSError: [Errno 5] Input/output error"), (2, "")]


@pytest.mark.proves("without a thread to write in a write is tried again")
def test_without_a_thread_to_write_in_a_parked_job_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, calls, looks = threading.Thread.start, [0], itertools.count()

    def crowded(self: threading.Thread) -> None:
        calls[0] += self.name == "durability"
        if self.name == "durability" and calls[0] == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", crowded)
    monkeypatch.setattr(durability_module, "_AGAIN_S", 0.01)
    gate = ScriptedGate({2: Away(until=lambda report: report.durable_step == 2 or next(looks) > 500)}, lease=LEASE)
    run_here(tmp_path, {}, gate)
    parked = [(r.durable_step, r.commit_error) for r in gate.reports if r.phase is RankPhase.PARKED]
    assert parked == [(0, ""), (0, "RuntimeError: can't start new thread"), (2, "")]


@pytest.mark.proves("without a copy for a checkpoint training goes on")
@pytest.mark.parametrize("error", [MemoryError("no memory for a copy"), NoRoom("no arena is left")])
def test_without_a_copy_training_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stage, calls = HostCopies.stage, [0]

    def short(self: HostCopies, state: Mapping[str, object]) -> object:
        calls[0] += 1
        if calls[0] <= 2:
            raise error
        return stage(self, state)

    monkeypatch.setattr(HostCopies, "stage", short)
    gate = run_here(tmp_path, {}, checkpoint_every_s=0.0)
    assert [line.step for line in step_lines(tmp_path)] == list(range(6)) and calls[0] > 2
    assert any(str(error) in report.commit_error for report in gate.reports)


class Replaced(ScriptedGate):
    """A later gang begins when the second step has ended; orders are taken back in the end, or it would go on."""

    def __init__(self, run_dir: Path, wants: Mapping[int, DesiredState | Away]) -> None:
        super().__init__(wants, lease=LEASE)
        self._run_dir, self._begun = run_dir, False
        self.looks = 0

    def directive(self) -> JobDirective | None:
        self.looks += 1
        return super().directive()

    def report(self, report: RankReport) -> None:
        if report.step == 2 and not self._begun:
            self._begun = True
            CheckpointStore(self._run_dir).begin(8)
        super().report(report)
        if len([one for one in self.reports if one.park_refused or one.commit_error]) == 5:
            self._say(DesiredState.RUN, self._lease)


class NotedLock:
    def __init__(self) -> None:
        self.held = False

    def acquire(self, timeout_s: float) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


PATIENCE = 300  # looks at the gate
STEPS = 1000  # of some milliseconds; a commit that fails is heard of in some dozens


@pytest.mark.proves(
    "a gang that gives up lets go of its slot's memory and lock",
    "a gang whose commits can never count leaves when it is told to stop",
    "a gang whose commits can never count leaves while it is parked",
)
@pytest.mark.parametrize(
    "wants", [{3: DesiredState.STOP}, {3: Away(polls=PATIENCE)}, {3: Away(then=DesiredState.STOP)}, {}]
)
def test_a_gang_that_was_replaced_leaves_its_slot_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wants: Mapping[int, DesiredState | Away]
) -> None:
    """Told to stop, parked, told to stop while it is parked, and while it trains: it can never commit again."""
    monkeypatch.setattr(safe_point_module, "RETRY_S", 0.01)
    monkeypatch.setattr(park_module, "RETRY_S", 0.01)
    settings = replace(gangs.plan_of(tmp_path, world=1, epoch=7).settings(0), last_commit_s=0.0, checkpoint_every_s=0.0)
    lock, gate, held = NotedLock(), Replaced(tmp_path, wants), list[bool]()
    with pytest.raises(GangBroken, match="epoch 8 has begun"):
        try:
            with activate(TrainingSession(settings, gate, lock_for=lambda lease, rank: lock)):
                try:
                    tiny.train({"steps": STEPS})
                finally:
                    held.append(lock.held)
        finally:
            torch.use_deterministic_algorithms(False)
    assert held == [False] and not lock.held, "it lets go before its train function has ended"
    assert max(line.step for line in step_lines(tmp_path)) < STEPS // 2
    assert not any(report.park_refused for report in gate.reports), "it does not try again"
    assert gate.looks < PATIENCE, "it does not wait until it is called back"


@pytest.mark.proves("a gang whose commits can never count leaves while it trains")
def test_the_ranks_come_together_at_once_to_hear_that_no_commit_will_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(self: CheckpointStore, state: object, ref: Ref) -> None:
        raise CommitHopeless("epoch 8 has begun")

    monkeypatch.setattr(CheckpointStore, "publish", replaced)
    settings = replace(gangs.plan_of(tmp_path, world=1, epoch=7).settings(0), checkpoint_every_s=1000.0)
    durability = Durability(settings, CheckpointStore(tmp_path))
    assert not durability.due()
    durability.write({}, Version(1, 10))
    assert durability.due(), "not only when the next checkpoint would be written"


@pytest.mark.proves("commits go into the epoch that the gang has begun")
def test_a_gang_of_another_ledger_commits_into_the_epoch_that_it_has_begun(tmp_path: Path) -> None:
    """Its lease counts from 1 again."""
    run_dir = tmp_path / "train" / "job"
    run_here(run_dir, {}, ledger="of before")
    ledger = EpochLog.open(tmp_path / "ledger", writer="test").ledger
    lease = Lease("job", 1, (SlotRef("here", 0),))
    gate = run_here(run_dir, {}, ScriptedGate({}, lease=lease), lease=lease, ledger=ledger, steps=8)
    assert (gate.reports[-1].durable_step, gate.reports[-1].commit_error) == (8, "")
    newest = CheckpointStore(run_dir).newest()
    assert newest is not None and (newest.epoch, newest.step) == (8, 8)


@pytest.mark.proves("a parked gang that is told to leave commits first")
def test_a_parked_gang_that_shall_leave_and_cannot_commit_says_why_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, tries = CheckpointStore.publish, itertools.count()

    def full(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        if (number := next(tries)) < 4:
            raise CheckpointFailed(f"no space left, try {number}")
        publish(self, state, ref)

    monkeypatch.setattr(CheckpointStore, "publish", full)
    monkeypatch.setattr(park_module, "RETRY_S", 0.01)
    gate = ScriptedGate({2: Away(then=DesiredState.STOP)}, lease=LEASE)
    with pytest.raises(Preempted):
        run_here(tmp_path, {}, gate)
    said = [report.commit_error for report in gate.reports if report.phase is RankPhase.PARKED]
    assert [number for number in range(1, 4) if any(f"try {number}" in one for one in said)] == [1, 2, 3]
    assert gate.reports[-1].phase is RankPhase.STOPPED and gate.reports[-1].durable_step == 2


@pytest.mark.proves("a slot is left before old checkpoints are removed")
def test_the_slot_is_left_before_old_checkpoints_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That may take long, and may be cut off anywhere."""
    seen: list[str] = []
    leave = Occupancy.leave

    def noted(self: Occupancy, *parts: Any, **how: Any) -> None:
        seen.append("left")
        leave(self, *parts, **how)

    def settle(self: CheckpointStore, timeout_s: float = math.inf) -> bool:
        seen.append("cleaned in time" if timeout_s < 10 else "cleaned")
        return False

    monkeypatch.setattr(Occupancy, "leave", noted)
    monkeypatch.setattr(CheckpointStore, "settle", settle)
    run_here(tmp_path, {})
    assert seen == ["left", "cleaned in time"]


def test_a_checkpoint_that_hangs_holds_up_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in the background from a copy: what is committed is the state of its step, not that of later ones."""
    publish, hang = CheckpointStore.publish, threading.Event()

    def slow(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        if ref.step == 1:
            assert hang.wait(30)
        publish(self, state, ref)
        kept.append({"at": ref.step, **self.load(ref)})

    class Until(ScriptedGate):
        def report(self, report: RankReport) -> None:
            super().report(report)
            if report.step == 5:
                hang.set()

    kept: list[dict[str, object]] = []
    monkeypatch.setattr(CheckpointStore, "publish", slow)
    gate = Until({}, lease=LEASE)
    run_here(tmp_path, {}, gate, checkpoint_every_s=0.0)
    assert max(r.step for r in gate.reports if r.durable_step == 0) >= 5
    first = next(one for one in kept if one["at"] == 1)
    undisturbed = tmp_path / "undisturbed"
    with pytest.raises(Preempted):
        run_here(undisturbed, {1: DesiredState.STOP})
    store = CheckpointStore(undisturbed)
    newest = store.newest()
    assert newest is not None and newest.step == 1
    ref = store.ref(newest)
    assert ref is not None
    assert torch.equal(parameters(first), parameters(store.load(ref)))
