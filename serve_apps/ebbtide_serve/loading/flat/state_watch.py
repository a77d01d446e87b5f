"""What else ``load_weights`` changes, besides parameters.

The flat form replaces a call of ``load_weights`` by bytes in parameters. That is right only if nothing else comes of
the call. So the load that a flat form is made of is watched: buffers that were filled are stored too; if anything else
changed that can be seen (modules, plain values, tensors that are neither parameter nor buffer) there is no flat form.

Not seen: what lies outside the model, or deep inside objects of other kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import nn

from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.reading.transfers import bytes_of

_DEPTH = 3  # of lists and tables in a module's attributes
_TORCH_OWN = frozenset(vars(nn.Module()))  # hooks and the tables of parameters, buffers and modules


@dataclass(frozen=True, slots=True)
class State:
    """What was seen at one moment.

    Attributes:
        buffers: digests of the buffers, by name.
        rest: all else, by name, in a form that can be compared.
    """

    buffers: Mapping[str, object]
    rest: Mapping[str, object]


def state_of(model: nn.Module) -> State:
    """Look at a model. Costs a look at every buffer's bytes, and no lasting memory."""
    known: dict[object, object] = {("of a parameter", place): "a parameter's memory" for place in _storages(model)}
    buffers = {name: _tensor(data, known) for name, data in model.named_buffers(remove_duplicate=False)}
    rest: dict[str, object] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        rest[path] = type(module).__qualname__
        for name, value in vars(module).items():
            if name not in _TORCH_OWN:
                rest[f"{path}.{name}".lstrip(".")] = _seen(value, known, _DEPTH)
    return State(buffers, rest)


def filled_buffers(before: State, after: State) -> tuple[str, ...]:
    """The buffers that were filled between two looks.

    Raises:
        FlatUnusable: something else changed; names it.
    """
    names = sorted(before.rest.keys() | after.rest.keys())
    if changed := [name for name in names if before.rest.get(name) != after.rest.get(name)]:
        raise FlatUnusable(f"loading changes more of this model than its parameters: {', '.join(changed[:3])}")
    if before.buffers.keys() != after.buffers.keys():
        other = min(before.buffers.keys() ^ after.buffers.keys())
        raise FlatUnusable(f"loading adds or removes the buffer {other}")
    return tuple(sorted(name for name, seen in after.buffers.items() if before.buffers[name] != seen))


def _seen(value: Any, known: dict[object, object], depth: int) -> object:
    match value:
        case nn.Parameter() | nn.Module():
            return type(value).__qualname__
        case torch.Tensor():
            return _tensor(value, known)
        case bool() | int() | float() | complex() | str() | bytes() | None | torch.dtype() | torch.device():
            return (type(value).__name__, value if value == value else "nan")
        case list() | tuple() if depth:
            return (type(value).__name__, *(_seen(one, known, depth - 1) for one in value))
        case dict() if depth:
            return {str(name): _seen(one, known, depth - 1) for name, one in value.items()}
        case set() | frozenset() if depth:
            return sorted(repr(_seen(one, known, depth - 1)) for one in value)
    return type(value).__qualname__


def _tensor(data: torch.Tensor, known: dict[object, object]) -> object:
    facts = (str(data.dtype), tuple(data.shape), str(data.device))
    if data.is_meta or not data.numel() or data.layout is not torch.strided:
        return facts
    if alias := known.get(("of a parameter", data.untyped_storage().data_ptr())):
        return (*facts, alias)  # changes with it, however it is filled
    place = (data.data_ptr(), data.stride(), facts)
    if place not in known:
        held = bytes_of(data.detach().to("cpu").contiguous())
        known[place] = xxhash.xxh3_128_hexdigest(held.numpy().data)
    return (*facts, known[place])


def _storages(model: nn.Module) -> set[int]:
    return {
        parameter.data.untyped_storage().data_ptr()
        for parameter in model.parameters()
        if not parameter.is_meta and parameter.numel()
    }
