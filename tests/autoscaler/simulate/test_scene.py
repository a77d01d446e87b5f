"""From a command line to what every contender is given."""

from pathlib import Path

import numpy as np
import pytest

from ebbtide_autoscaler.command_simulate import simulate
from ebbtide_autoscaler.simulate.draws import lasting
from ebbtide_autoscaler.simulate.scene import Named, read
from ebbtide_autoscaler.simulate.traces import BadTrace
from tests.autoscaler.simulate.scenes import load_of
from tests.autoscaler.simulate.test_traces import Columns, written

DAY_S = 86_400.0
JOBS: Columns = {"submit_s": [0.0, DAY_S, 2.5 * DAY_S], "gpus": [1, 2, 4], "duration_s": [60.0, 120.0, 180.0]}


@pytest.mark.parametrize(
    ("said", "path", "factor", "from_day"),
    [
        ("a.parquet", "a.parquet", 1.0, 0.0),
        ("a.parquet:0.5", "a.parquet", 0.5, 0.0),
        ("a.parquet:0.5:8", "a.parquet", 0.5, 8.0),
        ("b:c.parquet", "b:c.parquet", 1.0, 0.0),
        ("b:c.parquet:2", "b:c.parquet", 2.0, 0.0),
    ],
)
def test_a_file_is_given_with_a_factor_and_a_day(said: str, path: str, factor: float, from_day: float) -> None:
    [option] = [one for one in simulate.params if one.name == "jobs"]
    assert option.type.convert(said, option, None) == (Path(path), factor, from_day)


def test_jobs_of_before_the_day_are_left_out(tmp_path: Path) -> None:
    [(_, jobs)] = read([], [Named(written(tmp_path, JOBS), 1.0, 1.0)]).jobs
    assert jobs.submit_s.tolist() == [0.0, 1.5 * DAY_S]
    assert jobs.gpus.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("day", [-1.0, 3.0])
def test_a_day_that_the_trace_does_not_have_is_refused(tmp_path: Path, day: float) -> None:
    with pytest.raises(BadTrace, match="cannot begin on day"):
        read([], [Named(written(tmp_path, JOBS), 1.0, day)])


def test_traffic_goes_on_from_its_start_after_its_end() -> None:
    load = load_of(np.arange(6, dtype=np.float64))
    assert lasting(load, 10, 2.0).work_s.tolist() == [2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert lasting(load, 6, 0.0) is load
