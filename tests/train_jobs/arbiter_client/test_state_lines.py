"""A job's state as a line."""

from typing import Any

import pytest

from ebbtide_train.arbiter_client.state_lines import aside_lines, describe, is_news


def view(state: str, waits: str | None = None, slots: int = 0, **more: Any) -> dict[str, Any]:
    return {"state": state, "waits": waits, "slots": ["n:0"] * slots, "durable_step": 12, **more}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (view("running", slots=1), "running on 1 slot"),
        (view("running", slots=2, commit_error=None), "running on 2 slots"),
        (
            view("running", slots=2, commit_error="cannot commit step 40: No space left on device"),
            "running on 2 slots; its checkpoints fail, a crash now would take it back to step 12: "
            "cannot commit step 40: No space left on device",
        ),
        (
            view("parked", "for endpoint tiny", commit_error="read-only"),
            "parked: for endpoint tiny; its checkpoints fail, a crash now would take it back to step 12: read-only",
        ),
        (view("waiting"), "waits: for the next decision"),
        (view("ended", outcome="failed: boom"), "ended: failed: boom"),
        (
            view("recovering", last_error="rank 1: OSError: no host (a.py:3)\n-- rank 1 --"),
            "recovering: rank 1: OSError: no host (a.py:3)",
        ),
        (view("recovering", "held by ann", last_error="x"), "recovering: held by ann; it crashed: x"),
        (view("recovering"), "recovering: its gang is cleared away"),
        (view("stopping", "for job b"), "stopping: for job b"),
    ],
)
def test_one_line_says_where_a_job_stands(given: dict[str, Any], line: str) -> None:
    assert describe(given) == line


def test_how_a_job_will_step_aside_is_one_line_and_a_warning_where_it_cannot_park() -> None:
    assert aside_lines("lm", None) == []  # no node yet, or nobody answers
    found = {"words": "park in place: 1 GB go", "warning": ""}
    assert aside_lines("lm", found) == ["job lm: when others need its slots: park in place: 1 GB go"]
    (_, warning) = aside_lines("lm", {"words": "kill at the deadline", "warning": "it cannot park, it loses work"})
    assert warning == "job lm: warning: it cannot park, it loses work"


@pytest.mark.parametrize(
    ("line", "said", "news"),
    [
        ("waits: next try in 3 s", "waits: next try in 12 s", False),
        ("waits: next try in 0.5 s; x", "waits: next try in 2 min; x", False),
        ("running on 2 slots", "running on 1 slot", True),
        ("waits: needs 2 slots, 1 free", "waits: needs 2 slots, 0 free", True),
        ("recovering: x at step 3", "recovering: x at step 30", True),
        ("anything", "", True),
    ],
)
def test_that_time_goes_by_is_no_news(line: str, said: str, news: bool) -> None:
    assert is_news(line, said) is news
