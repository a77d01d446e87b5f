"""What a session's processes get as their environment. Pure."""

from collections.abc import Mapping

from ebbtide.client.messages import Lease, SlotRef

_NOT_THEIRS = ("RAY_", "_RAY", "EBBTIDE_", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_")
"""Ray's hold addresses and the token of the cluster; a session is a stranger to it."""
_OF_A_GANG = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
_NVML = ("GPU-", "MIG-")  # how NVML's own names begin; a logical GPU has a name that CUDA does not know


def base_env(worker: Mapping[str, str]) -> dict[str, str]:
    """That of the worker which keeps it, without what is only the worker's."""
    return {name: text for name, text in worker.items() if not name.startswith(_NOT_THEIRS) and name not in _OF_A_GANG}


def slot_env(lease: Lease) -> dict[str, str]:
    """Its place: the same words as a training worker's."""
    slot = lease.slots[0]
    return {
        "CUDA_VISIBLE_DEVICES": slot.uuid if is_gpu(slot) else str(slot.index),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which NVML and Ray number GPUs
        "EBBTIDE_SESSION": lease.workload,
        "EBBTIDE_SLOT": f"{slot.node}:{slot.index}",
    }


def gpu_of(lease: Lease) -> str:
    """The uuid of its GPU; "": it is a logical one."""
    slot = lease.slots[0]
    return slot.uuid if is_gpu(slot) else ""


def is_gpu(slot: SlotRef) -> bool:
    """Whether the slot is a real GPU and no logical one."""
    return slot.uuid.startswith(_NVML)
