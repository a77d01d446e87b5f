"""The session's promises one by one: refusals, leaving, fencing, locks, memory."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import ebbtide_train
from ebbtide.client.messages import DesiredState, JobDirective, Lease, RankPhase, RankReport, SlotRef
from ebbtide.system.process_memory import anonymous_bytes
from ebbtide_train.session.checkpoints.checkpoint_ref import durable_step
from ebbtide_train.session.coordination.directives import Directives
from ebbtide_train.session.coordination.gate import Away, Gate, ScriptedGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import (
    Cancelled,
    CheckpointMismatch,
    Preempted,
    SessionMisuse,
)
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.step_log import step_lines
from ebbtide_train.verification.step_log_comparison import compare
from tests.train_jobs import gangs, tiny

pytestmark = pytest.mark.timeout(150)
LEASE = Lease("job", 7, (SlotRef("here", 0),))
NEXT_LEASE = replace(LEASE, epoch=8)  # every start of a gang has a higher one


def settings_of(run_dir: Path, **more: object) -> SessionSettings:
    """One rank, epoch 7."""
    plan = gangs.plan_of(run_dir, world=1, epoch=7)
    return replace(plan.settings(0), **more)  # type: ignore[arg-type]


def run_here(
    run_dir: Path, wants: Mapping[int, DesiredState | Away], gate: ScriptedGate | None = None, **more: object
) -> ScriptedGate:
    """Train the tiny job in this process; its global switches are put back."""
    gate = gate or ScriptedGate(wants, lease=LEASE)
    try:
        with activate(TrainingSession(settings_of(run_dir), gate)):
            tiny.train({"steps": 6, **more})
    finally:
        torch.use_deterministic_algorithms(False)
    return gate


@pytest.mark.proves("a gang that is told to stop commits before it leaves")
def test_cancelling_commits_and_says_so(tmp_path: Path) -> None:
    gate = ScriptedGate({3: DesiredState.CANCEL}, lease=LEASE)
    with pytest.raises(Cancelled):
        run_here(tmp_path, {}, gate)
    assert (gate.reports[-1].phase, gate.reports[-1].durable_step) == (RankPhase.STOPPED, 3)
    assert durable_step(tmp_path) == 3


@pytest.mark.proves("a gang goes on with the step after the one that it restored")
@pytest.mark.parametrize("then", [DesiredState.STOP, DesiredState.CANCEL])
def test_a_parked_job_leaves_with_its_spill_committed(tmp_path: Path, then: DesiredState) -> None:
    gate = ScriptedGate({2: Away(then=then)}, lease=LEASE)
    with pytest.raises(Preempted if then is DesiredState.STOP else Cancelled):
        run_here(tmp_path, {}, gate)
    assert (gate.reports[-1].phase, gate.reports[-1].durable_step) == (RankPhase.STOPPED, 2)
    run_here(tmp_path, {})
    assert sorted(line.step for line in step_lines(tmp_path)) == list(range(6))


@pytest.mark.proves("a preemption that the author swallowed is raised again")
def test_a_swallowed_preemption_is_raised_again(tmp_path: Path) -> None:
    gate = ScriptedGate({1: DesiredState.STOP}, lease=LEASE)
    with pytest.raises(Preempted), activate(TrainingSession(settings_of(tmp_path), gate)):
        try:
            tiny.train({"steps": 6})
        except Exception:  # noqa: BLE001 - what a careless author may write
            logging.info("swallowed")
    torch.use_deterministic_algorithms(False)
    assert gate.reports[-1].phase is RankPhase.STOPPED


def test_a_gradient_left_behind_refuses_the_park_and_training_goes_on(tmp_path: Path) -> None:
    gangs.run(gangs.plan_of(tmp_path / "calm", world=2, steps=5, keep_grads=True))
    plan = gangs.plan_of(tmp_path / "job", world=2, steps=5, keep_grads=True)
    gangs.run(plan, {2: Away()})
    refusals = [line for line in gangs.reports(plan) if "zero_grad(set_to_none=True)" in line]
    assert refusals and all(line.startswith("running") and "directive=1" in line for line in refusals[:1])
    assert not any(line.startswith("parked") for line in gangs.reports(plan))
    assert compare(step_lines(tmp_path / "job"), step_lines(tmp_path / "calm")).losses_identical


class OneRankRefuses:
    """A registered object that only rank 1 cannot evict."""

    def __init__(self, rank: int) -> None:
        self.tensor = torch.zeros(4)
        if rank == 1:
            self.tensor.share_memory_()  # type: ignore[no-untyped-call]

    def state_dict(self) -> dict[str, object]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Nothing to take."""


def train_with_extra(args: Mapping[str, object]) -> None:
    """The tiny job with one more registered object."""
    session = ebbtide_train.current_session()
    plain, optimizer, scheduler, dataset, loss_of = tiny.build(args)
    model = session.prepare(plain, optimizer, scheduler, odd=OneRankRefuses(session.rank))
    for step in session.steps(total=4):
        for batch in step.batches(dataset):
            step.backward(loss_of(model(batch.x), batch.y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)


@pytest.mark.proves("if one rank cannot park none does")
def test_if_one_rank_cannot_park_none_does(tmp_path: Path) -> None:
    plan = gangs.plan_of(tmp_path, world=2, train="tests.train_jobs.session.test_session:train_with_extra")
    gangs.run(plan, {2: Away()})
    for rank in (0, 1):
        text = "\n".join(gangs.reports(plan, rank))
        assert "refused=rank 1: odd.tensor lies in shared memory" in text
        assert "parked" not in text


class BigState(nn.Module):
    """48 MiB of parameters, so 144 MiB with AdamW's moments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.full((1 << 20,), 0.5)) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = sum((layer[:8].sum() for layer in self.layers), x.float().mean())
        return total


def train_big(args: Mapping[str, object]) -> None:
    session = ebbtide_train.current_session()
    plain = BigState()
    optimizer = torch.optim.AdamW(plain.parameters(), foreach=False)
    model = session.prepare(plain, optimizer)
    for step in session.steps(total=4):
        for batch in step.batches(tiny.Numbers()):
            step.backward(model(batch.x))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        (session.settings.run_dir / f"rss-{session.rank}").write_text(str(anonymous_bytes()))


def stay(report: RankReport) -> bool:
    return False


def test_parking_lowers_each_workers_anonymous_memory_by_its_state(tmp_path: Path) -> None:
    plan = gangs.plan_of(tmp_path, world=2, train="tests.train_jobs.session.test_session:train_big")
    ranks = gangs.start(plan, {2: Away(until=stay)})
    tracked = 3 * 12 * 4 << 20
    try:
        for rank, process in enumerate(ranks):
            gangs.wait_until(lambda rank=rank: "parked" in "".join(gangs.reports(plan, rank)), what="the park")  # type: ignore[misc]
            before = int((tmp_path / f"rss-{rank}").read_text())
            assert before - anonymous_bytes(process.pid) > 0.9 * tracked
    finally:
        gangs.kill(ranks)


class NotedLock:
    """Notes what happens to the slot lock, and how much the tracked state holds then."""

    events: ClassVar[list[str]] = []

    def __init__(self, lease: Lease, rank: int) -> None:
        self.epoch = lease.epoch

    def acquire(self, timeout_s: float) -> None:
        NotedLock.events.append(f"acquired {self.epoch}")

    def release(self) -> None:
        held = sum(tensor.untyped_storage().nbytes() for tensor in NotedLock.watched.parameters())
        NotedLock.events.append(f"released {self.epoch} holding {held}")

    watched: nn.Module


def test_the_slot_lock_spans_every_moment_with_memory_on_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_build = tiny.build

    def build(args: Mapping[str, object]) -> object:
        parts = plain_build(args)
        NotedLock.watched = parts[0]
        NotedLock.events.append("model made")
        return parts

    monkeypatch.setattr(tiny, "build", build)
    NotedLock.events = []
    gate = ScriptedGate({2: Away(), 4: DesiredState.STOP}, lease=LEASE)
    with pytest.raises(Preempted), activate(TrainingSession(settings_of(tmp_path), gate, lock_for=NotedLock)):
        tiny.train({"steps": 6})
    torch.use_deterministic_algorithms(False)
    assert NotedLock.events == [
        "acquired 7",
        "model made",
        "released 7 holding 0",
        "acquired 8",
        "released 8 holding 0",
    ]


class FixedGate:
    """Says one thing."""

    def __init__(self, directive: JobDirective | None) -> None:
        self.said = directive

    def directive(self) -> JobDirective | None:
        return self.said

    def report(self, report: RankReport) -> None:
        """Nobody listens."""

    def begin(self) -> DesiredState:
        return DesiredState.RUN


@pytest.mark.proves(
    "an order of an earlier lease is refused",
    "an order that was carried out is not carried out again",
    "an order to run without a lease is refused",
)
def test_stale_orders_are_refused() -> None:
    orders = Directives(lease_epoch=7)
    old = Lease("job", 6, ())
    new = Lease("job", 8, ())
    orders.carried_out(3, 7)

    def pending(number: int, want: DesiredState, lease: Lease | None) -> bool:
        gate: Gate = FixedGate(JobDirective(number, want, lease))
        return orders.pending(gate) is not None

    assert not pending(4, DesiredState.RUN, old), "a lease lower than one seen"
    assert not pending(4, DesiredState.PARK, old)
    assert not pending(4, DesiredState.RUN, None), "RUN needs a lease"
    assert not pending(3, DesiredState.PARK, None), "carried out already"
    assert not pending(2, DesiredState.STOP, new)
    assert pending(4, DesiredState.PARK, None)
    assert pending(4, DesiredState.RUN, new)
    orders.carried_out(1, 2)
    assert (orders.done, orders.epoch) == (3, 7)


@pytest.mark.parametrize("heard", ["before the gradients", "after the gradients"])
def test_the_ranks_begin_to_agree_when_they_have_the_gradients(tmp_path: Path, heard: str) -> None:
    gate = FixedGate(None)
    settings = settings_of(tmp_path)
    finished = []
    with pytest.raises(Preempted), activate(TrainingSession(settings, gate)) as session:
        plain, optimizer, _, dataset, loss_of = tiny.build({})
        model = session.prepare(plain, optimizer)
        for step in session.steps(total=6):
            for batch in step.batches(dataset):
                if (step.index, heard) == (2, "before the gradients"):
                    gate.said = JobDirective(1, DesiredState.STOP, None)
                step.backward(loss_of(model(batch.x), batch.y))
            if (step.index, heard) == (2, "after the gradients"):
                gate.said = JobDirective(1, DesiredState.STOP, None)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            finished.append(step.index + 1)
    torch.use_deterministic_algorithms(False)
    assert finished[-1] == (3 if heard == "before the gradients" else 4), "no step ends with an exchange of its own"


@pytest.mark.proves("the global batch of a job does not change", "the seed of a job does not change")
@pytest.mark.parametrize(
    ("change", "message"), [({"seed": 1}, "seed is 1"), ({"global_batch": 9}, "global_batch is 9")]
)
def test_a_changed_data_order_is_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    with pytest.raises(Preempted):
        run_here(tmp_path, {2: DesiredState.STOP})
    gate = ScriptedGate({}, lease=LEASE)
    with (
        pytest.raises(CheckpointMismatch, match=f"{message}.*--fresh.*another name"),
        activate(TrainingSession(settings_of(tmp_path, lease=NEXT_LEASE, **change), gate)),
    ):
        tiny.train({"steps": 6})
    torch.use_deterministic_algorithms(False)


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        run_here(tmp_path, {2: DesiredState.STOP})
    with (
        pytest.raises(CheckpointMismatch, match=r"does not fit.*--fresh.*another name"),
        activate(TrainingSession(settings_of(tmp_path, lease=NEXT_LEASE), ScriptedGate({}, lease=NEXT_LEASE))),
    ):
        tiny.train({"steps": 6, "width": 16})
    torch.use_deterministic_algorithms(False)


def test_wrong_use_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SessionMisuse, match="no session"):
        ebbtide_train.current_session()
    gate = ScriptedGate({}, lease=LEASE)
    with (
        pytest.raises(SessionMisuse, match=r"call session\.prepare"),
        activate(TrainingSession(settings_of(tmp_path), gate)) as session,
    ):
        next(session.steps(total=1))
    torch.use_deterministic_algorithms(False)
    with pytest.raises(ValueError, match="smaller than the number of workers"):
        gangs.plan_of(tmp_path, world=3, global_batch=2).settings(0)


def test_a_batch_without_backward_is_refused(tmp_path: Path) -> None:
    gate = ScriptedGate({}, lease=LEASE)
    with (
        pytest.raises(SessionMisuse, match=r"no step\.backward"),
        activate(TrainingSession(settings_of(tmp_path), gate)) as session,
    ):
        plain, optimizer, _, dataset, _ = tiny.build({})
        session.prepare(plain, optimizer)
        for step in session.steps(total=1):
            for _ in step.batches(dataset):
                pass
    torch.use_deterministic_algorithms(False)


def test_periodic_checkpoints_are_written_while_training(tmp_path: Path) -> None:
    steps = 200  # they take milliseconds, and a checkpoint is written beside them
    plan = gangs.plan_of(tmp_path, world=2, steps=steps, options={"checkpoint_every_s": 0.0})
    gangs.run(plan)
    durable = [int(line.split("durable=")[1].split()[0]) for line in gangs.reports(plan)]
    assert 0 in durable and steps in durable and len(set(durable)) >= 3 and durable == sorted(durable)
    assert f"durable={steps}" in gangs.reports(plan, 1)[-1], "the other ranks know too"
    assert durable_step(tmp_path) == steps


def test_nothing_is_left_running(tmp_path: Path) -> None:
    before = threading.active_count()
    run_here(tmp_path, {2: Away()})
    assert threading.active_count() == before


@pytest.mark.parametrize(("asked", "says"), [(False, "never asked for its session"), (True, "without its steps")])
def test_a_train_function_that_returns_untrained_is_told_the_lines_that_it_needs(
    tmp_path: Path, asked: bool, says: str
) -> None:
    lease = Lease("job", 1, (SlotRef("node", 0),))
    settings = SessionSettings(
        job="job", incarnation="i", run_dir=tmp_path, rank=0, world=1, lease=lease, node="node", global_batch=1
    )
    session = TrainingSession(settings, ScriptedGate({}, lease=lease))
    if asked:
        session.asked_for()
    with pytest.raises(SessionMisuse, match=rf"{says}.*current_session\(\).*prepare\(.*steps\(total=N\)"):
        session.must_have_trained()
