"""What really happened beside what the simulator says: figures and a table."""

from collections.abc import Mapping
from typing import Any

from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.recorded.recording import Recording
from ebbtide_simulator.report.tables import Table, figure_text
from ebbtide_simulator.run.score import spread

AS_IT_WAS = "as it was"
LONG_GPU_S = 36_000.0  # with less, hours have nothing before the point
SHOWN = (Use.TRAINING, Use.READY, Use.STARTING, Use.DRAINING, Use.LOADING, Use.SAVING, Use.LOST, Use.FREE, Use.DOWN)


def recorded_figures(one: Recording) -> dict[str, Any]:
    """A recording's figures, by the names that a run's have (see `score.figures`)."""
    over_s = [one.ends_s if job.end_s is None else job.end_s for job in one.jobs]
    took = [end_s - job.submit_s for job, end_s in zip(one.jobs, over_s, strict=True)]
    waited = [  # one that was cancelled before it had slots waited until then
        (end_s if job.first_s is None else job.first_s) - job.submit_s
        for job, end_s in zip(one.jobs, over_s, strict=True)
    ]
    return {
        "begins_s": one.begins_s,
        "hours": one.span_s / 3600,
        "gpu_s": {use.value: slot_s for use, slot_s in one.slot_s.items()},
        "goodput_gpu_s": one.slot_s[Use.TRAINING],
        "preemptions": sum(job.preempted for job in one.jobs),
        "preemptions_per_job_max": max((job.preempted for job in one.jobs), default=0),
        "jobs": len(one.jobs),
        "jobs_done": sum(job.finished for job in one.jobs),
        "queue_s": spread(waited),
        "jct_s": spread(took),
        "replica_starts": one.counts.get("replica starts", 0),
        "measured_s": one.durations.told(),
        "course": {use.value: counts for use, counts in one.course.items()},
        "course_s": one.course_s,
    }


def beside(recorded: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]) -> Table:
    """Slots by use, preemptions and jobs: as they were, and under each policy with how far off that is."""
    was = {use: recorded["gpu_s"][use.value] for use in SHOWN}
    unit, each_s = ("GPU-h", 3600.0) if sum(was.values()) > LONG_GPU_S else ("GPU-s", 1.0)
    columns = ("", *(use.value for use in SHOWN), "all", "preemptions", "jobs done", "queue mean", "jct mean")
    rows = [
        (
            AS_IT_WAS,
            *(f"{was[use] / each_s:,.1f}" for use in SHOWN),
            f"{sum(recorded['gpu_s'].values()) / each_s:,.1f}",
            f"{recorded['preemptions']}",
            f"{recorded['jobs_done']}",
            *(figure_text(recorded[name], 0, " s") for name in ("queue_s", "jct_s")),
        )
    ]
    for name, one in policies.items():
        now = {use: one["gpu_s"][use.value]["mean"] for use in Use}
        rows.append(
            (
                name,
                *(f"{now[use] / each_s:,.1f}{_off(now[use], was[use])}" for use in SHOWN),
                f"{sum(now.values()) / each_s:,.1f}",
                f"{one['preemptions']['mean']:.1f}",
                f"{one['jobs_done']['mean']:.1f}",
                *(figure_text(one[figure]["mean"], 0, " s") for figure in ("queue_s", "jct_s")),
            )
        )
    return Table(f"What really happened, and what the simulator says, in {unit}", columns, tuple(rows))


def _off(now_s: float, was_s: float) -> str:
    return f" ({now_s / was_s - 1:+.0%})" if was_s else ""
