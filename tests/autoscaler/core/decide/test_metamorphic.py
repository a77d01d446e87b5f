"""Other names, times and orders change no decision; more GPUs never make users wait longer, but for seeds' noise."""

from itertools import pairwise
from random import Random
from statistics import fmean, stdev

import pytest

from ebbtide_autoscaler.core.decide.policy import decide
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.run.run import Run
from tests.autoscaler.chaos import Chaos
from tests.autoscaler.metamorphic import Collector, differences
from tests.autoscaler.simulator.small_scenes import jobs_of, scene_of, tide

SEEDS = 4


@pytest.mark.parametrize("seed", [0, 2, 4, 5, 7])
def test_names_times_and_orders_change_no_decision(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.loop.referee = collector = Collector(30)
    chaos.run(40.0)
    assert len(collector.taken) >= 3, "there is something to compare"
    assert [found for one in collector.taken for found in differences(one, Random(seed))] == []


def test_more_gpus_never_make_users_wait_longer() -> None:
    """Share of requests in time, in pools of one node and more, by seeds of load and starts."""

    def in_time(nodes: int, seed: int) -> float:
        jobs = jobs_of(12, every_s=300.0, workers=2, hours=0.5)
        scene = scene_of(tide(1.0, 0.3, 6.0, seed), jobs, nodes=nodes, seed=seed)
        found = Run(scene, decide, PolicyConfig()).outcome()
        return 1.0 - float(found.late.sum() / found.requests.sum())

    shares = [[in_time(nodes, seed) for seed in range(SEEDS)] for nodes in (1, 2, 3, 4)]
    for fewer, more in pairwise(shares):
        assert fmean(more) >= fmean(fewer) - max(0.001, stdev(fewer))
    assert fmean(shares[0]) < fmean(shares[-1]), "a pool of one node is too small, else this says nothing"
