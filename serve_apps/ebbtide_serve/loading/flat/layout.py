"""How a model's parameters lie in memory: names, types, shapes, and which of them are one.

A parameter is stored by the bytes of its memory, in the order in which they lie there. One whose dimensions were
swapped (a transposed weight) is stored with its dimensions as memory has them, and the order is part of the layout;
parameters that share their memory (tied embeddings) are stored once. What cannot be told from its bytes alone is
refused by name: memory with gaps, partial overlaps, tensors with state of their own, tensors without memory.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn

from ebbtide.storage.safetensors.file_layout import TensorSpec
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.reading.transfers import bytes_of

LAYOUT_VERSION = 1  # of what is stored and how; part of every key


@dataclass(frozen=True, slots=True)
class Held:
    """One piece of memory and the parameters in it.

    Attributes:
        spec: as it is stored, under the first parameter's name.
        order: its dimensions in the order of memory.
        names: all parameters that lie there.
        memory: its bytes.
    """

    spec: TensorSpec
    order: tuple[int, ...]
    names: tuple[str, ...]
    memory: torch.Tensor = field(repr=False)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parameters of one rank's model, in their order there."""

    held: tuple[Held, ...]

    @property
    def digest(self) -> str:
        """Names a layout: equal for models whose parameters can stand for each other byte by byte."""
        facts = [[one.spec.dtype, one.spec.shape, one.order, one.names] for one in self.held]
        return hashlib.sha256(json.dumps([LAYOUT_VERSION, facts]).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Of all parameters."""
        return sum(one.spec.length for one in self.held)

    def memory(self) -> Mapping[str, torch.Tensor]:
        """The bytes of each piece, by the name that it is stored under."""
        return {one.spec.name: one.memory for one in self.held}


def layout_of(model: nn.Module) -> Layout:
    """Look at a model's parameters.

    Raises:
        FlatUnusable: one of them cannot be stored by its bytes; names it.
    """
    pieces: dict[object, list[tuple[str, torch.Tensor]]] = {}
    for name, parameter in model.named_parameters():
        data = _plain(name, parameter)
        place = (data.device, data.data_ptr()) if data.numel() else name
        pieces.setdefault(place, []).append((name, data))
    held = tuple(_held(piece) for piece in pieces.values())
    _refuse_overlaps(held)
    return Layout(held)


def buffers_of(model: nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The bytes of some buffers.

    Raises:
        FlatUnusable: there is no such buffer, or it cannot be stored by its bytes.
    """
    there = dict(model.named_buffers(remove_duplicate=False))
    if missing := sorted(set(names) - set(there)):
        raise FlatUnusable(f"the model has no buffer {missing[0]}")
    found = {name: _plain(name, there[name]) for name in names}
    if odd := [name for name, data in found.items() if not data.is_contiguous()]:
        raise FlatUnusable(f"buffer {odd[0]} is not contiguous")
    return found


def spec_of(name: str, data: torch.Tensor) -> TensorSpec:
    """How a tensor is stored."""
    return TensorSpec(name, DTYPE_NAMES[data.dtype], tuple(data.shape))


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.data
    if data.is_meta:
        raise FlatUnusable(f"{name} has no memory before it is loaded (quantised while loading)")
    if type(data) is not torch.Tensor or data.layout is not torch.strided:
        raise FlatUnusable(f"{name} is a {type(data).__name__} with state of its own, not plain memory")
    if data.dtype not in DTYPE_NAMES:
        raise FlatUnusable(f"{name} is of type {data.dtype}, which no safetensors file can hold")
    return data


def _held(found: list[tuple[str, torch.Tensor]]) -> Held:
    name, data = found[0]
    for other, same in found[1:]:
        if (same.dtype, same.shape, same.stride()) != (data.dtype, data.shape, data.stride()):
            raise FlatUnusable(f"{name} and {other} lie at one place in memory, but differ in type or shape")
    order = _memory_order(name, data)
    in_order = data.permute(order)
    return Held(spec_of(name, in_order), order, tuple(one for one, _ in found), bytes_of(in_order))


def _memory_order(name: str, data: torch.Tensor) -> tuple[int, ...]:
    order = tuple(range(data.ndim))
    if data.is_contiguous():
        return order
    strides = data.stride()
    order = tuple(sorted(order, key=lambda dimension: -strides[dimension]))
    if not data.permute(order).is_contiguous():
        raise FlatUnusable(f"{name} has gaps or repetitions in memory (strides {strides})")
    return order


def _refuse_overlaps(held: Iterable[Held]) -> None:
    lying = [one for one in held if one.memory.numel()]
    lying.sort(key=lambda one: (str(one.memory.device), one.memory.data_ptr()))
    for before, after in pairwise(lying):
        end = before.memory.data_ptr() + before.memory.numel()
        if before.memory.device == after.memory.device and after.memory.data_ptr() < end:
            raise FlatUnusable(f"{before.names[0]} and {after.names[0]} overlap in memory")
