"""Ours, as a process: a session that parks in place, one that stops, one that starts again. No Ray, no arbiter.

The lock of the slot is a note of its own, so that *free* is when a real one would be free for the next: when the
session, having dropped its state, lets go of it.
"""

import threading
from pathlib import Path

import torch

from benchmarks.preempt.events import Event, say
from benchmarks.preempt.state import LAST_STEP, STEPS_BEFORE, loss_of, make
from ebbtide.client.messages import DesiredState, JobDirective, Lease, RankPhase, RankReport, SlotRef
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import Preempted
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.settings import SessionSettings

STAYS_S = 0.3  # for which it is parked after all is durable; then it is told in the midst of its own polling


class NotedLock:
    """Of nobody; says when it is let go."""

    def acquire(self, timeout_s: float) -> None:
        """At once."""

    def release(self) -> None:
        """The next one may come."""
        say(Event.FREE)


class ToldGate:
    """Between the session and the loop, which plays the arbiter."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._latest = JobDirective(0, DesiredState.RUN, lease)
        self._parked = False

    def tell(self, want: DesiredState) -> None:
        """From now on this is wanted."""
        epoch = self._lease.epoch + self._latest.number + 1
        lease = Lease(self._lease.workload, epoch, self._lease.slots) if want is DesiredState.RUN else None
        self._latest = JobDirective(self._latest.number + 1, want, lease)

    def directive(self) -> JobDirective:
        """The latest."""
        return self._latest

    def begin(self) -> DesiredState:
        """Nothing is wanted before the first step."""
        return DesiredState.RUN

    def report(self, report: RankReport) -> None:
        """Told on, where it is one of our events."""
        if report.step and report.durable_step >= report.step:
            say(Event.DURABLE)  # only the first one counts
            if report.phase is RankPhase.PARKED and not self._parked:
                self._parked = True
                threading.Timer(STAYS_S, self._ask_back).start()
        if report.phase is RankPhase.RUNNING and report.step and self._parked:
            say(Event.RUNNING)

    def _ask_back(self) -> None:
        say(Event.ASKED)
        self.tell(DesiredState.RUN)


class OneSample:
    """A dataset that says nothing: the state's own step draws its tokens."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


def park(folder: Path, size_bytes: int) -> None:
    """Train, park in place, be spilled, come back, and take one more step."""
    _run(folder, size_bytes, 1, DesiredState.PARK)


def stop(folder: Path, size_bytes: int) -> None:
    """Train, be told to stop, and leave with a portable checkpoint."""
    _run(folder, size_bytes, 1, DesiredState.STOP)


def start_again(folder: Path, size_bytes: int) -> None:
    """Start from the checkpoint that `stop` left, and take one more step."""
    _run(folder, size_bytes, 2, None)


def _run(folder: Path, size_bytes: int, epoch: int, want: DesiredState | None) -> None:
    lease = Lease("bench", epoch, (SlotRef("here", 0),))
    gate = ToldGate(lease)
    settings = SessionSettings(
        job="bench",
        incarnation="bench",
        run_dir=folder / "train" / "bench",
        rank=0,
        world=1,
        lease=lease,
        node="here",
        global_batch=1,
        checkpoint_every_s=1e9,
        device="cpu",
    )
    session = TrainingSession(settings, gate, lock_for=lambda lease, rank: NotedLock())
    try:
        with activate(session):
            _train(session, gate, size_bytes, want)
    except Preempted:
        pass


def _train(session: TrainingSession, gate: ToldGate, size_bytes: int, want: DesiredState | None) -> None:
    model, optimizer = make(size_bytes, empty=want is None)
    words = model.embedding.num_embeddings
    prepared = session.prepare(model, optimizer)
    for step in session.steps(total=LAST_STEP + 2):  # one more than is looked at: the last is followed by a commit
        if want is None:
            say(Event.RUNNING)
        for _ in step.batches(OneSample()):
            loss = loss_of(prepared, step.index, words)
            if want is not None and step.index == STEPS_BEFORE - 1:
                say(Event.DECISION)
                gate.tell(want)
            step.backward(loss)
        if step.index == LAST_STEP:
            say(Event.LOSS, value=float(loss.item()).hex())
            return
        del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step.index == STEPS_BEFORE - 1:
            say(Event.SAFE_POINT)
