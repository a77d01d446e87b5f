"""Files that somebody broke: whatever they hold, they are read as something sound, or refused by name."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebbtide_simulator.played.one_run import play_one
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.scene import Inputs, Named, scene
from ebbtide_simulator.traffic.trace_files import BadTrace
from ebbtide_simulator.traffic.traces import (
    Array,
    Gpus,
    Jobs,
    Rates,
    Requests,
    Serving,
    Tokens,
    read_jobs,
    read_serving,
)
from tests.builders.simulate import Columns, written
from tests.examples import examples

KINDS = (
    ("t_s", "in_tok", "out_tok"),
    ("t_s", "rps", "mean_in_tok", "mean_out_tok"),
    ("t_s", "rpm_mid", "rpm_sigma", "in_tok_per_min"),
    ("t_s", "total_tok_per_s"),
    ("start_s", "end_s", "gpus"),
    ("submit_s", "gpus", "duration_s"),
    ("submit_s", "gpus", "start_s", "end_s"),
)
SOUND = st.integers(0, 3000).map(float)
ODD = st.sampled_from([-1.0, -1e-9, 0.5, 1e9, 1e12, 1e18, 1e300, float("inf"), float("-inf"), float("nan")])
CELLS = st.one_of(SOUND, SOUND, SOUND, ODD, st.none())
FILE = SimulationFile.model_validate(
    {
        "pool": {"nodes": 1, "gpus_per_node": 4},
        "endpoints": ({"name": "e"},),
        "run": {"warm_up_s": 0.0, "tick_s": 600.0},
    }
)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """A trace of some kind, a few of whose cells are odd, or columns lacking, empty, or text."""
    names, rows = draw(st.sampled_from(KINDS)), draw(st.integers(0, 5))
    found: dict[str, list[Any]] = {}
    for name in names:
        cells = draw(
            st.one_of(st.lists(SOUND, min_size=rows, max_size=rows), st.lists(CELLS, min_size=rows, max_size=rows))
        )
        if name in ("t_s", "submit_s") and draw(st.booleans()):
            cells = sorted(set(cells), key=lambda cell: (cell is None, str(cell) if cell is None else float(cell)))
            cells += [3000.0 + n for n in range(rows - len(cells))]
        found[name] = draw(st.sampled_from([cells, cells, cells, cells, [None] * rows, ["x"] * rows]))
    for name in draw(st.sets(st.sampled_from(names), max_size=1)) if draw(st.integers(0, 9)) == 0 else ():
        del found[name]
    return found or {"other": [1.0] * rows}


def read(path: Path) -> tuple[Serving | None, Jobs | None]:
    """What it is read as; None: refused, by name."""
    found: list[Any] = []
    for reader in (read_serving, read_jobs):
        try:
            found.append(reader(path))
        except BadTrace as error:
            assert str(path) in str(error)
            found.append(None)
    return found[0], found[1]


def assert_sound(found: Serving | Jobs) -> None:
    others: tuple[Array, ...]
    match found:
        case Requests(at_s, prompt, output):
            times, others = at_s, (prompt, output)
        case Rates(at_s, per_s, noise, _, _):
            times, others = at_s, (per_s, noise)
            assert (np.diff(at_s) > 0).all()
        case Tokens(at_s, values) | Gpus(at_s, values):
            times, others = at_s, (values,)
        case Jobs(submit_s, duration_s, gpus):
            times, others = submit_s, (duration_s, gpus)
            assert (gpus >= 1).all()
    assert len(times)
    for values in (times, *others):
        assert np.isfinite(values).all() and (values >= 0).all() and len(values) == len(times)
    assert (np.diff(times) >= 0).all()


@given(tables(), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_table_is_sound_or_refused(columns: dict[str, list[Any]], as_csv: bool) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder), columns)
        if as_csv:
            table = pyarrow.parquet.read_table(path)
            path = path.with_suffix(".csv")
            pyarrow.csv.write_csv(table, path)
        for found in read(path):
            if found is not None:
                assert_sound(found)


@given(tables(), st.sampled_from([1e-6, 0.3, 1.0, 50.0, 1e6]), st.integers(0, 3))
@settings(max_examples=examples(100), deadline=None)
def test_what_is_read_can_be_played_or_is_refused_with_numbers(
    columns: dict[str, list[Any]], factor: float, seed: int
) -> None:
    with TemporaryDirectory() as folder:
        serving, jobs = read(written(Path(folder), columns))
    if serving is not None and serving.at_s[-1] < 10_000:
        try:
            drawn = scene(FILE, Inputs(((Named(Path("t"), factor), serving),), ()), seed)
        except BadTrace as error:
            assert any(digit in str(error) for digit in "123456789")
            return
        load = drawn.services[0].load
        assert np.isfinite(load.work_s).all() and (load.work_s >= 0).all() and np.isfinite(load.requests).all()
    if jobs is not None:
        quiet = Requests(np.array([0.0, 1000.0]), np.array([10.0, 10.0]), np.array([1.0, 1.0]))
        given_jobs = ((Named(Path("j")), jobs),)
        found = play_one(FILE, Inputs(((Named(Path("t")), quiet),), given_jobs), "ebbtide", seed).figures
        assert np.isfinite(found["goodput_gpu_s"]) and 0.0 <= found["waste_share"] <= 1.0


ONE_ROW: tuple[Columns, ...] = (
    {"t_s": [0.0], "in_tok": [10], "out_tok": [1]},
    {"t_s": [7.0], "rpm_mid": [30.0]},
    {"t_s": [7.0], "total_tok_per_s": [0.0]},
    {"start_s": [0.0], "end_s": [30.0], "gpus": [1]},
)


@pytest.mark.parametrize("columns", ONE_ROW)
def test_a_trace_of_one_row_plays(tmp_path: Path, columns: Columns) -> None:
    inputs = Inputs(((Named(Path("t")), read_serving(written(tmp_path, columns))),), ())
    for name in ("ebbtide", "static-p100", "oracle", "schedule", "lyra"):
        found = play_one(FILE, inputs, name, 0).figures
        assert 0.0 <= found["slo_attainment"] <= 1.0


def _bytes_of(write: Callable[[Path], object]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        write(path)
        return path.read_bytes()


GOOD = _bytes_of(
    lambda path: pyarrow.parquet.write_table(
        pyarrow.table({"t_s": [0.0, 60.0], "rps": [1.0, 2.0], "mean_in_tok": [9.0, 9.0], "mean_out_tok": [9.0, 9.0]}),
        path,
    )
)


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(GOOD)))
@settings(max_examples=examples(200), deadline=None)
@example([], 0)
@example([], len(GOOD) - 1)
def test_a_parquet_file_with_wrong_bytes_is_sound_or_refused(changes: list[tuple[int, int]], length: int) -> None:
    broken = bytearray(GOOD if length % 2 else GOOD[:length])
    for at, value in changes:
        if at < len(broken):
            broken[at] = value
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        path.write_bytes(broken)
        for found in read(path):
            if found is not None:
                assert_sound(found)


@given(
    st.one_of(
        st.binary(max_size=200), st.text(st.sampled_from('t_s,rpm_mid\n0123.e+-" nai\r'), max_size=80).map(str.encode)
    )
)
@settings(max_examples=examples(200), deadline=None)
@example(b"t_s,rpm_mid\n0,1\n")
@example(b"t_s,t_s,rpm_mid\n0,0,1\n")
@example(b"t_s,rpm_mid\n0,\n")
@example(b"\xff\xfe")
def test_any_bytes_as_csv_are_sound_or_refused(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        for found in read(path):
            if found is not None:
                assert_sound(found)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    twice = pyarrow.table([pyarrow.array([0.0, 1.0])] * 3, names=["t_s", "t_s", "rpm_mid"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(BadTrace, match="has more than one column t_s"):
        read_serving(path)


def test_an_empty_column_is_told_as_empty_and_not_as_lacking(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="row 1, and 1 more rows: rpm_mid is no number"):
        read_serving(written(tmp_path, {"t_s": [0.0, 1.0], "rpm_mid": [None, None]}))
    rows: Columns = {"start_s": [None, None], "end_s": [60.0, 600.0], "gpus": [1, 2]}
    found = read_serving(written(tmp_path, rows))
    assert isinstance(found, Gpus) and found.count[0] == 2.0, "empty: before all others"


def test_a_folder_is_no_trace_even_one_of_parquet_files(tmp_path: Path) -> None:
    written(tmp_path, {"t_s": [0.0], "rpm_mid": [1.0]})
    with pytest.raises(BadTrace, match="is no file"):
        read_serving(tmp_path)


def test_jobs_that_never_ended_are_left_out_and_counted(tmp_path: Path) -> None:
    rows: Columns = {
        "submit_s": [0.0, 1.0, 2.0, 3.0],
        "gpus": [1, 2, 3, 4],
        "start_s": [1.0, None, 5.0, 6.0],
        "end_s": [9.0, None, None, 8.0],
    }
    found = read_jobs(written(tmp_path, rows))
    assert (found.gpus.tolist(), found.duration_s.tolist(), found.without_end) == ([1.0, 4.0], [8.0, 2.0], 2)
    with pytest.raises(BadTrace, match="in every row"):
        read_jobs(written(tmp_path, {**rows, "end_s": [None] * 4}))
    with pytest.raises(BadTrace, match="row 1: end_s is infinite"):
        read_jobs(written(tmp_path, {**rows, "end_s": [float("inf"), None, None, 8.0]}))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"t_s": [0.0, 400 * 86_400.0], "rpm_mid": [1.0, 1.0]}, "more than 366 days after the first"),
        ({"t_s": [0.0], "rps": [1e10], "mean_in_tok": [1.0], "mean_out_tok": [1.0]}, "rps is not between 0 and"),
        ({"t_s": [0.0], "rpm_mid": [1.0], "in_tok_per_min": [1e9]}, "for each of the minute's requests"),
        ({"start_s": [0.0] * 3, "end_s": [120.0] * 3, "gpus": [500_000] * 3}, "gpus of all rows is more than"),
    ],
)
def test_numbers_that_no_machine_could_draw_are_refused(tmp_path: Path, columns: Columns, message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        read_serving(written(tmp_path, columns))
