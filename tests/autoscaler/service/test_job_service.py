"""A job that is larger than the pool: taken in if the pool can grow for it, and refused with both numbers if not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ebbtide.config.sections.pool_section import PoolSection
from ebbtide_autoscaler.service.job_service import JobService
from tests.autoscaler.closed_loop import a_job
from tests.builders.arbiter import FakeLoop
from tests.builders.policy import TRAIN, a_pool


def test_a_job_may_need_all_the_nodes_that_the_pool_may_have_and_no_more() -> None:
    loop = FakeLoop()
    loop.published.world = replace(loop.published.world, state=a_pool(nodes={"n0": 2}))
    pool = PoolSection(name="p", ray_address="h:1", nodes_max=3, node_gpus=4)
    policy = SimpleNamespace(restart_cost_s=20.0)
    loop.file.config = SimpleNamespace(pool=pool, policy=policy, teams=())
    desk = JobService(loop.published, loop.inbox, loop.file, loop.ledger)
    with pytest.raises(ValueError, match="needs 11 slots at least; the pool has 2, and 10 with all the nodes that it"):
        desk.register(a_job(workers_min=11, workers_max=11), "i", restored=False)
    assert TRAIN not in loop.published.state.jobs
    assert desk.register(a_job(workers_min=10, workers_max=10), "i", restored=False) is not None
    assert TRAIN in loop.published.state.jobs
