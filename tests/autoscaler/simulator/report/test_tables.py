"""The tables for a terminal and a page: what is said beside them."""

from typing import Any

from ebbtide_simulator.policies.contenders import ORACLE
from ebbtide_simulator.report.tables import WITH_THEIRS, comparison_tables

PART = "static-p95"


def figures(in_time: float, vs_oracle: float | None) -> dict[str, Any]:
    one = {"mean": 0.0}
    ratio = {} if vs_oracle is None else {"goodput_vs_oracle": {"mean": vs_oracle}}
    times = {"queue_s": {"p50": one}, "jct_s": {"mean": one}, "preemptions_per_job_max": one}
    shares = {"slo_worst_5min": one, "goodput_gpu_s": one, "waste_share": one}
    return {"slo_attainment": {"mean": in_time}, **shares, **times, **ratio}


def test_who_trains_more_than_foresight_stands_there_with_what_it_costs() -> None:
    with_ours, with_theirs = comparison_tables(
        {ORACLE: figures(0.9999, 1.0), PART: figures(0.9988, 2.01), f"{PART}-own": figures(0.9, 0.5)}
    )
    assert f"({PART} 99.880%, {ORACLE} 99.990%)" in with_ours.note
    assert with_theirs.note == ""


def test_nothing_is_said_where_nobody_does_or_nobody_foresees() -> None:
    [equal] = comparison_tables({ORACLE: figures(1.0, 1.0), PART: figures(1.0, 1.0004)})
    [without] = comparison_tables({PART: figures(1.0, None)})
    assert equal.note == without.note == ""


def test_a_table_that_nobody_is_in_is_left_out() -> None:
    [alone] = comparison_tables({f"{PART}-own": figures(0.9, None)})
    assert alone.title == WITH_THEIRS and [row[0] for row in alone.rows] == [f"{PART}-own"]
