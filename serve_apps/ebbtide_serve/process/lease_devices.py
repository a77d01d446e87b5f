"""What a replica makes of its lease: its GPUs in order, and whether their slot locks are free again."""

import asyncio
import time
from dataclasses import replace

from ebbtide.agent.slot_locks.slot_lock import probe
from ebbtide.client.messages import SlotRef
from ebbtide_serve.errors import NotGranted
from ebbtide_serve.process.lease_env import EngineLease


def in_device_order(lease: EngineLease, node: str, gpu_ids: tuple[int, ...]) -> EngineLease:
    """The lease with its slots in the order in which this process sees its GPUs (local rank ``i`` has the i-th).

    Raises:
        NotGranted: Ray put us elsewhere than the arbiter granted: we are a stranger there and must leave.
    """
    by_index: dict[int, SlotRef] = {slot.index: slot for slot in lease.lease.slots if slot.node == node}
    if len(by_index) != len(lease.lease.slots) or set(by_index) != set(gpu_ids):
        raise NotGranted(f"{lease.lease.workload} was granted {lease.lease.slots} but sits on {node}:{gpu_ids}")
    slots = tuple(by_index[index] for index in gpu_ids)
    return replace(lease, lease=replace(lease.lease, slots=slots))


def all_of(lease: EngineLease, node: str) -> tuple[int, ...]:
    """The indices of a lease's GPUs on ``node``, for a replica that Ray gives none: the lease alone says which."""
    return tuple(sorted(slot.index for slot in lease.lease.slots if slot.node == node))


def visible(lease: EngineLease) -> str:
    """CUDA_VISIBLE_DEVICES for exactly these GPUs."""
    return ",".join(slot.uuid if slot.uuid.startswith("GPU-") else str(slot.index) for slot in lease.lease.slots)


async def locks_gone(lease: EngineLease, timeout_s: float) -> bool:
    """Wait until every slot lock of ``lease`` is free; False if one is still held after ``timeout_s`` seconds."""
    deadline_s = time.monotonic() + timeout_s
    while any(probe(lease.lock_dir, slot) is not None for slot in lease.lease.slots):
        if time.monotonic() >= deadline_s:
            return False
        await asyncio.sleep(0.02)
    return True
