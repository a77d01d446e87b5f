"""A checkpoint of the author's own that is under way when the slot is wanted: waited for, or named."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

import ebbtide_train
from ebbtide.client.messages import Lease, RankPhase, RankReport, SlotRef
from ebbtide_train.session.checkpoints import author_saves
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.session import TrainingSession
from tests.train_jobs import gangs, tiny

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),  # one process saves for itself
]
LEASE = Lease("job", 7, (SlotRef("here", 0),))


class Writer(FileSystemWriter):
    """Writes when it is let go."""

    def __init__(self, path: Path, go: threading.Event) -> None:
        super().__init__(path)
        self._go = go

    def write_data(self, *given: Any, **named: Any) -> Any:
        assert self._go.wait(60)
        return super().write_data(*given, **named)


class Gate(ScriptedGate):
    """Wants the slot for a while after the second step; notes what was durable of the author's by then."""

    def __init__(self, on_report: Callable[[RankReport], None]) -> None:
        super().__init__({2: Away()}, lease=LEASE)
        self._on_report = on_report

    def report(self, report: RankReport) -> None:
        super().report(report)
        self._on_report(report)


@pytest.fixture
def go() -> Iterator[threading.Event]:
    """Lets whatever a test has begun come to its end."""
    event = threading.Event()
    yield event
    event.set()
    gangs.wait_until(lambda: not author_saves.under_way(), what="the author's save to end")


def train(run_dir: Path, gate: ScriptedGate, begin: Callable[[dict[str, Any]], object]) -> None:
    """Six steps; at the end of the second the author begins a save."""
    plan = gangs.plan_of(run_dir, world=1, epoch=7)
    try:
        with activate(TrainingSession(plan.settings(0), gate)):
            session = ebbtide_train.current_session()
            model, optimizer, scheduler, dataset, loss_of = tiny.build({})
            model = session.prepare(model, optimizer, scheduler)
            for step in session.steps(total=6):
                for batch in step.batches(dataset):
                    step.backward(loss_of(model(batch.x), batch.y))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                if session.finished == 1:
                    begin(model.module.state_dict())
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_park_waits_for_a_save_of_the_authors_own(tmp_path: Path, go: threading.Event) -> None:
    saves, before = list[Future[Any]](), list[bool]()

    def note(report: RankReport) -> None:
        if report.phase is RankPhase.RUNNING and report.step == 2:
            threading.Timer(0.2, go.set).start()
        if report.phase is RankPhase.PARKED:
            before.append(saves[0].done())

    def begin(state: dict[str, Any]) -> None:
        saves.append(cast(Future[Any], async_save(state, storage_writer=Writer(tmp_path / "own", go))))

    train(tmp_path / "job", gate := Gate(note), begin)
    assert before and all(before) and saves[0].result() is not None
    assert not any(report.park_refused for report in gate.reports)
    train(tmp_path / "calm", ScriptedGate({}, lease=LEASE), lambda _state: None)
    assert gangs.losses(tmp_path / "job") == gangs.losses(tmp_path / "calm")


def test_one_that_takes_too_long_is_named_and_the_gang_runs_on(
    tmp_path: Path, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(author_saves, "WAIT_S", 0.1)
    gate = Gate(lambda _report: None)
    train(tmp_path / "job", gate, lambda state: async_save(state, storage_writer=Writer(tmp_path / "own", go)))
    [refused] = {report.park_refused for report in gate.reports if report.park_refused}
    assert "torch.distributed.checkpoint, in thread AsyncCheckpointExecutor_0" in refused
    assert "still being written after 0.1 s; wait for its future" in refused
    assert len(gangs.losses(tmp_path / "job")) == 6
    assert RankPhase.PARKED not in {report.phase for report in gate.reports}


def test_staging_in_a_thread_without_a_name_is_seen_by_what_it_is_at(
    go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is the thread that waits for a process which writes: both run in an executor of no name."""
    begun = threading.Event()

    def stage(*_given: object, **_named: object) -> None:
        begun.set()
        assert go.wait(60)

    stager = staging.DefaultStager(staging.StagingOptions(False, False, True, False))
    monkeypatch.setattr(stager._state_dict_stager, "stage", stage)
    assert author_saves.wait_for_them(0.0) == ""
    stager.stage({})
    assert begun.wait(30)
    assert len(author_saves.under_way()) == 1 and "ThreadPoolExecutor" in author_saves.wait_for_them(0.0)
    go.set()
    stager.close()
    assert author_saves.under_way() == [], "its executor's thread has gone, or waits for work"


def test_other_threads_and_this_ones_own_saves_are_none_of_these() -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()
        assert author_saves.under_way() == []


def test_a_thread_of_torchs_executor_counts_before_it_has_begun(go: threading.Event) -> None:
    """It is there from the moment that a save was asked for."""
    with ThreadPoolExecutor(1, thread_name_prefix="AsyncCheckpointExecutor") as executor:
        executor.submit(go.wait)
        found = author_saves.under_way()
        go.set()
    assert found == ["AsyncCheckpointExecutor_0"] and author_saves.under_way() == []
