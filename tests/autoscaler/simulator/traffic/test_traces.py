"""Traces are read as they are, and what cannot be is refused with its place."""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_simulator.traffic.draws import load
from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import Gpus, Rates, Requests, Tokens, read_jobs, read_serving
from tests.autoscaler.simulator.small_scenes import ENGINE
from tests.builders.simulate import Columns, written

REQUESTS: Columns = {"t_s": [5.0, 6.0, 6.0], "in_tok": [10, 20, 30], "out_tok": [1, 2, 3]}
RATES: Columns = {"t_s": [0.0, 600.0], "rps": [1.0, 2.0], "mean_in_tok": [100.0, 90.0], "mean_out_tok": [10.0, 9.0]}
JOBS: Columns = {"submit_s": [3.0, 4.0], "gpus": [1, 8], "duration_s": [60.0, 7.5]}


def test_requests_begin_at_their_first(tmp_path: Path) -> None:
    found = read_serving(written(tmp_path, REQUESTS))
    assert isinstance(found, Requests)
    assert found.at_s.tolist() == [0.0, 1.0, 1.0]
    assert found.output_tokens.tolist() == [1.0, 2.0, 3.0]


def test_rates_by_the_minute_become_those_by_the_second(tmp_path: Path) -> None:
    found = read_serving(written(tmp_path, {"t_s": [0.0, 433.0], "rpm_mid": [60.0, 120.0], "rpm_sigma": [6.0, 0.0]}))
    assert isinstance(found, Rates)
    assert (found.per_s.tolist(), found.noise_per_s.tolist()) == ([1.0, 2.0], [0.1, 0.0])
    assert np.isnan(found.prompt_tokens).all()


def test_tokens_by_the_minute_become_those_of_a_request(tmp_path: Path) -> None:
    columns: Columns = {"t_s": [0.0, 60.0], "rpm_mid": [60.0, 0.0], "in_tok_per_min": [6000.0, 0.0]}
    found = read_serving(written(tmp_path, columns))
    assert isinstance(found, Rates)
    assert found.prompt_tokens[0] == 100.0
    assert np.isnan(found.prompt_tokens[1]), "a minute without requests says nothing of their length"


def test_a_csv_file_is_as_good(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("t_s,rps,mean_in_tok,mean_out_tok\n0,1.5,10,2\n60,2,10,2\n")
    found = read_serving(path)
    assert isinstance(found, Rates)
    assert found.per_s.tolist() == [1.5, 2.0]


def test_jobs_of_a_scheduler_s_record_have_the_length_they_ran(tmp_path: Path) -> None:
    columns: Columns = {"submit_s": [0.0, 0.0], "gpus": [1, 2], "start_s": [5.0, 5.0], "end_s": [15.0, 5.0]}
    assert read_jobs(written(tmp_path, columns)).duration_s.tolist() == [10.0, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t_s": [0.0, float("nan")]}, "row 2: t_s is no number"),
        ({"t_s": [-1.0, 5.0]}, "row 1: t_s is negative"),
        ({"t_s": [9.0, 5.0]}, "row 2: t_s is not later than the one before"),
        ({"t_s": [5.0, 5.0]}, "row 2: t_s is the same as the one before"),
        ({"rps": [-0.1, 1.0]}, "row 1: rps is not between 0 and 1e"),
        ({"mean_in_tok": [1e9, 1.0]}, "row 1: mean_in_tok is not between"),
        ({"rps": [float("inf"), float("nan")]}, "row 1, and 1 more rows: rps is no number"),
        ({"rps": ["a", "b"]}, "rps is of type string, and must be a number"),
    ],
)
def test_rates_that_cannot_be_are_refused(tmp_path: Path, change: Mapping[str, Sequence[object]], message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        read_serving(written(tmp_path, {**RATES, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": [0, 1]}, "row 1: gpus is not between 1"),
        ({"gpus": [1.5, 1]}, "row 1: gpus is no whole number"),
        ({"duration_s": [-1.0, 1.0]}, "row 1: duration_s is not between 0"),
        ({"submit_s": [4.0, 3.0]}, "row 2: submit_s is earlier than the one before"),
        (
            {"submit_s": [datetime(2024, 5, 12), datetime(2024, 5, 13)]},
            r"submit_s is of type timestamp\[us\], .* seconds",
        ),
        ({"gpus": ["1", "2"], "duration_s": ["1", "2"]}, "duration_s is of type string and gpus is of type string"),
    ],
)
def test_jobs_that_cannot_be_are_refused(tmp_path: Path, change: Mapping[str, Sequence[object]], message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        read_jobs(written(tmp_path, {**JOBS, **change}))


def test_what_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="no such file"):
        read_serving(tmp_path / "nothing.parquet")
    path = tmp_path / "text.parquet"
    path.write_text("not a table")
    with pytest.raises(BadTrace, match="cannot be read as Parquet"):
        read_serving(path)
    with pytest.raises(BadTrace, match="has no rows"):
        read_jobs(written(tmp_path, {name: [] for name in JOBS}))
    with pytest.raises(BadTrace, match="lacks the column duration_s"):
        read_jobs(written(tmp_path, {"submit_s": [0.0], "gpus": [1]}))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_whose_name_is_no_utf_8_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / os.fsdecode(b"\xff." + kind.encode())
    path.write_bytes(b"t_s,rpm_mid\n0,60\n60,60\n")
    with pytest.raises(BadTrace, match="cannot be read as"):
        read_serving(path)


def test_what_is_there_and_what_is_lacking_are_told_with_all_columns(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"lacks the column out_tok .*it has t_s, in_tok$"):
        read_serving(written(tmp_path, {"t_s": ["a"], "in_tok": [1]}))


def test_spaces_around_names_of_columns_are_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("t_s, in_tok , out_tok\n0, 5, 7\n")
    found = read_serving(path)
    assert isinstance(found, Requests) and found.output_tokens.tolist() == [7.0]
    path.write_text("t_s,in_tok, in_tok,out_tok\n0,5,5,7\n")
    with pytest.raises(BadTrace, match="more than one column in_tok"):
        read_serving(path)


def test_tokens_and_gpus_are_traffic_too(tmp_path: Path) -> None:
    tokens = read_serving(written(tmp_path, {"t_s": [0.0, 60.0], "total_tok_per_s": [10.0, 20.0]}))
    assert isinstance(tokens, Tokens) and tokens.per_s.tolist() == [10.0, 20.0]
    rows: Columns = {"start_s": [None, 60.0, 120.0], "end_s": [180.0, None, 170.0], "gpus": [1, 2, 4]}
    gpus = read_serving(written(tmp_path, rows))
    assert isinstance(gpus, Gpus)
    assert gpus.at_s.tolist() == [0.0, 60.0, 120.0]
    assert gpus.count.tolist() == [3.0, 3.0, 2.0], "one that comes and goes within a minute is not seen"


def test_a_scheduler_s_record_of_jobs_is_no_traffic(tmp_path: Path) -> None:
    instances: Columns = {"start_s": [0.0, 60.0], "end_s": [None, 120.0], "gpus": [1, 2], "sched_s": [0.0, 60.0]}
    assert isinstance(read_serving(written(tmp_path, instances)), Gpus)
    jobs = written(tmp_path, {**instances, "submit_s": ["2024-05-12", "2024-05-13"]})
    with pytest.raises(BadTrace, match=r"trace\.parquet has a column submit_s: .* give it to --jobs"):
        read_serving(jobs)


def test_records_that_lack_are_a_straight_line(tmp_path: Path) -> None:
    rows: Columns = {
        "t_s": [0.0, 600.0, 1200.0, 1800.0],
        "rps": [2.0, 0.0, 0.0, 8.0],
        "mean_in_tok": [10.0] * 4,
        "mean_out_tok": [10.0] * 4,
    }
    found = read_serving(written(tmp_path, rows))
    assert isinstance(found, Rates) and found.per_s.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_records_that_lack_are_a_straight_line_in_time(tmp_path: Path) -> None:
    rows: Columns = {"t_s": [0.0, 100.0, 1000.0], "rps": [1.0, 0.0, 11.0]}
    found = read_serving(written(tmp_path, {**rows, "mean_in_tok": [10.0] * 3, "mean_out_tok": [10.0] * 3}))
    assert isinstance(found, Rates) and found.per_s.tolist() == [1.0, 2.0, 11.0]


@given(st.integers(0, 4), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 4))
def test_before_the_first_rate_and_after_the_last_nothing_is_made_up(before: int, rates: list[int], after: int) -> None:
    """Each rate stands beside a zero but the last one, so that a line is drawn through as many."""
    spread = [rate for one in rates for rate in (float(one), 0.0)][:-1]
    per_s = [0.0] * before + spread + [0.0] * after
    other = [10.0] * len(per_s)
    columns: Columns = {"t_s": [60.0 * n for n in range(len(per_s))], "rps": per_s}
    with TemporaryDirectory() as folder:
        found = read_serving(written(Path(folder), {**columns, "mean_in_tok": other, "mean_out_tok": other}))
    assert isinstance(found, Rates) and found.filled == len(rates) - 1
    assert not found.per_s[:before].any() and not found.per_s[len(per_s) - after :].any()
    assert (found.per_s[before : len(per_s) - after] > 0).all()


def test_without_any_request_there_is_nothing_to_draw_a_line_between(tmp_path: Path) -> None:
    found = read_serving(written(tmp_path, {**RATES, "rps": [0.0, 0.0]}))
    assert isinstance(found, Rates) and found.per_s.tolist() == [0.0, 0.0]


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 3000), st.none() | st.integers(0, 3000), st.integers(1, 8)),
        min_size=1,
        max_size=8,
    ).filter(lambda rows: all({begin, end} - {None} for begin, end, _ in rows))
)
def test_gpus_in_use_are_those_that_have_begun_and_not_ended(rows: list[tuple[int | None, int | None, int]]) -> None:
    known = [at for begin, end, _ in rows for at in (begin, end) if at is not None]
    first, last = min(known), max(known)
    table = [
        (first if begin is None else begin, last + 60 if end is None else end, gpus)  # it stays beyond the record
        for begin, end, gpus in rows
        if begin is None or end is None or begin <= end
    ]
    columns: Columns = {
        "start_s": [float("nan") if begin is None else float(begin) for begin, _, _ in rows],
        "end_s": [float("nan") if end is None else float(end) for _, end, _ in rows],
        "gpus": [gpus for _, _, gpus in rows],
    }
    with TemporaryDirectory() as folder:
        path = written(Path(folder), columns)
        if len(table) < len(rows):
            with pytest.raises(BadTrace, match="end_s is before start_s"):
                read_serving(path)
            return
        found = read_serving(path)
    assert isinstance(found, Gpus)
    minutes = [((begin - first) // 60, (end - first) // 60, gpus) for begin, end, gpus in table]
    expected = [sum(gpus for begin, end, gpus in minutes if begin <= at < end) for at in range(len(found.at_s))]
    assert found.count.tolist() == expected
    assert found.at_s.tolist() == [60.0 * at for at in range((last - first) // 60 + 1)]


TOKENS: Columns = {"t_s": [0.0, 60.0], "total_tok_per_s": [10.0, 20.0]}
GPUS: Columns = {"start_s": [0.0, 60.0], "end_s": [120.0, 180.0], "gpus": [1, 2]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({**TOKENS, "total_tok_per_s": [10.0, -1.0]}, "row 2: total_tok_per_s is not between 0 and 1e+12"),
        ({**TOKENS, "total_tok_per_s": [None, 1.0]}, "row 1: total_tok_per_s is no number"),
        ({**TOKENS, "t_s": [60.0, 0.0]}, "row 2: t_s is not later than the one before: sort the rows by it"),
        ({**GPUS, "gpus": [0, 1]}, "row 1: gpus is not between 1 and 1e+06"),
        ({**GPUS, "gpus": [1.0, 0.5]}, "row 2: gpus is not between 1 and 1e+06"),
        ({**GPUS, "gpus": [2.5, 1.0]}, "row 1: gpus is no whole number"),
        ({**GPUS, "end_s": [120.0, 30.0]}, "row 2: end_s is before start_s"),
    ],
)
def test_bad_tokens_and_gpus_are_refused_with_file_row_and_column(
    tmp_path: Path, columns: Columns, message: str
) -> None:
    path = written(tmp_path, columns)
    with pytest.raises(BadTrace) as refused:
        read_serving(path)
    assert str(refused.value) == f"{path}: {message}"


KINDS = {
    "list": pyarrow.list_(pyarrow.int64()),
    "large": pyarrow.large_list(pyarrow.uint64()),
    "fixed": pyarrow.list_(pyarrow.int32(), 2),
}
"""Lists as pandas, Polars and numpy write them."""


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_blocks_are_known_whatever_kind_of_list_they_are(tmp_path: Path, kind: str) -> None:
    lists = pyarrow.array([[7, 9], None, [7, 8]], KINDS[kind])
    found = read_serving(written(tmp_path, {**REQUESTS, "hash_ids": lists}))
    assert isinstance(found, Requests) and found.blocks is not None
    assert (found.blocks.tolist(), found.blocks_from.tolist()) == ([0, 2, 0, 1], [0, 2, 2, 4])


@pytest.mark.parametrize("names", [[-(2**62), 2**62], [2**63, 2**64 - 1], [5, 6]])
def test_names_of_blocks_may_be_any_whole_numbers_and_be_multiplied(tmp_path: Path, names: list[int]) -> None:
    kind = pyarrow.list_(pyarrow.uint64() if max(names) >= 2**63 else pyarrow.int64())
    lists = pyarrow.array([[names[0]], names, [names[1]]], kind)
    found = read_serving(written(tmp_path, {**REQUESTS, "hash_ids": lists}))
    rows = load(found, ENGINE, 50.0, (1, 1), 0).rows
    assert rows is not None
    assert rows.blocks.min() >= 0 and rows.blocks.max() < 2 * len(rows.part_s), "two names for each copy at most"


@pytest.mark.parametrize("lists", [["[1]", "[2]", "[3]"], [1, 2, 3], [["a"], ["b"], ["c"]], [[1.5], [2.0], [3.0]]])
def test_prefix_blocks_that_are_none_are_refused(tmp_path: Path, lists: list[object]) -> None:
    with pytest.raises(BadTrace, match=r"trace.parquet: hash_ids .*whole numbers"):
        read_serving(written(tmp_path, {**REQUESTS, "hash_ids": lists}))


def test_a_csv_file_cannot_have_prefix_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text('t_s,in_tok,out_tok,hash_ids\n0,1,1,"[1,2]"\n')
    with pytest.raises(BadTrace, match=r"trace.csv: hash_ids is of type string.*write Parquet"):
        read_serving(path)


def test_requests_without_any_token_are_no_trace(tmp_path: Path) -> None:
    path = written(tmp_path, {**REQUESTS, "in_tok": [0, 0, 0], "out_tok": [0, 0, 0]})
    with pytest.raises(BadTrace, match=f"{path}: .*in_tok"):
        read_serving(path)


def test_instances_that_never_begin_nor_end_are_no_trace(tmp_path: Path) -> None:
    rows: Columns = {"start_s": [None], "end_s": [None], "gpus": [1]}
    with pytest.raises(BadTrace, match="nothing changes"):
        read_serving(written(tmp_path, rows))
