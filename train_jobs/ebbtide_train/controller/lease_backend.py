"""Train's backend for leased gangs: it gives each worker its place, before anything else runs in it.

Train's own Torch backend forms a process group here; ours leaves that to the session. So neither driver nor
controller imports torch.
"""

from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from ebbtide_train.worker.job_plan import Place, take_place
from ebbtide_train.worker.worker_env import environment
from ebbtide_train.worker.worker_metadata import worker_metadata


class LeaseBackend(Backend):  # type: ignore[misc] # Ray is not typed for us
    """Gives every worker its place. Forms no process group and takes none down: the session does."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Called by Train when all workers are there, before the train function runs in them.

        ``worker_group`` is a `LeasedWorkerGroup`.
        """
        lease = worker_group.gang.lease
        assert lease is not None and len(lease.slots) == len(worker_group)
        ranks = range(len(worker_group))
        said = ray.get([worker_group.execute_single_async(rank, worker_metadata) for rank in ranks])
        worker_group.gang.introduced(said)
        ray.get(
            [
                worker_group.execute_single_async(rank, take_place, Place(rank, lease), environment(lease, rank, said))
                for rank in ranks
            ]
        )


class LeaseBackendConfig(BackendConfig):  # type: ignore[misc] # Ray is not typed for us
    """Names the backend; nothing in it can be configured."""

    @property
    def backend_cls(self) -> type[Backend]:
        """Train makes one of it in the controller."""
        return LeaseBackend
