"""What the arbiter makes of `park` and `resume`: done when journaled, else refused with nothing changed."""

import pytest

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.events import (
    Body,
    CancelJob,
    EndpointDeclared,
    GrantSeat,
    JobEnded,
    JobForgotten,
    JobHeld,
    JobSubmitted,
    Slot,
    SlotFound,
    SlotFreed,
)
from ebbtide.pool.ids import JobName, NodeId, SeatId, SlotId
from ebbtide_autoscaler.service import operator_service
from tests.autoscaler.closed_loop import a_job, an_endpoint
from tests.builders.arbiter import FakeLoop, an_arbiter

TRAIN = JobName("train")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    monkeypatch.setattr(operator_service, "TAKE_S", 0.1)
    found = FakeLoop()
    node, slot = NodeId("n"), SlotId("n:0")
    for body in (EndpointDeclared(an_endpoint()), SlotFound(Slot(slot, node, 0)), SlotFreed(slot)):
        found.inbox.submit(body)
    found.inbox.submit(GrantSeat(SeatId("chat/0"), (slot,), "r"))
    found.inbox.submit(JobSubmitted(a_job(), "i1"))
    return found


def test_a_job_is_held_once_and_released_once_and_each_says_how_it_stands(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    ann = {"by": "ann", "reason": "data", "since_at_s": 5.0, "off_node": False}
    assert arbiter.park_job("train", "data", "ann") == {"changed": True, "held": ann}
    assert arbiter.park_job("train", "mine", "bob") == {"changed": False, "held": ann}, "the first one's word stands"
    off = ann | {"off_node": True}
    assert arbiter.park_job("train", "mine", "bob", True) == {"changed": True, "held": off}, "more is asked for"
    assert arbiter.park_job("train", "mine", "bob") == {"changed": False, "held": off}, "and that holds all the same"
    assert arbiter.resume_job("train", "bob") == {"changed": True, "held": None}
    assert arbiter.resume_job("train", "bob") == {"changed": False, "held": None}


@pytest.mark.parametrize("method", ["park_job", "resume_job"])
@pytest.mark.parametrize(
    ("name", "before", "why"),
    [
        ("trian", (), "the pool knows no job trian; did you mean 'train'"),
        ("chat", (), "chat is an endpoint, no job"),
        ("chat/0", (), "chat/0 is a replica, no job"),
        (
            "train",
            (JobEnded(TRAIN, "failed", "oom\nTraceback"),),
            r"job train is over \(failed: oom\): there is nothing",
        ),
        ("train", (JobEnded(TRAIN, "lost", "silent"),), "job train was lost: silent; if the pool brings it back"),
        ("train", (CancelJob(TRAIN, "r"),), "job train is being cancelled"),
    ],
)
@pytest.mark.proves("what is no living job is refused")
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_changed(
    loop: FakeLoop, method: str, name: str, before: tuple[Body, ...], why: str
) -> None:
    for body in before:
        loop.inbox.submit(body)
    state = loop.published.state
    arguments = ("r", "ann") if method == "park_job" else ("ann",)
    with pytest.raises(ValueError, match=why) as error:
        getattr(an_arbiter(loop), method)(name, *arguments)
    assert loop.published.state is state and "\n" not in str(error.value)


@pytest.mark.proves("a pool that only observes takes no hold")
def test_a_pool_that_only_observes_holds_and_releases_nothing(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    loop.file.mode = PoolMode.OBSERVE
    with pytest.raises(ValueError, match="only observes and moves no job"):
        arbiter.park_job("train", "r", "ann")
    loop.inbox.submit(JobHeld(TRAIN, "ann", "r"))
    assert not arbiter.park_job("train", "r", "bob")["changed"]
    with pytest.raises(ValueError, match="only observes and moves no job"):
        arbiter.resume_job("train", "ann")
    assert loop.published.state.jobs[TRAIN].held


def test_a_held_job_that_was_lost_may_be_released_before_it_is_back(loop: FakeLoop) -> None:
    loop.inbox.submit(JobHeld(TRAIN, "ann", "r"))
    loop.inbox.submit(JobEnded(TRAIN, "lost", "silent"))
    assert an_arbiter(loop).resume_job("train", "ann")["changed"]


def test_while_the_ledger_hangs_a_hold_is_withdrawn_and_says_why(loop: FakeLoop) -> None:
    loop.inbox.hangs = True
    with pytest.raises(ValueError, match=r"the ledger has not answered for 7 s.*nothing was changed"):
        an_arbiter(loop).park_job("train", "r", "ann")
    assert not loop.inbox.submitted


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ((JobEnded(TRAIN, "finished", ""),), "is over"),
        ((JobEnded(TRAIN, "failed", ""), JobForgotten(TRAIN)), "knows no"),
    ],
)
@pytest.mark.proves("a job that ends while it is asked for is told of at once")
def test_a_job_that_ends_while_it_is_asked_for_is_told_of_at_once(
    loop: FakeLoop, monkeypatch: pytest.MonkeyPatch, end: tuple[Body, ...], why: str
) -> None:
    """And not as an arbiter that is busy."""
    real = loop.inbox.submit

    def ends_first(body: Body) -> None:
        for one in (*end, body):
            real(one)

    monkeypatch.setattr(loop.inbox, "submit", ends_first)
    with pytest.raises(ValueError, match=why):
        an_arbiter(loop).park_job("train", "r", "ann")
    monkeypatch.setattr(loop.inbox, "submit", real)
    real(JobSubmitted(a_job(), "i2"))
    an_arbiter(loop).park_job("train", "r", "ann")
    monkeypatch.setattr(loop.inbox, "submit", ends_first)
    assert an_arbiter(loop).resume_job("train", "ann")["held"] is None, "it is over, so nobody holds it"


def test_that_the_pool_goes_down_is_said_twice_without_harm_and_taken_back(loop: FakeLoop) -> None:
    arbiter = an_arbiter(loop)
    assert arbiter.reopen_pool() == {"changed": False}
    assert arbiter.close_pool("ann", 15.0) == {"changed": True}
    assert arbiter.close_pool("ann", 15.0) == {"changed": False}
    assert loop.inbox.closes() == "the pool is being taken down by ann"
    assert arbiter.reopen_pool() == {"changed": True} and loop.inbox.closes() == ""


def test_it_is_in_no_ledger_so_that_one_that_hangs_keeps_no_person_from_saying_it(loop: FakeLoop) -> None:
    loop.inbox.hangs, before = True, loop.published.state
    assert an_arbiter(loop).close_pool("ann", 15.0) == {"changed": True}
    assert loop.published.state is before and not loop.inbox.submitted
