"""The tables of ``ebbtide status`` on narrow terminals, in a pipe, and what they leave out."""

import re
import time
from io import StringIO
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ebbtide_autoscaler.commands.status_tables import ENDED_SHOWN_S, render

NODE = "0123456789abcdef" * 3
CHAT = "an-endpoint-with-a-very-long-name-from-the-marketing"
NIGHT = "a-training-job-with-a-very-long-name-of-the-night-shift-2026"
TRACE = (
    "Traceback (most recent call last):\n"
    + '  File "/a/b.py", line 1, in load\n' * 40
    + "ValueError: model.safetensors holds no weight lm_head, of 291 that the architecture needs\n"
)
CAUSE = "ValueError: model.safetensors holds no weight lm_head, of 291 that the architecture needs"


def a_job(name: str, state: str, **more: Any) -> dict[str, Any]:
    blank = {
        "job": name,
        "state": state,
        "slots": [f"{NODE}:0"],
        "workers_min": 1,
        "workers_max": 4,
        "step": 1200,
        "durable_step": 1100,
        "parks": 3,
        "restarts": 1,
        "crashes": 0,
        "since_at_s": time.time() - 75,
        "waits": None,
        "outcome": None,
        "last_error": None,
    }
    return blank | more


def a_seat(number: int, state: str, **more: Any) -> dict[str, Any]:
    return {"seat": f"{CHAT}/{number}", "state": state, "waits": None, "last_error": None} | more


def a_status(*jobs: dict[str, Any], seats: tuple[dict[str, Any], ...] = (), **of_endpoint: Any) -> dict[str, Any]:
    endpoint = {
        "endpoint": CHAT,
        "replicas_min": 1,
        "replicas_max": 3,
        "held": 12,
        "inflight": 3,
        "ttft_p90_s": 1.25,
        "ttft_slo_s": 2.0,
        "tpot_p90_s": 0.03,
        "tpot_slo_s": 0.05,
        "kv_usage": 0.4,
        "waits": None,
        "seats": list(seats or [a_seat(0, "ready"), a_seat(1, "starting")]),
    }
    slot = {
        "slot": f"{NODE}:0",
        "node": NODE,
        "index": 0,
        "state": "leased",
        "occupant": f"{CHAT}/0",
        "parked": [NIGHT, f"{NIGHT}-b"],
        "since_at_s": time.time() - 3,
        "foreign": None,
    }
    return {
        "pool": "p",
        "gateway": "http://127.0.0.1:8000",
        "arbiter": {"epoch": 3, "frozen": "", "frozen_by": ""},
        "slots": [slot],
        "endpoints": [endpoint | of_endpoint],
        "jobs": list(jobs),
    }


def screen(found: dict[str, Any], width: int, *, terminal: bool = True, everything: bool = False) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False)
    console.print(render(found, everything=everything))
    return out.getvalue().splitlines()


def letters(lines: list[str]) -> str:
    return re.sub(r"\s", "", "".join(lines))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_state_and_cause_are_readable_at_any_width(width: int) -> None:
    failed = a_seat(1, "starting", last_error=TRACE, waits=f"its start failed: {TRACE}")
    found = a_status(
        a_job(NIGHT, "parked", waits="waits for 2 slots: chat/0 holds 1, chat/1 holds 1, and the pool has no other"),
        a_job("crashed", "waiting", waits="is tried again in 8 s", last_error=TRACE, crashes=2),
        seats=(a_seat(0, "ready"), failed),
    )
    lines = screen(found, width)
    assert max(map(cell_len, lines)) <= width and all(line == line.rstrip() for line in lines)
    told = letters(lines)
    for said in (
        "waits for 2 slots: chat/0 holds 1, chat/1 holds 1, and the pool has no other",
        f"its start failed: {CAUSE}",
        f"failed: {CAUSE}",
        f"more: ebbtide logs {CHAT}/1",
        "more: ebbtide logs crashed",
    ):
        assert re.sub(r"\s", "", said) in told, said
    assert "parked" in " ".join(lines) and "0:ready" in " ".join(lines) and "1:starting" in " ".join(lines)
    assert "Traceback" not in told and "b.py" not in told
    assert len(lines) < 50, "a traceback of 42 lines takes one"


def test_a_pipe_has_one_line_for_each_thing_neither_cut_nor_padded() -> None:
    found = a_status(a_job(NIGHT, "ended", outcome=f"failed: {TRACE}", last_error=TRACE), a_job("b", "running"))
    lines = screen(found, 1_000_000, terminal=False)
    (night,) = [line for line in lines if line.startswith(NIGHT)]
    assert f"failed: {CAUSE}; more: ebbtide logs {NIGHT}" in night
    (slot,) = [line for line in lines if line.startswith("01234567:0")]
    assert f"{NIGHT}, {NIGHT}-b" in slot
    assert all(line == line.rstrip() for line in lines) and len(max(lines, key=len)) < 400
    heads = next(line for line in lines if line.startswith("job "))
    counts = {len(re.split(r" {2,}", line)) for line in (heads, night)}
    assert counts == {7}, "awk finds the columns"


def test_a_job_that_ended_leaves_the_table_after_ten_minutes_and_all_shows_it() -> None:
    old = a_job("old", "ended", outcome="finished: well", since_at_s=time.time() - ENDED_SHOWN_S - 1)
    new = a_job("new", "ended", outcome="finished: well", since_at_s=time.time() - ENDED_SHOWN_S + 60)
    waits = a_job("waits", "waiting", since_at_s=time.time() - 10 * ENDED_SHOWN_S)
    unsaid = a_job("unsaid", "ended", since_at_s=0.0)
    told = "\n".join(screen(a_status(old, new, waits, unsaid), 80))
    assert "\nold" not in told and all(f"\n{name}" in told for name in ("new", "waits", "unsaid"))
    assert "1 more that ended over ten minutes ago: ebbtide status --all" in told
    everything = "\n".join(screen(a_status(old, new), 80, everything=True))
    assert "\nold" in everything and "--all" not in everything


def test_an_error_that_is_over_is_not_shown_as_if_it_were_so_now() -> None:
    again = a_status(a_job("a", "running", last_error=TRACE), seats=(a_seat(0, "ready", last_error=TRACE),))
    assert "ValueError" not in "\n".join(screen(again, 120))
    done = a_status(a_job("a", "ended", outcome="finished: 10 steps", last_error=TRACE))
    assert "ValueError" not in "\n".join(screen(done, 120))


def test_a_standstill_is_told_by_its_first_line() -> None:
    found = a_status() | {
        "arbiter": {"epoch": 3, "frozen": f"a tick failed: {TRACE}", "frozen_by": "promise", "frozen_since_at_s": 9.0},
        "notices": [{"about": "gateway", "name": "", "since_at_s": 0.0, "why": f"it failed\n{TRACE}"}],
    }
    told = " ".join(" ".join(screen(found, 60)).split())
    assert f"a tick failed: {CAUSE}" in told and f"gateway: it failed: {CAUSE}" in told and "b.py" not in told
