"""Which worker process has which logical GPU: asked of the node's raylet, for people who find a slot taken.

Ray has no public call for it (2.60): its state API gives no index and needs the dashboard. What is used here is
asserted by ``tests/integration/test_ray_contract.py``.

Not guaranteed: a GPU that a placement group holds with nobody inside is not found here, nor one on a lease that
nobody remembers (``forgotten_leases``).
"""

from collections.abc import Sequence
from typing import Any

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

from ebbtide.system.process import command_of


def ray_workers(address: str, port: int, *, timeout_s: float) -> Sequence[Any] | None:
    """What the raylet that listens there says of each of its worker processes.

    None when it does not answer within ``timeout_s`` seconds.
    """
    host = f"[{address}]" if ":" in address else address
    channel = init_grpc_channel(f"{host}:{port}")
    try:
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        request = node_manager_pb2.GetNodeStatsRequest(include_memory_info=False)
        reply = stub.GetNodeStats(request, timeout=timeout_s)
    except grpc.RpcError:
        return None
    finally:
        channel.close()
    workers: Sequence[Any] = reply.core_workers_stats
    return workers


def gpu_users(workers: Sequence[Any]) -> dict[int, str]:
    """Who has each taken logical GPU of this node, by index, of its raylet's answer about its workers."""
    found: dict[int, str] = {}
    for worker in workers:
        for name, resource in worker.used_resources.items():
            if not is_gpu(name):
                continue
            for slot in resource.resource_slots:
                what = command_of(worker.pid) or "a Ray worker"
                found[int(slot.slot)] = f"{what} (pid {worker.pid}, Ray job {worker.job_id.hex()})"
    return found


def is_gpu(resource: str) -> bool:
    """Whether that is Ray's name of a logical GPU; inside a placement group it is called "GPU_group_..."."""
    return resource.partition("_")[0] == "GPU"
