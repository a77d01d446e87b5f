"""A copy of a state in host memory, so that it can be written while training goes on with the original.

The memory comes from arenas that live as long as the process: touched once, and used again for the next copy, which
then allocates nothing. (The first touch of memory can cost more than writing it out: docs/measured.md, "What the design
rests on".) It goes back by itself when the last tensor in it is gone. Tensors that are the same memory stay so in the
copy.

Not guaranteed: that a state which is changed by another thread meanwhile is copied as of one moment.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from ebbtide.storage.errors import Refused
from ebbtide.storage.memory.arena_pool import Arenas

ALIGNMENT_BYTES = 64  # of each tensor: what vector loads want, and more than any element needs


@dataclass(slots=True)
class Staged:
    """A copy.

    Attributes:
        state: of the form of the original, tensors in host memory; sharded ones are sharded in the same way.
        size_bytes: of its tensors.
    """

    state: dict[str, Any]
    size_bytes: int

    def release(self) -> None:
        """Let go of it, so that its memory can be used again."""
        self.state = {}


class HostCopies:
    """Makes copies; one for a process."""

    def __init__(self, arenas: Arenas) -> None:
        """``arenas``: where the memory comes from; they may be registered for a GPU, and have a limit."""
        self._arenas = arenas

    def stage(self, state: Mapping[str, Any]) -> Staged:
        """Copy a state.

        Args:
            state: nested dicts, lists and tuples of tensors and plain data. Of objects with a ``state_dict`` right
                below the top, that is taken.

        Raises:
            MemoryError: there is no memory for it, or no more is allowed.
            Refused: a tensor cannot be copied to the host.
        """
        plain = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state.items()}
        copies = _Copies()
        for name, tensor in _tensors("", plain):
            copies.plan(name, tensor)
        if copies.size_bytes:
            copies.fill(self._arenas.lend(copies.size_bytes))
        made = copies.rebuild(plain)
        assert isinstance(made, dict)
        return Staged(made, copies.size_bytes)


@dataclass(slots=True)
class _Planned:
    source: torch.Tensor
    at: int
    copy: torch.Tensor | None = None


@dataclass(slots=True)
class _Copies:
    size_bytes: int = 0
    _by_memory: dict[tuple[object, ...], _Planned] = field(default_factory=dict)
    _by_id: dict[int, tuple[torch.Tensor, _Planned]] = field(default_factory=dict)  # holds the tensor: ids are reused

    def plan(self, name: str, tensor: torch.Tensor) -> None:
        if id(tensor) in self._by_id:
            return
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        if local.layout is not torch.strided or local.is_quantized or local.device.type == "meta":
            raise Refused(f"tensor {name!r} cannot be copied: it is not dense, or has no values")
        bits = local.is_conj(), local.is_neg()
        memory = local.device, local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), bits
        planned = self._by_memory.get(memory) if local.numel() else None
        if planned is None:
            planned = self._by_memory[memory] = _Planned(local, self.size_bytes)
            self.size_bytes += -(-local.numel() * local.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._by_id[id(tensor)] = tensor, planned

    def fill(self, memory: memoryview) -> None:
        devices = set()
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        for planned in self._by_memory.values():
            source = planned.source
            part = flat[planned.at : planned.at + source.numel() * source.itemsize]
            planned.copy = part.view(source.dtype).view(source.shape)
            planned.copy.copy_(source, non_blocking=True)
            if source.device.type != "cpu":
                devices.add(source.device)
        for device in devices:
            torch.accelerator.synchronize(device)

    def rebuild(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_of(value)
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, Counter):
            return Counter(value)
        if isinstance(value, Mapping):
            return {key: self.rebuild(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.rebuild(item) for item in value]
        if type(value) is tuple:
            return tuple(self.rebuild(item) for item in value)
        return copy.deepcopy(value)

    def _copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        planned = self._by_id[id(tensor)][1]
        if planned.copy is None:  # nothing in it, so nothing was copied
            planned.copy = torch.empty(planned.source.shape, dtype=planned.source.dtype)
        if not isinstance(tensor, DTensor):
            return planned.copy
        return DTensor.from_local(
            planned.copy,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in a state, with names for messages."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list) or type(value) is tuple:
        for index, item in enumerate(value):
            yield from _tensors(f"{name}.{index}", item)
