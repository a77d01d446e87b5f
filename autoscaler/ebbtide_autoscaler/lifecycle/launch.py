"""Starting the arbiter on a cluster, and finding it again."""

from typing import Any

import ray

from ebbtide.client.arbiter_link import ARBITER_NAME, NAMESPACE
from ebbtide_autoscaler.actor.arbiter import Arbiter

THREADS = 64  # method calls at once; each takes microseconds but for apply_config and stop


def start_arbiter(pool: str, shared_dir: str, lock_dir: str) -> Any:
    """The handle of the cluster's arbiter, started on the head node if there is none."""
    return (
        ray.remote(Arbiter)
        .options(
            name=ARBITER_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources={"node:__internal_head__": 0.001},
            max_restarts=-1,
            max_task_retries=0,  # Ray would replay the very call that killed it
            max_concurrency=THREADS,
            enable_task_events=False,  # 50 reports a second: they would be all that Ray's task table remembers
        )
        .remote(pool, shared_dir, lock_dir)
    )
