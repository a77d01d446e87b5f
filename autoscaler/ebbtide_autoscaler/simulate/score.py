"""From what came about to figures, and from those of several seeds to means with intervals. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebbtide_autoscaler.simulate.meter import WASTE, Use
from ebbtide_autoscaler.simulate.pool import Training
from ebbtide_autoscaler.simulate.run import BEGINS_S, Outcome, Scene

T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}  # Student's t, two-sided


SIZES = ((1, 1), (2, 8), (9, 64), (65, 10**9))  # of jobs, in GPUs
STARVED_S = 86_400.0
OFTEN = 3  # preemptions


def figures(scene: Scene, found: Outcome) -> dict[str, Any]:
    """Of one run. Times are of jobs that came after the warm-up; one that has not ended counts up to the end."""
    scored_s = scene.slots * (scene.horizon_s - scene.warm_up_s)
    asked = found.requests.sum()
    waste_s = sum(found.slot_s[use] for use in WASTE)
    end_s, from_s = BEGINS_S + scene.horizon_s, BEGINS_S + scene.warm_up_s
    jobs = [one for one in found.training.values() if one.submit_s >= from_s]
    preempted = [one.preempted for one in found.training.values()]
    goodput_s = found.slot_s[Use.TRAINING]
    return {
        "slo_attainment": 1.0 - float(found.late.sum() / asked) if asked else 1.0,
        "slo_worst_5min": _worst(found),
        "slo_5min_below_99": _below(found, 0.99),
        "goodput_gpu_s": goodput_s,
        "work_done_gpu_s": sum(one.work_s - one.left_s for one in found.training.values()),
        "goodput_share": goodput_s / scored_s,
        "useful_share": (found.busy_s + goodput_s) / scored_s,
        "waste_share": waste_s / scored_s,
        "waste": {use.value: found.slot_s[use] / scored_s for use in WASTE},
        "ready_share": found.slot_s[Use.READY] / scored_s,
        "busy_share": found.busy_s / scored_s,
        "free_share": found.slot_s[Use.FREE] / scored_s,
        "queue_s": _spread([_waited_s(one, end_s) for one in jobs]),
        "jct_s": _spread([_took_s(one, end_s) for one in jobs]),
        "slowdown": _spread([_took_s(one, end_s) / max(one.work_s / one.gpus, 60.0) for one in jobs]),
        "jct_by_gpus_s": {
            f"{least}-{most}" if most < SIZES[-1][1] else f">{least - 1}": _spread(
                [_took_s(one, end_s) for one in jobs if least <= one.gpus <= most]
            )
            for least, most in SIZES
        },
        "starved_share": float(np.mean([_waited_s(one, end_s) > STARVED_S for one in jobs])) if jobs else 0.0,
        "jobs": len(jobs),
        "jobs_done": sum(one.end_s is not None for one in jobs),
        "preemptions": sum(preempted),
        "preemptions_per_1000_gpu_h": sum(preempted) / max(goodput_s / 3.6e6, 1e-9),
        "preemptions_per_job_max": max(preempted, default=0),
        "jobs_preempted_often": sum(count > OFTEN for count in preempted),
        "double_allocated_gpu_s": 0.0,  # else the run would have ended: all promises are checked as it goes on
        "refused_moves": len(found.refused),
        "decisions": found.ticks,
    }


def _waited_s(one: Training, end_s: float) -> float:
    """Until it first had slots."""
    return (end_s if one.first_s is None else one.first_s) - one.submit_s


def _took_s(one: Training, end_s: float) -> float:
    """From its submission to its end."""
    return (end_s if one.end_s is None else one.end_s) - one.submit_s


def _below(found: Outcome, share: float) -> float:
    """The share of stretches with requests in which fewer of them were in time."""
    busy = found.requests > 0
    return float((found.late[busy] > (1 - share) * found.requests[busy]).mean()) if busy.any() else 0.0


def _worst(found: Outcome) -> float:
    late, asked = found.late, found.requests
    busy = asked > 0
    return 1.0 - float((late[busy] / asked[busy]).max()) if busy.any() else 1.0


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return dict.fromkeys(("mean", "p50", "p95", "p99"), 0.0)
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same figures with their mean and the half-width of its 95 % interval; None: one of them was none."""
    return {name: _joined([run[name] for run in runs]) for name in runs[0]}


def _joined(values: Sequence[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], Mapping):
        return {name: _joined([value[name] for value in values]) for name in values[0]}
    half = 0.0
    if len(values) > 1:
        half = T_95.get(len(values), 2.1) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return {"mean": float(np.mean(values)), "ci95": half}
