"""What really happened is told by the figures that a simulated run has, and they mean the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.pool.events import JobEnded, JobSubmitted
from ebbtide.pool.ids import JobName
from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.recorded.recording import read_recording
from ebbtide_simulator.report.beside import beside, recorded_figures
from tests.autoscaler.closed_loop import a_job
from tests.autoscaler.simulator.ledgers import an_event, nothing, pool_of, written


def test_a_job_that_was_cancelled_before_it_got_slots_waited_until_then_and_is_not_done(tmp_path: Path) -> None:
    events = [
        *pool_of({"n": [(0.0, 10_000.0)]}, until_s=10_000.0),
        an_event(20.0, JobSubmitted(a_job("cancelled"), "1")),
        an_event(80.0, JobEnded(JobName("cancelled"), "cancelled", "")),
        an_event(9_000.0, JobSubmitted(a_job("waits"), "1")),
        nothing(10_000.0),
    ]
    one = read_recording(written(tmp_path, events))
    found = recorded_figures(one)
    assert (found["jobs"], found["jobs_done"]) == (2, 0)
    assert found["queue_s"]["mean"] == found["jct_s"]["mean"] == pytest.approx((60.0 + 1000.0) / 2)
    finished = recorded_figures(
        replace(one, jobs=tuple(replace(job, finished=True, first_s=30.0) for job in one.jobs[:1]))
    )
    assert (finished["jobs_done"], finished["queue_s"]["mean"], finished["jct_s"]["mean"]) == (1, 10.0, 60.0)


def test_of_a_pool_without_jobs_no_time_is_told(tmp_path: Path) -> None:
    quiet = [*pool_of({"n": [(0.0, 100.0)]}, until_s=100.0), nothing(100.0)]
    was = recorded_figures(read_recording(written(tmp_path, quiet)))
    none, zero = {"mean": None}, {"mean": 0.0}
    counts = {"preemptions": zero, "jobs_done": zero, "gpu_s": {use.value: zero for use in Use}}
    found = beside(was, {"ebbtide": {"queue_s": none, "jct_s": none, **counts}})
    assert [row[-2:] for row in found.rows] == [("-", "-"), ("-", "-")]
