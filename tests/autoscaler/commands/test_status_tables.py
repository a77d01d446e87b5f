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
    assert all(state in " ".join(lines) for state in ("parked", "ready", "starting"))
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


def row(found: dict[str, Any], first: str) -> dict[str, str]:
    """A line of a pipe by its titles."""
    lines = screen(found, 1_000_000, terminal=False)
    at, cells = next((at, re.split(r" {2,}", line)) for at, line in enumerate(lines) if line.startswith(f"{first} "))
    heads = next(line for line in reversed(lines[:at]) if line.startswith(("endpoint ", "job ")))
    return dict(zip(re.split(r" {2,}", heads), cells, strict=True))


def test_replicas_are_told_by_their_names_which_logs_takes_and_many_by_their_number() -> None:
    few = a_status(seats=(a_seat(0, "ready"), a_seat(1, "cold"), a_seat(2, "ready"), a_seat(3, "starting")))
    assert row(few, CHAT)["replicas"] == f"{CHAT}/0, {CHAT}/2 ready, {CHAT}/3 starting (of 1..3)"
    many = a_status(seats=(*(a_seat(number, "ready") for number in range(12)), a_seat(12, "draining")))
    assert row(many, CHAT)["replicas"] == f"12 ready, {CHAT}/12 draining (of 1..3)"
    assert row(a_status(seats=(a_seat(0, "cold"),)), CHAT)["replicas"] == "none (of 1..3)"


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "told"),
    [
        (0.0, 0.0, ("- (2 s)", "- (50 ms)")),
        (0.0004, 0.0004, ("< 1 ms (2 s)", "< 1 ms (50 ms)")),
        (0.0042, 0.0271, ("4 ms (2 s)", "27 ms (50 ms)")),
        (0.9996, 1.25, ("1 s (2 s)", "1.25 s (50 ms)")),
        (74.6, 3.0, ("74.6 s (2 s)", "3 s (50 ms)")),
    ],
)
def test_a_latency_that_was_not_measured_is_none_and_a_short_one_is_no_zero(
    ttft_s: float, tpot_s: float, told: tuple[str, str]
) -> None:
    found = row(a_status(ttft_p90_s=ttft_s, tpot_p90_s=tpot_s), CHAT)
    assert (found["TTFT p90 (SLO)"], found["TPOT p90 (SLO)"]) == told


def test_a_cache_is_full_by_so_much_only_where_a_replica_has_one() -> None:
    assert row(a_status(seats=(a_seat(0, "draining"),)), CHAT)["KV"] == "40%"
    assert row(a_status(seats=(a_seat(0, "starting"), a_seat(1, "cold"))), CHAT)["KV"] == "-"


def test_the_same_failure_of_two_seats_is_told_once_with_its_age() -> None:
    now_s = time.time()
    two = [a_seat(number, "cold", last_error=TRACE, since_at_s=now_s - 600 * number) for number in (1, 2)]
    why = row(a_status(seats=(*two, a_seat(3, "starting", last_error="no room", since_at_s=now_s))), CHAT)["why"]
    assert why == (
        f"{CHAT}/1 failed 10 min ago, {CHAT}/2 failed 20 min ago: {CAUSE}; {CHAT}/3 failed: no room; "
        f"more: ebbtide logs {CHAT}/1"
    )


def test_how_a_job_ended_and_why_it_waits_stand_under_one_word_that_fits_both() -> None:
    found = a_status(
        a_job("done", "ended", outcome="finished: at step 9 of 9"), a_job("b", "waiting", waits="waits: x")
    )
    assert (row(found, "done")["why"], row(found, "b")["why"]) == ("finished: at step 9 of 9", "waits: x")
    for width in (60, 80):
        assert "why: finished: at step 9 of 9" in " ".join(" ".join(screen(found, width)).split())


@pytest.mark.parametrize(
    ("state", "step", "durable", "told"),
    [
        ("running", 94, 0, "94 (not saved yet)"),
        ("running", 94, 90, "94 (90)"),
        ("starting", 0, 0, "0 (0)"),
        ("ended", 94, 0, "94 (not saved)"),
    ],
)
def test_a_job_that_has_not_saved_yet_says_so(state: str, step: int, durable: int, told: str) -> None:
    found = a_status(a_job("a", state, step=step, durable_step=durable))
    assert row(found, "a")["step (saved)"] == told


def test_a_job_that_crashed_and_trained_since_does_not_fail_any_more() -> None:
    crashed = a_job("a", "parked", last_error=TRACE, waits="parked: by me")
    assert "ValueError" not in row(a_status(crashed | {"failing": False}), "a")["why"]
    assert row(a_status(crashed | {"failing": True}), "a")["why"].startswith(f"parked: by me; failed: {CAUSE}")
    again = a_job("a", "waiting", failing=True, last_error=f"{'x' * 300} and more", waits=f"crashed: {'x' * 200}")
    assert row(a_status(again), "a")["why"] == f"crashed: {'x' * 200}; more: ebbtide logs a"
