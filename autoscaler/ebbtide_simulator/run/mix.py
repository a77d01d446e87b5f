"""What the jobs of a pool are like, beside their GPUs and hours, of which traces say all that they say. Pure.

A trace's jobs would all be alike: a gang of a fixed size that may always be put aside. Of a real pool's some can do
with more or fewer workers (Lyra, EuroSys'23, plays with a fifth), some must not be disturbed, and some matter more.
Which ones is drawn from the seed, job by job as they come: the same for every contender.

An elastic job has at least the GPUs that its trace says and at most some times as many; its work stays what it was. So
it can never be slower than its trace had it, and who shrinks it takes back what was extra.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ebbtide.pool.spec import WorkloadClass
from ebbtide_simulator.run.run import job_spec
from ebbtide_simulator.traffic.draws import Job

KINDS = 3  # figures that are drawn for each job


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Shares of jobs, by their number.

    Attributes:
        elastic: that can do with more workers than they ask for.
        elastic_times: so many times as many at most.
        semi_preemptible: of the elastic ones, those that never go below what they ask for; the others may be put aside.
        non_preemptible: of the others, those that are never asked to step aside.
        priorities: by priority; together 1.
    """

    elastic: float = 0.0
    elastic_times: float = 2.0
    semi_preemptible: float = 0.0
    non_preemptible: float = 0.0
    priorities: Mapping[int, float] = field(default_factory=lambda: {0: 1.0})


ALIKE = Mix()
"""Every job as its trace has it, and preemptible."""


def cast(jobs: Sequence[Job], mix: Mix, seed: int, *, gpus_max: int) -> tuple[Job, ...]:
    """What each job is like.

    Args:
        jobs: by submission.
        gpus_max: of the largest gang that can ever run.
    """
    if mix == ALIKE:
        return tuple(jobs)
    drawn = np.random.default_rng(seed).random((len(jobs), KINDS))
    priorities, shares = list(mix.priorities), np.cumsum(list(mix.priorities.values()))
    found = []
    for number, (one, (kind, class_, rank)) in enumerate(zip(jobs, drawn, strict=True)):
        most = min(gpus_max, int(one.workers_min * mix.elastic_times)) if kind < mix.elastic else one.workers_max
        elastic = most > one.workers_min
        job = replace(one, workers_max=most) if elastic else one
        held = (mix.semi_preemptible if elastic else mix.non_preemptible) > class_
        kept = WorkloadClass.SEMI_PREEMPTIBLE if elastic else WorkloadClass.NON_PREEMPTIBLE
        spec = replace(
            job_spec(number, job),
            workload_class=kept if held else WorkloadClass.PREEMPTIBLE,
            priority=priorities[min(int(np.searchsorted(shares, rank, side="right")), len(priorities) - 1)],
        )
        found.append(replace(job, spec=spec))
    return tuple(found)
