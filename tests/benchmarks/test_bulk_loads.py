"""What the loads part starts, what it takes for a measurement, and what becomes of starts that fail."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bulk.engine_loads import (
    RESTORED,
    ROUNDS,
    TP2,
    TP2_ROUNDS,
    WAYS,
    WITHOUT,
    Step,
    measured_of,
    plan,
    run,
    wrong,
)
from benchmarks.bulk.engine_start import disk_bytes_by_rank
from benchmarks.bulk.starts import Started, StartFailed, Wanted, last_useful_line, published, started
from benchmarks.progress import Progress, minutes
from ebbtide.agent.slot_locks.slot_lock import SlotLock
from ebbtide.client.messages import SlotRef

WHOLE = 2_000_000_000


def fake(wanted: Wanted) -> Started:
    """As a sound engine starts; restored caches halve it and some. vLLM's own loader does not tell what it reads."""
    way = WAYS[wanted.weights]
    share = {"vllm": 0, "ebbtide": WHOLE, "ebbtide_flat": WHOLE // wanted.ranks}[way]
    seconds = (20.0 if wanted.cold else 16.0) + (30.0 if wanted.compiled and not wanted.caches else 0.0)
    found = Started(
        seconds,
        1.0,
        {"weights": 1.0},
        700 if wanted.caches else 0,
        (share,) * wanted.ranks,
        (way,) * wanted.ranks,
        tuple((WHOLE + rank if wanted.cold else 0) for rank in range(wanted.ranks)),
    )
    return replace(found, restored_bytes=0) if wanted.settle else found


def test_what_is_compared_is_interleaved_with_the_same_page_cache_on_both_sides() -> None:
    for state, cold in (("cold", True), ("warm", False)):
        steps = [step for step in plan(ROUNDS) if step.case == f"compiled start, {state}"]
        assert [step.round for step in steps] == [1, 1, 2, 2, 3, 3]
        assert [step.name for step in steps] == [WITHOUT, RESTORED, RESTORED, WITHOUT, WITHOUT, RESTORED]
        assert {step.wanted.cold for step in steps} == {cold}
        assert all(step.wanted.compiled and step.wanted.caches == (step.name == RESTORED) for step in steps)
        assert all(step.wanted.args.get("enforce_eager") is None for step in steps)
    assert sum(not step.case for step in plan(ROUNDS)) == 4
    assert not any(step.wanted.settle for step in plan(ROUNDS) if step.round)


def test_all_sound_starts_give_both_bars() -> None:
    found = measured_of(run(plan(ROUNDS), fake))
    assert [(bar.bar, bar.value, bar.met) for bar in found.bars] == [
        ("tp2_bytes_per_rank", 0.5, True),
        ("artefact_restart", 2.5, True),
    ]
    assert not found.gaps
    rows = {(one.case, one.metric): one for one in found.rows}
    assert rows["engine start, cold", "first token, flat"].n == ROUNDS
    assert rows["bytes read", "checkpoint, TP=2, rank 1"].median == WHOLE
    halves = rows["bytes read", "flat, TP=2, rank 1"]
    assert (halves.median, halves.n) == (WHOLE / 2, 2 * TP2_ROUNDS)


def test_every_way_has_rows_with_two_ranks_cold_and_warm_and_what_the_disk_read_for_it() -> None:
    rows = {(one.case, one.metric): one for one in measured_of(run(plan(ROUNDS), fake)).rows}
    for way in WAYS:
        for state in ("cold", "warm"):
            assert rows[f"{TP2}, {state}", f"first token, {way}"].n == TP2_ROUNDS
            assert rows[f"engine start, {state}", f"first token, {way}"].n == ROUNDS
        assert rows[f"{TP2}, cold", f"from the disk, {way}, rank 1"].median == WHOLE + 1
        assert rows[f"{TP2}, warm", f"from the disk, {way}, rank 1"].median == 0
    assert not any(case == "bytes read" and metric.startswith("engine") for case, metric in rows), "it does not tell"


def test_one_rank_that_reads_more_is_what_counts() -> None:
    def one_reads_all(wanted: Wanted) -> Started:
        found = fake(wanted)
        late = wanted.ranks == 2 and wanted.weights == "flat" and not wanted.cold
        return replace(found, bytes_by_rank=(WHOLE // 2, WHOLE)) if late else found

    bar, _ = measured_of(run(plan(1), one_reads_all)).bars
    assert (bar.value, bar.met) == (1.0, False)


def test_the_worse_of_cold_and_warm_is_the_bar() -> None:
    def slow_when_warm(wanted: Wanted) -> Started:
        found = fake(wanted)
        return replace(found, seconds=40.0) if wanted.compiled and wanted.caches and not wanted.cold else found

    _, bar = measured_of(run(plan(1), slow_when_warm)).bars
    assert (bar.value, bar.met) == (1.15, False)


def test_a_start_that_fails_is_told_of_and_the_others_go_on() -> None:
    tried = []

    def one_way_fails(wanted: Wanted) -> Started:
        tried.append(wanted)
        if wanted.weights == "checkpoint":
            raise StartFailed("it ended with 1: OSError: no port")
        return fake(wanted)

    found = measured_of(run(plan(ROUNDS), one_way_fails))
    assert [(gap.case, gap.metric) for gap in found.gaps] == [
        ("engine start, cold", "first token, checkpoint"),
        ("engine start, warm", "first token, checkpoint"),
        (f"{TP2}, cold", "first token, checkpoint"),
        (f"{TP2}, warm", "first token, checkpoint"),
    ]
    assert all(gap.why == "2 failed: it ended with 1: OSError: no port" for gap in found.gaps)
    assert all(bar.met for bar in found.bars)
    assert sum(wanted.weights == "checkpoint" for wanted in tried) == 8, "twice cold, twice warm, then given up"


def test_without_any_start_the_bars_say_what_is_missing() -> None:
    def fails(wanted: Wanted) -> Started:
        raise StartFailed("no")

    found = measured_of(run(plan(1), fails))
    assert [bar.value for bar in found.bars] == [None, None]
    assert "one rank" in found.bars[0].goal and "cold" in found.bars[1].goal
    assert ("set-up", "starts") in {(gap.case, gap.metric) for gap in found.gaps}


@pytest.mark.parametrize(
    "wanted, changed, why",
    [
        (Wanted("flat"), {"ways": ("ebbtide",)}, "asked for ebbtide_flat"),
        (Wanted("engine"), {"ways": ()}, "loaded by nothing"),
        (Wanted("flat"), {"restored_bytes": 0}, "caches wanted"),
        (Wanted("flat", caches=False), {"restored_bytes": 5}, "not wanted"),
        (Wanted("flat", ranks=2), {"ways": ("ebbtide_flat", "ebbtide")}, "on 2 ranks"),
    ],
)
def test_a_start_that_went_another_way_is_no_measurement(wanted: Wanted, changed: dict[str, object], why: str) -> None:
    step = Step(wanted, "case", "name", 1)
    assert wrong(step, fake(wanted)) == ""
    assert why in wrong(step, replace(fake(wanted), **changed))  # type: ignore[arg-type]
    assert wrong(Step(wanted), replace(fake(wanted), **changed)) == ""  # type: ignore[arg-type]


def test_what_the_disk_read_for_a_rank_is_told_by_the_process_that_holds_its_slot(tmp_path: Path) -> None:
    slots, proc = [SlotRef("n", 0), SlotRef("n", 1)], tmp_path / "proc"
    assert disk_bytes_by_rank(tmp_path / "slots", slots, proc) == [], "nobody holds them"
    (proc / str(os.getpid())).mkdir(parents=True)
    (proc / str(os.getpid()) / "io").write_text("rchar: 5\nread_bytes: 4096\nwrite_bytes: 7\n")
    first, second = (SlotLock(tmp_path / "slots", slot, workload="w", epoch=1) for slot in slots)
    with first:
        assert disk_bytes_by_rank(tmp_path / "slots", slots, proc) == [], "half is not all"
        with second:
            assert disk_bytes_by_rank(tmp_path / "slots", slots, proc) == [4096, 4096]
            assert disk_bytes_by_rank(tmp_path / "slots", slots, tmp_path) == [], "the kernel does not tell"


def test_the_last_error_of_a_log_is_what_is_told() -> None:
    log = """INFO 11-22 [x.py:1] starts
Traceback (most recent call last):
  File "a.py", line 3, in main
    raise EngineFailed("x")
ebbtide_serve.errors.EngineFailed: vLLM does not start: Repo id must be in the form
           ^^^^^^^^^^^^^^
[W1122 socket.cpp:1] leaked semaphore
"""
    assert (
        last_useful_line(log) == "ebbtide_serve.errors.EngineFailed: vLLM does not start: Repo id must be in the form"
    )
    assert last_useful_line("one\ntwo\n   ^^^^\n\n") == "two"
    assert last_useful_line("") == "it wrote nothing"


def test_what_a_start_left_in_the_store_is_told() -> None:
    log = 'caches of bench: 3 files\n{"first_token_at_s": 1}\nINFO x\ncaches of bench: none\nbench: no flat form: big\n'
    assert published(log) == ["caches of bench: none", "bench: no flat form: big"]


def test_a_long_line_keeps_its_beginning_and_its_end() -> None:
    told = last_useful_line("ValueError: " + "x" * 5000 + " the cause")
    assert told.startswith("ValueError: xx") and told.endswith(" the cause") and len(told) < 420


def test_ranks_are_told_in_order() -> None:
    loads = [{"rank": rank, "way": f"w{rank}", "bytes_by_mode": {"a": 1, "b": rank}} for rank in (1, 0)]
    line = json.dumps(
        {"first_token_at_s": 12.5, "stages_s": {"import": 3}, "restored_bytes": 9, "cpu_s": 1.5, "loads": loads}
        | {"disk_bytes_by_rank": [7, 8]}
    )
    assert started(line, 10.0) == Started(2.5, 1.5, {"import": 3}, 9, (1, 2), ("w0", "w1"), (7, 8))


def test_progress_says_what_is_left_by_weight() -> None:
    now = iter((0.0, 30.0, 90.0, 100.0))
    progress = Progress("start", [1.0, 2.0, 1.0], now=lambda: next(now))
    assert progress.begins("a") == "  start 1 of 3, a"
    assert progress.ended("ok") == "    ok; 30 s so far, about 1:30 min left"
    assert progress.begins("b") == "  start 2 of 3, b"
    assert progress.ended("ok") == "    ok; 1:30 min so far, about 30 s left"
    assert progress.ended("ok") == "    ok; 1:40 min so far"


def test_minutes_are_for_people() -> None:
    assert [minutes(seconds) for seconds in (0.4, 59.6, 61, 3600)] == ["0 s", "1:00 min", "1:01 min", "60:00 min"]
