"""Random courses of preemptions for a gang of the tiny job: drawn from a seed, driven without Ray, and judged.

The job has what makes exactness hard: dropout, tied weights, a learning-rate schedule, gradients summed over micro
batches, uneven shares of a global batch, and an order of samples that is shuffled anew in the midst of a step.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from ebbtide.client.messages import RankPhase, RankReport
from ebbtide_train.session.coordination.gate import Away
from ebbtide_train.session.loop.samples import sample_ids
from ebbtide_train.session.step_log import gang_lines, step_lines
from ebbtide_train.verification.control_run import GangPlan, run_rank
from ebbtide_train.verification.step_log_comparison import compare, final_steps
from tests.train_jobs import gangs

GLOBAL_BATCH = 7  # 97 samples: an epoch ends in the 14th step, and shares of two and three workers are uneven
DROPOUT = 0.2
APART = 3  # steps
PARKED = RankPhase.PARKED.value


@dataclass(frozen=True, slots=True)
class Course:
    """A job, whatever happens to it."""

    steps: int
    bucket_cap_mb: float = 25.0

    def plan(self, run_dir: Path, *, world: int, epoch: int = 1, **options: object) -> GangPlan:
        """One of its gangs."""
        return gangs.plan_of(
            run_dir,
            world=world,
            epoch=epoch,
            steps=self.steps,
            dropout=DROPOUT,
            global_batch=GLOBAL_BATCH,
            options={"bucket_cap_mb": self.bucket_cap_mb, "micro_batch_max": 2, **options},
        )

    def calm(self, run_dir: Path, *, world: int) -> Path:
        """The run that nobody disturbs."""
        gangs.run(self.plan(run_dir, world=world))
        return run_dir


def random_parks(random: Random, steps: int, count: int) -> dict[int, Away]:
    """So many parks of random lengths after random steps.

    Some steps apart where there are enough: the ranks agree beside the step, so one that is asked for while they come
    back from another may come to nothing.
    """
    apart = range(1, steps, APART)
    among = apart if len(apart) >= count else range(1, steps)
    return {step: Away(polls=random.randint(1, 4)) for step in sorted(random.sample(among, count))}


def parks_of(job: Path) -> int:
    """How often its first rank was parked, as it reported."""
    phases = [line.split()[0] for line in (job / "reports-1-0").read_text().splitlines()]
    return sum(now == PARKED and was != PARKED for was, now in pairwise(phases))


def must_equal(job: Path, calm: Path, *, world: int, steps: int) -> None:
    """Every loss and every sample of every rank, no step lost or repeated, and in the end the same bits everywhere."""
    found = compare(step_lines(job), step_lines(calm))
    assert (found.steps, found.losses_identical, found.samples_identical) == (steps, True, True), found
    assert len(step_lines(job)) == steps * world, "a step was lost or repeated"
    assert gangs.digests(job, world) == gangs.digests(calm, world)


def must_have_taken_every_sample_once(job: Path, *, steps: int) -> None:
    """At whatever numbers of workers: each step those samples that it takes at any other."""
    seen = final_steps(step_lines(job))
    assert list(seen) == list(range(steps))
    for step, one in seen.items():
        assert one.samples == tuple(sample_ids(step, seed=0, length=97, global_batch=GLOBAL_BATCH)), step


def lost_steps(job: Path) -> int:
    """As the gangs counted them."""
    return sum(line.lost_steps for line in gang_lines(job))


def inet_sockets(pid: int) -> list[str]:
    """TCP and UDP sockets that a process has open, as the kernel's tables have them; unix sockets do not count."""
    known: dict[str, str] = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            known[words[9]] = f"{table} {words[1]} -> {words[2]}"
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:  # it was closed while we looked
            continue
        if (match := re.fullmatch(r"socket:\[(\d+)\]", target)) and match[1] in known:
            found.append(known[match[1]])
    return found


class SocketsWhileParked:
    """An `Away.until` of rank 0 that waits until all ranks are parked, and notes what sockets each then has."""

    def __init__(self, run_dir: Path, world: int) -> None:
        self._run_dir, self._world = run_dir, world

    def __call__(self, report: RankReport) -> bool:
        """Whether all are parked; the file has a line for each socket of each rank."""
        assert report.phase is RankPhase.PARKED
        pids = [self._run_dir / f"parked-{rank}" for rank in range(1, self._world)]
        if not all(path.exists() for path in pids):
            return False
        everyone = [os.getpid(), *(int(path.read_text()) for path in pids)]
        found = [f"{pid} {socket}" for pid in everyone for socket in inet_sockets(pid)]
        (self._run_dir / "sockets-parked").write_text("\n".join(found))
        return True


def noting_main(plan: GangPlan, rank: int, wants: Mapping[int, Away]) -> None:
    """As `gangs.rank_main`; each rank says that it is parked, and what sockets it had while it ran."""
    gate = gangs.NotingGate(wants, lease=plan.settings(rank).lease, path=Path(plan.run_dir) / f"reports-{rank}")
    gate.report = _noting(gate.report, Path(plan.run_dir), rank)  # type: ignore[method-assign, assignment]
    run_rank(plan, rank, gate)


def _noting(report: Callable[[RankReport], None], run_dir: Path, rank: int) -> Callable[[RankReport], None]:
    def noted(one: RankReport) -> None:
        if one.phase is RankPhase.RUNNING and one.step == 1:
            (run_dir / f"sockets-running-{rank}").write_text("\n".join(inet_sockets(os.getpid())))
        report(one)
        if one.phase is RankPhase.PARKED and rank:
            (run_dir / f"parked-{rank}").write_text(str(os.getpid()))

    return noted
