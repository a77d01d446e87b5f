"""What people ask of the arbiter: done when it is journaled, and refused, with the reason, while the ledger hangs."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.client.messages import ControllerOrders, ControllerPhase, ControllerReport
from ebbtide.pool.events import Body, JobEnded, JobForgotten, JobSubmitted, Slot, SlotFound
from ebbtide.pool.ids import JobName, SlotId
from ebbtide_autoscaler.control.loop import Loop
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.service import job_service, operator_service
from tests.autoscaler.closed_loop import a_job
from tests.builders.arbiter import FakeLoop, N, an_arbiter


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    monkeypatch.setattr(operator_service, "TAKE_S", 0.1)
    monkeypatch.setattr(job_service, "REGISTER_S", 0.1)
    return FakeLoop()


def test_a_freeze_is_taken_once_and_ended_once(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    assert arbiter.freeze("counting (me)") == {"changed": True, "frozen": "counting (me)"}
    assert arbiter.freeze("again") == {"changed": False, "frozen": "counting (me)"}
    assert loop.published.state.frozen == "counting (me)"
    assert arbiter.unfreeze() == {"changed": True}
    assert loop.published.state.frozen == ""
    assert arbiter.unfreeze() == {"changed": False}


def test_what_a_person_asked_for_is_in_the_record_of_the_status_before_the_answer(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    for number, (method, arguments) in enumerate(
        [("freeze", ("r",)), ("unfreeze", ()), ("drain_node", (N, "r")), ("undrain_node", (N,))], start=1
    ):
        getattr(arbiter, method)(*arguments)
        assert arbiter._record.written == number, method
    with pytest.raises(ValueError, match="not in the pool"):
        arbiter.drain_node("elsewhere", "r")
    assert arbiter._record.written == 4, "what is refused has changed nothing"


def test_a_node_is_drained_for_a_reason_that_may_be_said_better_and_given_back(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    assert arbiter.drain_node(N, "disk") == {"changed": True}
    assert arbiter.drain_node(N, "disk") == {"changed": False}
    assert arbiter.drain_node(N, "new disk") == {"changed": False}
    assert loop.published.state.draining == {N: "new disk"}
    assert arbiter.undrain_node(N) == {"changed": True}
    assert arbiter.undrain_node(N) == {"changed": False}
    with pytest.raises(ValueError, match="not in the pool"):
        arbiter.drain_node("elsewhere", "r")


@pytest.mark.parametrize(("method", "arguments"), [("freeze", ("r",)), ("drain_node", (N, "r"))])
def test_while_the_ledger_hangs_a_wish_is_withdrawn_and_says_why(
    loop: FakeLoop, method: str, arguments: tuple[str, ...]
) -> None:
    loop.inbox.hangs = True
    with pytest.raises(ValueError, match=r"the ledger has not answered for 7 s.*nothing was changed"):
        getattr(an_arbiter(loop), method)(*arguments)
    assert not loop.inbox.submitted


def test_a_wish_that_is_on_its_way_into_the_ledger_says_that_it_may_still_count(
    loop: FakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.inbox.hangs = True
    monkeypatch.setattr(loop.inbox, "withdraw", lambda body: False)
    with pytest.raises(ValueError, match="if the ledger takes it after all"):
        an_arbiter(loop).freeze("r")


def test_a_job_that_was_lost_is_cancelled_in_the_ledger_before_its_submission_is_forgotten(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    train = JobName("train")
    loop.inbox.submit(JobSubmitted(a_job(), "i1"))
    arbiter.cancel_job("train", "by me")
    assert loop.published.state.jobs[train].cancelled and not loop.forgotten, "it lives: its driver forgets it"
    loop.inbox.submit(JobEnded(train, "finished", ""))
    loop.inbox.submit(JobSubmitted(a_job(), "i2"))
    loop.inbox.submit(JobEnded(train, "lost", "silent"))
    loop.inbox.hangs = True
    with pytest.raises(ValueError, match="nothing was changed"):
        arbiter.cancel_job("train", "by me")
    assert not loop.forgotten
    loop.inbox.hangs = False
    assert arbiter.cancel_job("train", "by me") == {"changed": True}
    assert loop.published.state.jobs[train].outcome == "cancelled: by me (it was lost: silent)"
    assert loop.forgotten == [train]
    assert arbiter.cancel_job("train", "by me") == {"changed": False}


@pytest.mark.proves("a driver that was lost cancels nothing")
def test_a_driver_that_was_lost_cannot_cancel_the_job_that_the_pool_brings_back(loop: FakeLoop) -> None:
    """It was only paused; the pool stops it before it submits the job again."""
    arbiter, train = an_arbiter(loop), JobName("train")
    loop.inbox.submit(JobSubmitted(a_job(), "i1"))
    loop.inbox.submit(JobEnded(train, "lost", "silent"))
    with pytest.raises(ValueError, match="over already"):
        arbiter.cancel_submission("train", "i1", "told to stop")
    assert loop.published.state.jobs[train].outcome == "lost: silent" and loop.forgotten == []
    loop.inbox.submit(JobSubmitted(a_job(), "i2", restored=True))
    with pytest.raises(ValueError, match="over already"):
        arbiter.cancel_submission("train", "i1", "told to stop")
    assert not loop.published.state.jobs[train].cancelled, "it is another driver's by now"
    arbiter.cancel_submission("train", "i2", "told to stop")
    assert loop.published.state.jobs[train].cancelled


def test_a_submission_that_cannot_be_forgotten_is_said_in_the_log_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    class Jobs:
        async def forget(self, job: JobName) -> None:
            asked.append(job)
            raise OSError("stale file handle")

    async def forget() -> None:
        loop: Any = Loop.__new__(Loop)
        loop.thread, loop._jobs = SimpleNamespace(run=asyncio.ensure_future), Jobs()
        loop.forget_submission(JobName("train"))
        while not caplog.records:
            await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(forget(), 10.0))
    assert asked == ["train"]
    assert "job train's submission stays" in caplog.text and "stale file handle" in caplog.text


def said(incarnation: str) -> ControllerReport:
    return ControllerReport("train", incarnation, ControllerPhase.NO_GANG, 0)


@pytest.mark.proves("a job that was answered for is in the ledger")
def test_a_registration_is_answered_when_the_ledger_has_it_and_nothing_is_remembered_of_it(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    assert arbiter.register_job(a_job(), "i1", {}) == ControllerOrders(None, "just submitted")
    assert loop.published.state.jobs[JobName("train")].incarnation == "i1" and arbiter._jobs._submitted == {}
    assert arbiter.report_controller(said("i1")) == ControllerOrders(None, "the job is waiting")
    assert arbiter.report_controller(said("i0")).cancelled


def test_a_submission_is_journaled_with_how_it_would_step_aside_and_asking_changes_nothing(
    loop: FakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    arbiter, taken = an_arbiter(loop), list[Body]()
    assert arbiter.how_aside(a_job()) is None  # nobody was heard yet
    loop.published.seen = Observation(started_s=0.0)
    assert arbiter.how_aside(a_job()) is None  # it has no slot yet
    loop.inbox.submit(SlotFound(Slot(SlotId("n:0"), N, 0)))
    before = loop.published.state
    found = arbiter.how_aside(a_job())
    assert found is not None and found["tier"] == "stop_and_restart" and "left of the budget" in str(found["warning"])
    assert loop.published.state is before and json.dumps(found)
    monkeypatch.setattr(loop.inbox, "submit", taken.append)
    monkeypatch.setattr(job_service, "REGISTER_S", 0.0)
    arbiter.register_job(a_job(), "i1", {})
    assert taken == [JobSubmitted(a_job(), "i1", aside=str(found["words"]))]


def test_while_the_ledger_hangs_a_registered_job_waits_and_is_not_taken_for_a_forgotten_one(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    loop.inbox.hangs = True
    assert arbiter.register_job(a_job(), "i1", {}) == ControllerOrders(None, "just submitted")
    assert arbiter.report_controller(said("i1")) == ControllerOrders(None, "just submitted")


def test_a_job_that_was_forgotten_cannot_be_cancelled_and_a_controller_of_it_hears_that_it_is_over(
    loop: FakeLoop,
) -> None:
    arbiter = an_arbiter(loop)
    arbiter.register_job(a_job(), "i1", {})
    loop.inbox.submit(JobEnded(JobName("train"), "lost", "silent"))
    loop.inbox.submit(JobForgotten(JobName("train")))
    with pytest.raises(ValueError, match="knows no job train"):
        arbiter.cancel_job("train", "by me")
    orders = arbiter.report_controller(said("i1"))
    assert orders.cancelled and orders.kill_gang and "does not know this job any more" in orders.why
    assert loop.inbox.controllers == {}
    arbiter.register_job(a_job(), "i2", {})
    assert loop.published.state.jobs[JobName("train")].incarnation == "i2"
