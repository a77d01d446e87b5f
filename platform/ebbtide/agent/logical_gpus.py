"""Which worker process has which logical GPU: asked of the node's raylet, for people who find a slot taken.

Ray has no public call for it (2.60): its state API gives no index and needs the dashboard. What is used here is
asserted by ``tests/integration/test_ray_contract.py``.

Not guaranteed: a GPU that a placement group holds with nobody inside is not found here.
"""

from typing import Any

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

from ebbtide.agent.process import command_of


def gpu_users(address: str, port: int, *, timeout_s: float) -> dict[int, str]:
    """Who has each taken logical GPU of the node whose raylet listens there; to be called on that node.

    Empty when the raylet does not answer within ``timeout_s`` seconds.
    """
    host = f"[{address}]" if ":" in address else address
    channel = init_grpc_channel(f"{host}:{port}")
    try:
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        request = node_manager_pb2.GetNodeStatsRequest(include_memory_info=False)
        reply = stub.GetNodeStats(request, timeout=timeout_s)
    except grpc.RpcError:
        return {}
    finally:
        channel.close()
    return users_of(reply.core_workers_stats)


def users_of(workers: Any) -> dict[int, str]:
    """The words for each GPU index, of a raylet's answer about its workers."""
    found: dict[int, str] = {}
    for worker in workers:
        for name, resource in worker.used_resources.items():
            if name.partition("_")[0] != "GPU":
                continue  # inside a placement group it is called "GPU_group_..."
            for slot in resource.resource_slots:
                what = command_of(worker.pid) or "a Ray worker"
                found[int(slot.slot)] = f"{what} (pid {worker.pid}, Ray job {worker.job_id.hex()})"
    return found
