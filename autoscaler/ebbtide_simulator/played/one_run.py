"""One contender on one seed: its figures, and what it cost."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np

from ebbtide.pool.events import Decision
from ebbtide_autoscaler.core.plan.inputs import Memory, PolicyConfig, Snapshot
from ebbtide_simulator.policies.contenders import TURNED, knobs_of
from ebbtide_simulator.policies.knobs import Knobs
from ebbtide_simulator.run.bound import training_bound_s
from ebbtide_simulator.run.luck import luck
from ebbtide_simulator.run.run import Contender, Run
from ebbtide_simulator.run.score import figures
from ebbtide_simulator.scenes.casting import File, Given, policy_config, scene


@dataclass(frozen=True, slots=True)
class Played:
    """One run.

    Attributes:
        figures: see `score.figures`.
        course: slots by use and time.
        took_s: of CPU.
        decide_ms: of processor time, by decision, one of `CLOCKED`; no figure of the run, for those are equal for
            equal seeds.
        others: of foresight, what its other plans came to, each with `PLAN`'s figures.
    """

    figures: dict[str, Any]
    course: dict[str, tuple[int, ...]]
    took_s: float
    decide_ms: Mapping[str, float] = field(default_factory=dict)
    others: Sequence[Mapping[str, float]] = ()


PLAN = ("slo_attainment", "goodput_gpu_s", "work_done_gpu_s")
CLOCKED = 7  # one decision of so many: a process's clock costs as much as a decision of a pool that is quiet


class Clocked:
    """A contender, and how long some of its decisions take: the first one, and of ``CLOCKED`` one each."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._all_s, self._moving_s = list[float](), list[float]()
        self._turns = cycle([True] + [False] * (CLOCKED - 1))

    def __call__(
        self, now_s: float, snapshot: Snapshot, memory: Memory, config: PolicyConfig
    ) -> tuple[Decision, Memory]:
        """As the contender."""
        if not next(self._turns):
            return self._contender(now_s, snapshot, memory, config)
        began_s = time.process_time()
        found = self._contender(now_s, snapshot, memory, config)
        took_s = time.process_time() - began_s
        self._all_s.append(took_s)
        if found[0].moves:
            self._moving_s.append(took_s)
        return found

    def ms(self) -> dict[str, float]:
        """Milliseconds of all decisions, and of those that move something, where any was clocked."""
        return {
            f"{which}p{share}": 1000 * float(np.percentile(times, share))
            for which, times in (("", self._all_s), ("moving_", self._moving_s))
            for share in (50, 99)
            if times
        }


def play_one(file: File, inputs: Given, name: str, seed: int, knobs: Knobs | None = None) -> Played:
    """One contender on one seed; ``knobs``: others than those at which it is compared."""
    given = scene(file, inputs, seed)
    began_s = time.process_time()
    play = TURNED[name](given, policy_config(file, inputs), knobs_of(name) if knobs is None else knobs)
    clocked = Clocked(play.contender)
    found = play.outcome or Run(play.scene, clocked, play.config).outcome()
    return Played(
        figures(play.scene, found) | {"bound_gpu_s": training_bound_s(given), "luck": luck(given)},
        {use.value: counts for use, counts in found.course.items()},
        time.process_time() - began_s,
        clocked.ms(),
        tuple(_plan(figures(play.scene, other)) for other in play.others),
    )


def _plan(found: Mapping[str, float]) -> dict[str, float]:
    return {name: found[name] for name in PLAN}
