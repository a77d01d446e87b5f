"""What stays on a GPU is taken off by a real helper with a fake driver, before the slot's lock is let go."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ebbtide.client.messages import Lease, SlotRef
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.system import modes
from ebbtide.system.process import started_ticks
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, When, script_of, write_script
from ebbtide_testing.gpu_driver.fake_users import users_of
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import GangBroken
from ebbtide_train.session.parking.device_context import ContextStays
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.worker.cuda_context import CudaContext
from tests.platform.helper.trees import Running, helping
from tests.train_jobs import gangs, tiny
from tests.train_jobs.frozen_ranks import frozen_rank

pytestmark = pytest.mark.timeout(120)
LEASE = Lease("job", 7, (SlotRef("here", 0),))
Notes = list[tuple[str, ProcessState]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path.resolve()


@pytest.fixture
def driver(folder: Path) -> Iterator[FakeDriver]:
    """Of a GPU that this very process uses, and not the helper, which is its child here."""
    (users := users_of(folder / "driver")).mkdir()
    with (users / "mine").open("w"):
        yield FakeDriver(folder / "driver")


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    with helping(folder, None, "--fake-driver", str(folder / "driver")) as running:
        yield running


class NotedLock:
    """Notes where the driver had this process when the lock was taken and let go."""

    def __init__(self, driver: FakeDriver, notes: Notes) -> None:
        self._driver, self._notes = driver, notes

    def acquire(self, timeout_s: float) -> None:
        self._notes.append(("acquire", self._driver.state(os.getpid())))

    def release(self) -> None:
        self._notes.append(("release", self._driver.state(os.getpid())))


def context_of(running: Running, driver: FakeDriver, *, read_back_s: float = 5.0) -> CudaContext:
    """Of this very process; fails if it does anything on the device that a frozen process could not."""
    started = started_ticks(os.getpid())
    assert started is not None

    def must_run() -> None:
        assert driver.state(os.getpid()) is ProcessState.RUNNING

    return CudaContext(
        running.helper,
        "job/0",
        pid=os.getpid(),
        started=started,
        warm_up=must_run,
        let_go=must_run,
        read_back_s=read_back_s,
    )


def train(
    run_dir: Path, gate: ScriptedGate, context: CudaContext | ContextStays, notes: Notes, driver: FakeDriver
) -> None:
    plan = gangs.plan_of(run_dir, world=1, epoch=7)
    session = TrainingSession(
        plan.settings(0), gate, lock_for=lambda lease, rank: NotedLock(driver, notes), context=context
    )
    try:
        with activate(session):
            tiny.train({"steps": 6})
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_park_takes_the_context_off_before_the_lock_and_back_after_it(
    folder: Path, running: Running, driver: FakeDriver
) -> None:
    notes: Notes = []
    train(folder / "job", ScriptedGate({2: Away(), 4: Away()}, lease=LEASE), context_of(running, driver), notes, driver)
    train(folder / "calm", ScriptedGate({}, lease=LEASE), context_of(running, driver), [], driver)
    assert gangs.losses(folder / "job") == gangs.losses(folder / "calm")
    off = ProcessState.CHECKPOINTED
    assert notes[1:5] == [("release", off), ("acquire", off), ("release", off), ("acquire", off)]
    assert notes[0] == ("acquire", ProcessState.RUNNING), "the slot is taken before the rehearsal"
    assert ("release", ProcessState.RUNNING) not in notes, "what is there keeps the lock until the process ends"
    assert driver.state(os.getpid()) is ProcessState.RUNNING
    assert "job/0" not in running.helper.facts()["workloads"]


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule("lock", Do.TIMEOUT), "did not end in time"),
        (Rule("checkpoint", Do.REFUSE), "does not want it"),
        (Rule("checkpoint", Do.UNKNOWN), ""),
    ],
)
def test_what_the_rehearsal_finds_refuses_every_park_and_training_goes_on(
    folder: Path, running: Running, driver: FakeDriver, rule: Rule, why: str
) -> None:
    write_script(script_of(folder / "driver"), [rule])
    gate = ScriptedGate({2: Away()}, lease=LEASE)
    train(folder / "job", gate, context_of(running, driver), [], driver)
    refused = [report.park_refused for report in gate.reports if report.park_refused]
    assert refused and why in refused[0] and "restarts instead" in refused[0]
    assert driver.state(os.getpid()) is ProcessState.RUNNING
    assert len(gangs.losses(folder / "job")) == 6


def test_an_answer_that_was_lost_is_read_back_and_nothing_is_asked_twice(
    folder: Path, running: Running, driver: FakeDriver
) -> None:
    write_script(script_of(folder / "driver"), [Rule("checkpoint", Do.UNKNOWN, When.AFTER, skip=1)])
    notes: Notes = []
    train(folder / "job", ScriptedGate({2: Away()}, lease=LEASE), context_of(running, driver), notes, driver)
    assert ("release", ProcessState.CHECKPOINTED) in notes
    assert len(gangs.losses(folder / "job")) == 6


@pytest.mark.parametrize("call", ["checkpoint", "restore"])
def test_a_context_that_does_not_move_when_it_must_ends_the_gang_with_the_lock_kept_and_the_state_in_host_memory(
    folder: Path, running: Running, driver: FakeDriver, call: str
) -> None:
    write_script(script_of(folder / "driver"), [Rule(call, Do.REFUSE, skip=1, times=99)])
    notes: Notes = []
    with pytest.raises(GangBroken, match="host memory"):
        train(folder / "job", ScriptedGate({2: Away()}, lease=LEASE), context_of(running, driver), notes, driver)
    released = [state for what, state in notes if what == "release"]
    assert released == ([] if call == "checkpoint" else [ProcessState.CHECKPOINTED])


def test_two_ranks_are_frozen_each_by_its_own_word_once_both_have_let_go_of_their_group(
    folder: Path, running: Running
) -> None:
    """And they come back with the losses of a gang that was never disturbed."""
    job, calm = (gangs.plan_of(folder / name, world=2, steps=6) for name in ("job", "calm"))
    gangs.run(job, {2: Away(), 4: Away()}, frozen_rank)
    gangs.run(calm)
    assert gangs.losses(folder / "job") == gangs.losses(folder / "calm")
    there = (folder / "job" / "there").read_text().splitlines()
    assert there == ["False off-1-1-0 off-1-1-1"] * 2 + ["False off-1-2-0 off-1-2-1"] * 2
    assert not list((folder / "job" / "rendezvous" / "control").glob("off-*")), "who is back takes its file away"


def test_a_helper_that_is_gone_refuses_and_one_that_was_never_there_too(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modes, "_told", set())
    with helping(folder, None, "--fake-driver", str(folder / "driver")) as running:
        context = context_of(running, driver)
        context.rehearse()
        assert context.refusal() == ""
        assert "freeze of a training rank = by the helper: tried, and back" in capsys.readouterr().err
        never = CudaContext(
            type(running.helper)(folder / "nowhere"), "job/0", pid=os.getpid(), started=1, warm_up=print, let_go=print
        )
        never.rehearse()
        assert "no helper answers" in never.refusal() and never.occupies
        assert "freeze of a training rank = none: no helper answers" in capsys.readouterr().err
    assert "no helper answers" in context.refusal()


def test_a_helper_without_a_driver_refuses(folder: Path, driver: FakeDriver) -> None:
    with helping(folder, None) as running:
        context = context_of(running, driver)
        context.rehearse()
        assert "no process can be taken off its GPU here" in context.refusal()


def test_a_helper_that_dies_between_is_asked_again_until_it_is_back_or_time_is_over(
    folder: Path, driver: FakeDriver
) -> None:
    write_script(script_of(folder / "driver"), [Rule("checkpoint", Do.DIE, When.AFTER)])
    with helping(folder, None, "--fake-driver", str(folder / "driver")) as running:
        context, began_s = context_of(running, driver, read_back_s=0.5), time.monotonic()
        with pytest.raises(GangBroken, match="nobody can say"):
            context.rehearse()
        assert time.monotonic() - began_s < 30


def test_without_anybody_who_takes_it_off_a_gpu_is_not_left(folder: Path, driver: FakeDriver) -> None:
    gate = ScriptedGate({2: Away()}, lease=LEASE)
    notes: Notes = []
    train(folder / "job", gate, ContextStays(), notes, driver)
    assert [what for what, _ in notes] == ["acquire"]
    assert any("no helper is at hand" in report.park_refused for report in gate.reports)
