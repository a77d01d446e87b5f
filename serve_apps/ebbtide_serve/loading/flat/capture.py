"""Keeping a rank's parameters for their flat form, between a load in checkpoint order and the time to publish them.

Engines repack parameters right after loading (vLLM's CPU build even drops them), so the bytes must be kept at that
very moment: a copy to host memory, the only part of all this that a start waits for (a memory copy's time, once per
model and cluster). Hashing and writing come later, when the replica serves.

Bounded: no copy is made that would take more than a quarter of the host memory that is free, shared by the ranks of
the node. Memory is given back as soon as the file is written, or not wanted.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import nn

from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import FileEntry, Kind
from ebbtide.storage.safetensors.file_layout import ContainerPlan, filling, from_buffers
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.flat_file import flat_memory, plan_flat
from ebbtide_serve.loading.flat.flat_key import FlatKey
from ebbtide_serve.loading.flat.layout import Layout, buffers_of
from ebbtide_serve.loading.reading.process_store import ProcessStore

MEMORY_SHARE = 0.25  # of what is free: the rest is for the engine, other replicas and parked jobs
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Damage:
    """Where an object was found damaged.

    Attributes:
        object: its id.
        file: of the object.
        offset: byte in the file; None if it is not known.
    """

    object: ObjectId
    file: str
    offset: int | None


@dataclass(frozen=True)
class Capture:
    """One rank's parameters in host memory.

    Attributes:
        key: what all ranks have in common.
        tag: of the ref under which this rank will look for it.
        replaces: a damaged object with the same; None if there is none.
    """

    key: FlatKey
    rank: int
    tag: str
    plan: ContainerPlan
    memory: dict[str, torch.Tensor]
    replaces: Damage | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self.key.file_name(self.rank)


def capture(
    model: nn.Module, layout: Layout, buffers: tuple[str, ...], key: FlatKey, rank: int, *, free_bytes: int
) -> Capture:
    """Copy parameters, and the buffers that loading filled, to host memory.

    Args:
        free_bytes: how much memory the copy may take.

    Raises:
        FlatUnusable: they do not fit, or cannot be stored.
    """
    found = buffers_of(model, buffers)
    plan = plan_flat(layout, found)
    if plan.file_bytes > free_bytes:
        raise FlatUnusable(
            f"keeping {plan.file_bytes / 1e9:.2f} GB of parameters until they are written would take too much memory: "
            f"{free_bytes / 1e9:.2f} GB may be taken"
        )
    memory = {name: data.to("cpu", copy=True) for name, data in flat_memory(layout, found).items()}
    return Capture(key, rank, key.tag(rank, layout.digest), plan, memory)


def memory_for_capture(ranks_here: int) -> int:
    """Bytes of host memory that one of so many ranks on this node may take."""
    return int(MEMORY_SHARE * _free_bytes() / max(ranks_here, 1))


def stage(held: Capture, store: ProcessStore, attempt: str) -> FileEntry:
    """Write a rank's file into the work directory of a publication.

    Raises:
        NotPublished: the publication has ended.
        StorageError: it cannot be written.
    """
    staging = store.background.join(attempt, Kind.FLAT, held.key.as_manifest_key())
    give = filling(held.plan, from_buffers({name: data.numpy().data for name, data in held.memory.items()}))
    return staging.write(held.name, held.plan.file_bytes, give)


def _free_bytes() -> int:
    """Free memory, within the limit of the container if there is one."""
    free = psutil.virtual_memory().available
    try:
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no limit ("max"), or no cgroup of version 2
        return free
    return min(free, max(0, limit - max(0, used - _cached_bytes())))


def _cached_bytes() -> int:
    """What the container's ``memory.current`` counts, and the kernel gives up at once: file pages not lately used."""
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        return int(dict(line.split(" ", 1) for line in lines)["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0
