"""Parking in place: what is being written stays as it was, and ranks that come back apart go no further."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from ebbtide.client.messages import DesiredState, Lease, RankPhase, RankReport, SlotRef
from ebbtide.snapshot.errors import HostMemoryShort
from ebbtide.storage.checkpoints.state import rank_file
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import GangBroken, Preempted
from ebbtide_train.session.loop import park as park_module
from ebbtide_train.session.parking.occupancy import Occupancy
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.state.train_state import TrainState
from tests.builders.training import parameters
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)
LEASE = Lease("job", 7, (SlotRef("here", 0),))


def train(run_dir: Path, gate: ScriptedGate, **options: object) -> None:
    plan = gangs.plan_of(run_dir, world=1, epoch=7, options=options)
    try:
        with activate(TrainingSession(plan.settings(0), gate)):
            tiny.train({"steps": 6})
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.proves("a park waits for the spill before it, which reads the same memory")
def test_a_second_park_leaves_the_state_alone_that_the_first_one_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both use the same host memory."""
    publish, hang, kept = CheckpointStore.publish, threading.Event(), dict[str, torch.Tensor]()

    def slow(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        if (self._paths.run, ref.step) == ("job", 2):
            assert hang.wait(60)
        publish(self, state, ref)
        if ref.step == 2:
            kept[self._paths.run] = parameters(self.load(ref))

    class Again(ScriptedGate):
        def report(self, report: RankReport) -> None:
            super().report(report)
            if report.step == 4 and report.phase is RankPhase.RUNNING:
                threading.Timer(0.5, hang.set).start()

    monkeypatch.setattr(CheckpointStore, "publish", slow)
    train(tmp_path / "job", Again({2: Away(), 4: Away()}, lease=LEASE))
    with pytest.raises(Preempted):
        train(tmp_path / "calm", ScriptedGate({2: DesiredState.STOP}, lease=LEASE))
    assert torch.equal(kept["job"], kept["calm"])


@pytest.mark.proves("a checkpoint that is being written holds up no park")
def test_a_checkpoint_that_hangs_keeps_no_gang_on_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written from a copy; what is parked is written after it."""
    publish, hang, waits, committed = CheckpointStore.publish, threading.Event(), list[bool](), list[int]()

    def slow(self: CheckpointStore, state: Mapping[str, object], ref: Ref) -> None:
        waits.append(hang.wait(30))
        publish(self, state, ref)
        committed.append(ref.step)

    class UntilParked(ScriptedGate):
        def report(self, report: RankReport) -> None:
            super().report(report)
            if report.phase is RankPhase.PARKED and not hang.is_set():
                threading.Timer(0.3, hang.set).start()

    monkeypatch.setattr(CheckpointStore, "publish", slow)
    gate = UntilParked({3: Away(until=lambda report: report.durable_step == 3)}, lease=LEASE)
    train(tmp_path, gate, checkpoint_every_s=0.0)
    assert all(waits) and committed[:2] == [1, 3] and committed == sorted(committed) and committed[-1] == 6


def test_a_job_that_shall_not_park_in_place_asks_for_no_memory() -> None:
    """Of its member nothing that could lend any is looked at: there is nothing of that kind."""
    noted: dict[str, int] = {}
    tracked, settings = SimpleNamespace(size_bytes=lambda: 5), SimpleNamespace(in_place=False)
    park_module.admit(SimpleNamespace(settings=settings, tracked=tracked, note=noted.update))  # type: ignore[arg-type]
    assert noted == {"tracked_bytes": 5}


class NothingToLend:
    """A node that is full."""

    def lend(self, size_bytes: int) -> NoReturn:
        raise HostMemoryShort("the node has no memory left")


def test_where_no_memory_is_lent_the_checkpoint_to_leave_with_is_written_straight_from_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of them is copied before."""
    fill, written = rank_file._from_tensors, set[int]()

    def noted(sources: Mapping[str, torch.Tensor]) -> Any:
        written.update(flat.data_ptr() for flat in sources.values())
        return fill(sources)

    monkeypatch.setattr(rank_file, "_from_tensors", noted)
    gate = ScriptedGate({2: Away(), 4: DesiredState.STOP}, lease=LEASE)
    session = TrainingSession(gangs.plan_of(tmp_path, world=1, epoch=7).settings(0), gate, memory=NothingToLend())
    leave, tracked = Occupancy.leave, set[int]()

    def leaving(self: Occupancy, prepared: Any, what: TrainState | None, **how: Any) -> None:
        assert what is not None
        tracked.update(tensor.data_ptr() for _, tensor in what.tensors())
        leave(self, prepared, what, **how)

    monkeypatch.setattr(Occupancy, "leave", leaving)
    try:
        with pytest.raises(Preempted), activate(session):
            tiny.train({"steps": 6})
    finally:
        torch.use_deterministic_algorithms(False)
    assert any("the node has no memory left" in report.park_refused for report in gate.reports)
    assert len(tracked) > 30 and tracked <= written


class Apart:
    """A group whose ranks do not stand at the same step."""

    def __init__(self, *steps: int) -> None:
        self._steps = steps

    def max_of(self, values: list[int]) -> list[int]:
        return [max(self._steps), -min(self._steps)]


@pytest.mark.proves("ranks that come back at different steps go no further")
def test_ranks_that_come_back_at_different_steps_go_no_further() -> None:
    park_module._check_together(Apart(5, 5), 5)  # type: ignore[arg-type]
    for mine in (4, 5):
        with pytest.raises(GangBroken, match="steps 4 to 5"):
            park_module._check_together(Apart(4, 5), mine)  # type: ignore[arg-type]
