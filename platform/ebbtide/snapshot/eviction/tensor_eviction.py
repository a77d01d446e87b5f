"""Evicting tensors in place: the bytes go to a host pool, the storages shrink to nothing, every object stays.

``resize_(0)`` on a storage gives its memory back while all tensors and views over it stay valid objects; growing it
again and copying the bytes back makes them whole. No allocator trick, no driver support, bit for bit.

Three phases: `plan` checks every storage and touches none; `copy_out` copies and touches none either; `Evicted.free`
then only does what cannot be refused. So several processes can agree before any of them gives something up. A CPU
tensor counts as device memory on a machine without GPUs.

Not guaranteed: tensors that nobody registered stay where they are; captured CUDA graphs hold addresses and must not
be used across an eviction; nobody may touch a tracked tensor while it is away.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ebbtide.snapshot.errors import NotEvictable, PoolTooSmall
from ebbtide.snapshot.eviction import host_copy

_ALIGN_BYTES = 64  # a cache line; every dtype's size divides it, so that pool views of any dtype are aligned


@dataclass(frozen=True, slots=True)
class _Place:
    """One storage and where its bytes lie in the pool."""

    storage: torch.UntypedStorage = field(repr=False)  # torch would print every byte
    name: str
    offset_bytes: int
    size_bytes: int


def tensors_in(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor inside nested mappings, lists and tuples, with a name that says where it was."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors_in(f"{name}.{index}", item)


def _identity(tensor: torch.Tensor) -> int:
    """Equal for tensors over one storage; stable while the storage lives, also at size zero."""
    return int(tensor.untyped_storage()._cdata)


def _refusal(name: str, tensor: torch.Tensor) -> str | None:
    """Why this tensor cannot be evicted in place, with the remedy; None if it can."""
    if is_traceable_wrapper_subclass(tensor):  # DTensor (FSDP2, tensor parallel), quantized weights of torchao, ...
        kind = type(tensor).__name__
        return f"{name} is a {kind}, whose bytes lie in tensors inside it; stop and restart this job instead"
    if tensor.layout is not torch.strided:
        return f"{name} is {tensor.layout}, only strided tensors can be evicted; stop and restart this job instead"
    if tensor.grad is not None:
        return f"{name} still has a gradient; call optimizer.zero_grad(set_to_none=True) at the end of each step"
    storage = tensor.untyped_storage()
    if storage.device.type == "cpu" and tensor.is_pinned():
        return (
            f"{name} is in pinned memory, which stays pinned however small it is made; keep pinned buffers out of what "
            "you register, or stop and restart this job instead"
        )
    if storage.device.type == "cpu" and storage.is_shared():
        return f"{name} lies in shared memory; clone() it once after loading"
    if getattr(storage, "filename", None) is not None:
        return f"{name} is mapped from the file {storage.filename}; clone() it once after loading"
    if not storage.resizable():
        others = "a file, an array, its own .numpy()"
        return f"{name} lies in memory that it shares with another owner ({others}); clone() it once"
    return None


@dataclass(frozen=True, slots=True)
class Plan:
    """Checked storages with their places in a pool; made by `plan`."""

    by_storage: Mapping[int, _Place]
    size_bytes: int  # of the pool that it needs
    device: torch.device | None

    @property
    def places(self) -> tuple[_Place, ...]:
        """Each storage once, in the order of their places."""
        return tuple(self.by_storage.values())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `view` knows what it held."""
        return not tensor.is_conj() and not tensor.is_neg() and _identity(tensor) in self.by_storage

    def view(self, tensor: torch.Tensor, payload: torch.Tensor) -> torch.Tensor:
        """What ``tensor`` held when its storage was copied to ``payload``: read it, do not write it.

        Raises:
            KeyError: its storage is not of this plan, or it is a conjugate or negative view, which its storage does
                not tell.
        """
        if not self.holds(tensor):
            raise KeyError("it was not evicted")
        place = self.by_storage[_identity(tensor)]
        raw = payload[place.offset_bytes : place.offset_bytes + place.size_bytes]
        flat = raw.view(tensor.dtype)
        return flat.as_strided(tensor.size(), tensor.stride(), flat.storage_offset() + tensor.storage_offset())


def plan(named: Iterable[tuple[str, torch.Tensor]]) -> Plan:
    """Check all tensors and lay out their storages, each once however many tensors share it.

    Raises:
        NotEvictable: one of them cannot leave in place. Nothing was touched.
    """
    places: dict[int, _Place] = {}
    offset = 0
    device: torch.device | None = None
    for name, tensor in named:
        if (why := _refusal(name, tensor)) is not None:
            raise NotEvictable(why)
        key = _identity(tensor)
        if key in places:
            continue
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        places[key] = _Place(storage, name, offset, size)
        offset += -(-size // _ALIGN_BYTES) * _ALIGN_BYTES
        if storage.device.type != "cpu":
            device = storage.device
    return Plan(places, offset, device)


class Stage(Enum):
    """Where the bytes of a plan are."""

    COPIED = "copied"  # in the pool, and still on the device
    AWAY = "away"  # in the pool only: nobody may touch a tensor of the plan
    BACK = "back"  # on the device again; the pool's copy is as it was


EDGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.COPIED: frozenset({Stage.AWAY}),
    Stage.AWAY: frozenset({Stage.BACK}),
    Stage.BACK: frozenset(),
}


class Evicted:
    """Storages of which the pool has a copy; made by `copy_out`. The pool must stay as it is until they are back."""

    def __init__(self, plan: Plan, payload: torch.Tensor, threads: int) -> None:
        self.plan = plan
        self.stage = Stage.COPIED
        self._payload, self._threads = payload, threads

    @property
    def size_bytes(self) -> int:
        """Bytes that left the device, or can."""
        return sum(place.size_bytes for place in self.plan.places)

    def in_pool(self, tensor: torch.Tensor) -> torch.Tensor:
        """What ``tensor`` held, as a CPU tensor over the pool's memory; see `Plan.view`."""
        return self.plan.view(tensor, self._payload)

    def free(self) -> None:
        """Shrink every storage to nothing: the device memory is free when this returns. Cannot be refused."""
        self._go(Stage.AWAY)
        discard(self.plan)

    def restore(self) -> None:
        """Grow every storage again and copy its bytes back.

        Raises:
            RuntimeError: the device has no room (torch's own). The pool still has everything.
        """
        host_copy.copy_all(list(zip(_grown(self.plan), _pieces(self.plan, self._payload), strict=True)), self._threads)
        _wait_for(self.plan.device)
        self._go(Stage.BACK)

    def _go(self, stage: Stage) -> None:
        if stage not in EDGES[self.stage]:
            raise ValueError(f"evicted storages that are {self.stage.value} cannot become {stage.value}")
        self.stage = stage


class Pool(Protocol):
    """Host memory: an own `HostPool`, or a region that was lent."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def bytes(self) -> torch.Tensor: ...


def copy_out(plan: Plan, pool: Pool, *, threads: int = 1) -> Evicted:
    """Copy every storage of the plan to the pool, and free none: that is for `Evicted.free`.

    Args:
        plan: made just now.
        pool: as large as the plan at least.
        threads: copy so many parts at once, also on the way back; for memory of a CPU.

    Raises:
        PoolTooSmall: the pool cannot hold the plan. Nothing was touched.
    """
    if pool.size_bytes < plan.size_bytes:
        raise PoolTooSmall(f"the host pool has {pool.size_bytes} bytes, the tracked state needs {plan.size_bytes}")
    payload = pool.bytes
    storages = [_as_bytes(place.storage) for place in plan.places]
    host_copy.copy_all(list(zip(_pieces(plan, payload), storages, strict=True)), threads)
    _wait_for(plan.device)  # a storage may shrink only when its bytes have arrived
    return Evicted(plan, payload, threads)


def evict(plan: Plan, pool: Pool, *, threads: int = 1) -> Evicted:
    """Copy every storage of the plan to the pool, then shrink it to nothing; as `copy_out`.

    Raises:
        PoolTooSmall: the pool cannot hold the plan. Nothing was touched.
    """
    evicted = copy_out(plan, pool, threads=threads)
    evicted.free()
    return evicted


def discard(plan: Plan) -> None:
    """Shrink every storage to nothing without keeping its bytes: for a process that leaves its slot for good."""
    for place in plan.places:
        place.storage.resize_(0)
    if plan.device is not None:
        torch.cuda.empty_cache()


def _grown(plan: Plan) -> list[torch.Tensor]:
    """All storages at their size again, as bytes."""
    for place in plan.places:
        place.storage.resize_(place.size_bytes)
    grown = [_as_bytes(place.storage) for place in plan.places]
    host_copy.ask_for_huge_pages(grown)
    return grown


def _pieces(plan: Plan, payload: torch.Tensor) -> list[torch.Tensor]:
    """The payload's part of each place."""
    return [payload[place.offset_bytes : place.offset_bytes + place.size_bytes] for place in plan.places]


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _wait_for(device: torch.device | None) -> None:
    if device is not None:
        torch.cuda.synchronize(device)
