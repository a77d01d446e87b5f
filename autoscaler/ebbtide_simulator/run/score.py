"""From what came about to figures, and from those of several seeds to means with intervals. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ebbtide_simulator.model.batching import seconds_of_bin
from ebbtide_simulator.model.meter import WASTE, Use
from ebbtide_simulator.model.training import Training
from ebbtide_simulator.run.run import Outcome, Scene
from ebbtide_simulator.traffic.arrivals import WINDOW_S
from ebbtide_simulator.traffic.traces import Array

# Student's t by degrees of freedom from 1 on, two-sided (NIST/SEMATECH e-Handbook, 1.3.6.7.2); beyond them it is less.
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
T_95_BEYOND = 2.1
SIZES = ((1, 1), (2, 8), (9, 64), (65, 10**9))  # of jobs, in GPUs
STARVED_S = 86_400.0
HOUR_S = 3600.0
OFTEN = 3  # preemptions


def figures(scene: Scene, found: Outcome) -> dict[str, Any]:
    """Of one run. Times are of jobs that came after the warm-up; one that has not ended counts up to the end.

    Preemptions and crashes are those after the warm-up, of all jobs; bounds are checked over the whole run.
    """
    scored_s = scene.slots * (scene.horizon_s - scene.warm_up_s)
    asked = found.requests.sum()
    waste = waste_of(found)
    goodput_s = found.slot_s[Use.TRAINING]
    return (
        {
            "slo_attainment": 1.0 - float(found.late.sum() / asked) if asked else 1.0,
            "slo_worst_5min": _worst(found),
            "slo_5min_below_99": _below(found, 0.99),
            "slo_minutes_below_99": WINDOW_S / 60 * _count_below(found, 0.99),
            "goodput_gpu_s": goodput_s,
            "work_done_gpu_s": sum(one.work_s - one.left_s for one in found.training.values()),
            "goodput_share": goodput_s / scored_s,
            "useful_gpu_s": found.busy_s + goodput_s,
            "useful_share": (found.busy_s + goodput_s) / scored_s,
            "waste_share": sum(waste.values()) / scored_s,
            "waste": {cause: slot_s / scored_s for cause, slot_s in waste.items()},
            "waste_gpu_h": {cause: slot_s / 3600 for cause, slot_s in waste.items()},
            "ready_share": found.slot_s[Use.READY] / scored_s,
            "busy_share": found.busy_s / scored_s,
            "free_share": found.slot_s[Use.FREE] / scored_s,
            "down_share": found.slot_s[Use.DOWN] / scored_s,
            "gpu_s": {use.value: slot_s for use, slot_s in found.slot_s.items()},
            "lend_s": _spread_over(found.tally.lent),
            "reclaim_s": _spread_over(found.tally.reclaimed),
            "replica_s": _spread_over(found.tally.answered),
            "asked_gpu_s": found.tally.asked_slot_s,
            "on_time_gpu_s": found.tally.on_time_slot_s,
            "on_time_share": found.tally.on_time_slot_s / found.tally.asked_slot_s if found.tally.asked_slot_s else 1.0,
        }
        | _of_jobs(scene, found)
        | {
            "double_allocated_gpu_s": found.double_s,
            "refused_moves": len(found.refused),
            "decisions": found.decisions,
        }
        | ({"wait_s": _waits(found)} if found.waits else {})
        | _singly(found)
    )


def _of_jobs(scene: Scene, found: Outcome) -> dict[str, Any]:
    """How long jobs took, and what befell them."""
    end_s, from_s = scene.begins_s + scene.horizon_s, scene.begins_s + scene.warm_up_s
    trained, goodput_s = found.training.values(), found.slot_s[Use.TRAINING]
    jobs = [one for one in trained if one.submit_s >= from_s]
    finite = [job for job in jobs if job.work_s <= job.gpus * scene.horizon_s]  # a replay's may have work without end
    preempted_s = [_since(from_s, one.preempted_s) for one in trained]
    preempted = [len(times_s) for times_s in preempted_s]
    return {
        "queue_s": spread([_waited_s(job, end_s) for job in jobs]),
        "jct_s": spread([_took_s(job, end_s) for job in jobs]),
        "slowdown": spread([_slowdown(one, end_s) for one in finite]),
        "queue_by_gpus_s": _by_size(jobs, lambda one: _waited_s(one, end_s)),
        "jct_by_gpus_s": _by_size(jobs, lambda one: _took_s(one, end_s)),
        "slowdown_by_gpus": _by_size(finite, lambda one: _slowdown(one, end_s)),
        "starved_share": float(np.mean([_waited_s(job, end_s) > STARVED_S for job in jobs])) if jobs else 0.0,
        "jobs": len(jobs),
        "crashes": sum(len(_since(from_s, one.crashed_s)) for one in trained),
        "jobs_done": sum(job.finished for job in jobs),
        "preemptions": sum(preempted),
        "preemptions_per_1000_gpu_h": sum(preempted) / (goodput_s / 3.6e6) if goodput_s else None,
        "preemptions_per_job_max": max(preempted, default=0),
        "preemptions_per_job_h_max": max(map(_most_in_an_hour, preempted_s), default=0),
        "jobs_preempted_beyond_bound": sum(_most_in_an_hour(one.preempted_s) > one.per_h_max for one in trained),
        "jobs_preempted_often": sum(count > OFTEN for count in preempted),
    }


def _singly(found: Outcome) -> dict[str, Any]:
    """What is known where requests were played one by one, warm-up included: times to tokens, and of prefixes."""
    if not found.times:
        return {}
    return {name: _of_bins(counts) for name, counts in found.times.items()} | {"prefix_share": found.prefix_share}


def _of_bins(counts: Array) -> Mapping[str, float | None]:
    """Mean and percentiles of a histogram of `batching`; None of nothing."""
    if not counts.sum():
        return spread([])
    at_s = seconds_of_bin(np.arange(len(counts)))
    share = np.cumsum(counts) / counts.sum()
    at = {f"p{p}": float(at_s[np.searchsorted(share, p / 100)]) for p in (50, 95, 99)}
    return {"mean": float((at_s * counts).sum() / counts.sum())} | at


def waste_of(found: Outcome) -> dict[str, float]:
    """Slot-seconds that served and trained nothing, by cause.

    What moves cost, and what was free though somebody waited. Replicas that are ready and idle are not in it: nobody
    knows beforehand which of them the next minute needs; ``ready_share`` without ``busy_share`` is theirs.
    """
    return {use.value: found.slot_s[use] for use in WASTE} | {
        "idle-reserved": found.tally.reserved_slot_s,
        "fragmentation": found.tally.fragmented_slot_s,
    }


def _since(from_s: float, times_s: Sequence[float]) -> Sequence[float]:
    """Those from then on, of times in order."""
    return times_s[bisect_left(times_s, from_s) :]


def _most_in_an_hour(times_s: Sequence[float]) -> int:
    """The most preemptions of a job within any hour, as its bound counts them."""
    return max((n + 1 - bisect_right(times_s, at_s - HOUR_S) for n, at_s in enumerate(times_s)), default=0)


def _by_size(jobs: Sequence[Training], of: Callable[[Training], float]) -> dict[str, Mapping[str, float | None]]:
    """By GPUs; `SIZES` in which there is no job have None."""
    return {
        f"{least}-{most}" if most < SIZES[-1][1] else f">{least - 1}": spread(
            [of(job) for job in jobs if least <= job.gpus <= most]
        )
        for least, most in SIZES
    }


def _waited_s(one: Training, end_s: float) -> float:
    """Until it first had slots, or nobody wanted it any more."""
    until_s = one.end_s if one.first_s is None else one.first_s
    return (end_s if until_s is None else until_s) - one.submit_s


def _took_s(one: Training, end_s: float) -> float:
    """From its submission to its end."""
    return (end_s if one.end_s is None else one.end_s) - one.submit_s


def _slowdown(one: Training, end_s: float) -> float:
    """How many times as long as on all its GPUs at once; of what takes less than a minute there, a minute."""
    return _took_s(one, end_s) / max(one.work_s / one.gpus, 60.0)


def _below(found: Outcome, share: float) -> float:
    """The share of stretches with requests in which fewer of them were in time."""
    busy = found.requests > 0
    return float((found.late[busy] > (1 - share) * found.requests[busy]).mean()) if busy.any() else 0.0


def _count_below(found: Outcome, share: float) -> int:
    """In how many stretches that was so."""
    return int((found.late > (1 - share) * found.requests).sum())


def _worst(found: Outcome) -> float:
    late, asked = found.late, found.requests
    busy = asked > 0
    return 1.0 - float((late[busy] / asked[busy]).max()) if busy.any() else 1.0


def spread(values: Sequence[float]) -> Mapping[str, float | None]:
    """Mean and percentiles; None of nothing, for a zero would count in the mean over the seeds."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p95", "p99"))
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def _waits(found: Outcome) -> Mapping[str, float | None]:
    """Of all endpoints' requests, in fractions of them as the fluid has them."""
    waited_s, count = (np.concatenate([wait[part] for wait in found.waits]) for part in (0, 1))
    if not count.sum():
        return spread([])
    order = np.argsort(waited_s)
    share = np.cumsum(count[order]) / count.sum()
    at = {f"p{p}": float(waited_s[order][np.searchsorted(share, p / 100)]) for p in (50, 95, 99)}
    return {"mean": float((waited_s * count).sum() / count.sum())} | at


def _spread_over(timed: Sequence[tuple[float, int]]) -> Mapping[str, float | None]:
    """The same, each time as often as it has slots."""
    return spread(np.repeat([s for s, _ in timed], [count for _, count in timed]).tolist()) if timed else spread([])


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same figures with their mean and the half-width of its 95 % interval (None: of one seed nobody knows it).

    Where some seeds have none it is that of the others, with their number (``seeds``); None: no seed has one.
    """
    return {name: _joined([run[name] for run in runs]) for name in runs[0]}


def student_t(freedom: int) -> float:
    """How many standard errors from the mean half a 95 % interval is."""
    return T_95[freedom - 1] if freedom <= len(T_95) else T_95_BEYOND


def _joined(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], Mapping):
        return {name: _joined([value[name] for value in known]) for name in known[0]}
    half = None
    if len(known) > 1:
        half = student_t(len(known) - 1) * float(np.std(known, ddof=1)) / len(known) ** 0.5
    of = {"seeds": len(known)} if len(known) < len(values) else {}
    return {"mean": float(np.mean(known)), "ci95": half, **of}
