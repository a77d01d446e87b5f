"""What a worker gets into its environment before CUDA is initialised there."""

from collections.abc import Sequence

from ebbtide.client.messages import Lease, SlotRef
from ebbtide_train.worker.worker_metadata import WorkerMetadata

_NVML = ("GPU-", "MIG-")  # how NVML's own names begin; a logical GPU has a name that CUDA does not know


def environment(lease: Lease, rank: int, said: Sequence[WorkerMetadata]) -> dict[str, str]:
    """For the worker of ``rank``; ``said``: by all ranks, in order."""
    slot: SlotRef = lease.slots[rank]
    nodes = [slot.node for slot in lease.slots]
    found = {
        "CUDA_VISIBLE_DEVICES": slot.uuid if slot.uuid.startswith(_NVML) else str(slot.index),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which NVML and Ray number GPUs
        "EBBTIDE_JOB": lease.workload,
        "EBBTIDE_LEASE_EPOCH": str(lease.epoch),
        "EBBTIDE_SLOT": f"{slot.node}:{slot.index}",
        # as torchrun sets them, for libraries that look there
        "RANK": str(rank),
        "WORLD_SIZE": str(len(nodes)),
        "LOCAL_RANK": str(nodes[:rank].count(slot.node)),
        "LOCAL_WORLD_SIZE": str(nodes.count(slot.node)),
        "MASTER_ADDR": said[0].ip,
        "MASTER_PORT": str(said[0].port),
    }
    if len(set(nodes)) > 1 and said[rank].interface:
        # By default gloo takes the address that the host name resolves to, which is 127.0.1.1 on many machines.
        found["GLOO_SOCKET_IFNAME"] = found["NCCL_SOCKET_IFNAME"] = said[rank].interface
    return found
