"""What a node that `up` starts on a machine is counted as: slots, CPUs and, without GPUs, each slot's share. Pure."""

import math
from dataclasses import dataclass
from itertools import chain

from ebbtide.client.slot_share import SlotShare
from ebbtide.config.pool_file import PoolFile
from ebbtide.pool.plural import many

GIB = 1 << 30
SLOT_BYTES = 3 * GIB  # a replica with a tiny model: 1.1 GiB of engine beside its KV cache, 0.9 GiB of actor (vLLM 0.29)
POOL_BYTES = 2 * GIB  # Ray's own processes, arbiter, agent and gateway take 1.7 GiB; the rest is object store
SLOTS_MAX = 8  # as the largest usual GPU node; more replicas on one CPU only wait for each other
SLOTS_MIN = 2  # by cores: a worker beside a replica, even on one core
FREE_CPUS = 4  # for what else asks Ray for a CPU: drivers, notebooks, tasks of the author's own


@dataclass(frozen=True, slots=True)
class Machine:
    """What `up` finds. ``memory_bytes`` is free now (the container's where that has less), None if not known."""

    gpus: int
    cores: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What the node is counted as.

    Attributes:
        slots: GPUs, logical ones on a machine without any.
        cpus: that Ray counts; they bound nothing, the cores are shared by all.
        share: None: the slots are GPUs.
        why: the numbers behind logical slots, for one line of output.
    """

    slots: int
    cpus: int
    share: SlotShare | None = None
    why: str = ""


def node_size(config: PoolFile, machine: Machine) -> NodeSize:
    """The size of a node on ``machine``; numbers of the file win."""
    wanted, cores = config.pool.slots, max(1, machine.cores)
    if machine.gpus:
        slots = machine.gpus if wanted == "all" else wanted
        return NodeSize(slots, _cpus(config, cores, slots))
    free = machine.memory_bytes
    for_slots = None if free is None else max(0, free - POOL_BYTES)
    by_cores = min(SLOTS_MAX, max(SLOTS_MIN, cores))
    counted = by_cores if for_slots is None else min(by_cores, max(1, for_slots // SLOT_BYTES))
    slots = counted if wanted == "all" else wanted
    share = SlotShare(SLOT_BYTES if for_slots is None else for_slots // slots, max(1, cores // slots))
    memory = "free memory not known" if free is None else f"{free / GIB:.1f} GiB of memory free"
    return NodeSize(slots, _cpus(config, cores, slots), share, f"{many(cores, 'core')}, {memory}")


def _cpus(config: PoolFile, cores: int, slots: int) -> int:
    # Ray places by these numbers: with fewer than all slots' occupants ask for, a granted gang would wait for ever.
    return config.pool.num_cpus or max(cores, math.ceil(slots * _cpus_per_slot(config)) + FREE_CPUS)


def _cpus_per_slot(config: PoolFile) -> float:
    """The most that any of the file's workloads asks for beside one slot; at least one CPU, their default."""
    replicas = (endpoint.cpus_per_replica / endpoint.gpus_per_replica for endpoint in config.endpoints)
    workers = (job.cpus_per_worker for job in config.jobs)
    return max(chain((1.0,), replicas, workers))


def machine_faults(config: PoolFile, machine: Machine, size: NodeSize) -> list[str]:
    """What the file always needs and this machine can never give it."""
    if machine.gpus and size.slots > machine.gpus:
        return [f"pool.slots is {size.slots}, and this machine has {many(machine.gpus, 'GPU')}"]
    here = (
        f"this machine has {many(size.slots, 'GPU')}"
        if size.share is None
        else f"this machine has no GPU and counts as {many(size.slots, 'logical slot')} ({size.why}); "
        f"pool.slots sets another number"
    )
    return [f"{fault}: {here}" for fault in (config.beyond(size.slots) if config.pool.slots == "all" else ())]


def logical_slots_line(config: PoolFile, size: NodeSize) -> str:
    """What is said when a pool starts on a machine without GPUs; empty on one that has some."""
    if size.share is None:
        return ""
    source = f"{size.why}; pool.slots sets another number" if config.pool.slots == "all" else "pool.slots"
    return f"no GPU here: {many(size.slots, 'logical slot')} ({source})"
