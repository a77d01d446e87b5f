"""Who is compared: our policy, and what teams do instead. Each is a name, and how it plays a scene.

A contender that is not ours uses the same code with other settings wherever that says what it does: a static partition
is our policy with as many replicas as the partition holds, no more and no fewer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ebbtide_autoscaler.policy import decide
from ebbtide_autoscaler.signals import PolicyConfig
from ebbtide_autoscaler.simulate.draws import replicas_needed
from ebbtide_autoscaler.simulate.run import Contender, Scene, Service, fixed
from ebbtide_autoscaler.simulate.traces import Array

SPARE = 1.1  # a partition is made ten per cent larger than the highest demand that it is made for


@dataclass(frozen=True, slots=True)
class Play:
    """How a contender plays a scene."""

    scene: Scene
    contender: Contender
    config: PolicyConfig


def _ours(scene: Scene, config: PolicyConfig) -> Play:
    return Play(scene, decide, config)


def _unforeseeing(scene: Scene, config: PolicyConfig) -> Play:
    """Ours without its forecast: it goes by what is there."""
    return Play(scene, decide, replace(config, forecast_share=0.0))


def _static(sized: Callable[[Array], float]) -> Callable[[Scene, PolicyConfig], Play]:
    def play(scene: Scene, config: PolicyConfig) -> Play:
        partitioned = replace(scene, services=tuple(map(partition, scene.services)))
        return Play(partitioned, decide, replace(config, forecast_share=0.0))

    def partition(one: Service) -> Service:
        needed = replicas_needed(one.load, one.engine)
        return replace(one, spec=fixed(one.spec, max(1, int(np.ceil(sized(needed))))))

    return play


CONTENDERS: Mapping[str, Callable[[Scene, PolicyConfig], Play]] = {
    "ebbtide": _ours,
    "ebbtide-reactive": _unforeseeing,
    "static-p100": _static(lambda needed: float(needed.max()) * SPARE),
    "static-p95": _static(lambda needed: float(np.percentile(needed, 95))),
    "static-mean-2sd": _static(lambda needed: float(needed.mean() + 2 * needed.std())),
}
