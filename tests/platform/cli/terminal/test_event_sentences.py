"""Every kind of event can be told, from its JSON form."""

from typing import Any, get_args

import pytest

from ebbtide.cli.terminal.event_sentences import sentence, short
from ebbtide.pool import events
from ebbtide.pool.ids import JobName, RecordId, SeatId, SlotId
from ebbtide_autoscaler.journal.records import encode_event

KINDS = [cls.__dataclass_fields__["kind"].default for cls in get_args(events.Body)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_sentence_of_its_own(kind: str) -> None:
    body: dict[str, Any] = {
        "kind": kind,
        "job": "j",
        "seat": "e/0",
        "endpoint": "e",
        "node": "n" * 20,
        "slot": {"id": "n:0"} if kind == "slot_found" else "n:0",
        "slots": ["n:0"],
        "reason": "r",
        "why": "w",
        "who": "w",
        "by": "b",
        "step": 1,
        "lost_steps": 1,
        "outcome": "finished",
        "detail": "d",
        "stages_s": [["import", 1.0]],
        "spec": {"name": "s"},
        "replica": "x",
        "preempts": True,
        "incarnation": "i",
    }
    told = sentence(body)
    assert not told.startswith("{"), f"{kind} has no sentence"


def test_an_unknown_or_damaged_body_is_shown_as_it_is() -> None:
    assert sentence({"kind": "of the future"}) == "{'kind': 'of the future'}"
    assert sentence({"kind": "grant_job"}) == "{'kind': 'grant_job'}"


def test_a_real_event_reads_well() -> None:
    event = events.Event(RecordId("1.2"), 0.0, None, events.GrantJob(JobName("j"), (SlotId("abcdefghij:2"),), "free"))
    assert sentence(encode_event(event)["body"]) == "job j is granted abcdefgh:2: free"
    assert short("abcdefghij:2") == "abcdefgh:2"


def test_a_seat_that_is_ready_says_which_way_its_weights_came_and_why_not_a_better_one() -> None:
    ways = (events.Loaded("ebbtide_flat", 1, 17_000_000, 0.1), events.Loaded("vllm", 1, 0, 2.0, "the store hangs"))
    event = events.Event(RecordId("1.2"), 0.0, None, events.SeatReady(SeatId("e/0"), (("process", 3.0),), weights=ways))
    assert sentence(encode_event(event)["body"]) == (
        "seat e/0 is ready (process 3.0 s; weights by ebbtide_flat, 17.0 MB in 0.10 s; "
        "weights by vllm in 2.00 s (the store hangs))"
    )


def test_a_seat_of_an_engine_that_tells_nothing_of_its_start_is_just_ready() -> None:
    known = events.Event(
        RecordId("1.2"), 0.0, None, events.SeatReady(SeatId("e/0"), (), weights=(events.Loaded("own", 2),))
    )
    nothing = events.Event(RecordId("1.2"), 0.0, None, events.SeatReady(SeatId("e/0"), ()))
    assert sentence(encode_event(known)["body"]) == "seat e/0 is ready (weights by own in 0.00 s)"
    assert sentence(encode_event(nothing)["body"]) == "seat e/0 is ready"


def test_a_traceback_in_an_event_is_told_by_its_cause_in_one_line() -> None:
    trace = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: no data\n'
    for body in (
        {"kind": "job_crashed", "job": "j", "lost_steps": 2, "why": trace},
        {"kind": "seat_died", "seat": "e/0", "why": f"its start failed: {trace}"},
        {"kind": "job_ended", "job": "j", "outcome": "failed", "detail": trace},
    ):
        told = sentence(body)
        assert told.endswith("ValueError: no data") and "\n" not in told and "a.py" not in told
