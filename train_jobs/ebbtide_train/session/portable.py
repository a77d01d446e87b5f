"""Nested state in two halves: tensors by name, and the rest as JSON that points to them.

Why: neither half needs pickle, and the names are the model's own, so that any number of workers, any device and
another program can read it.

What JSON cannot hold by itself is tagged: ``{"$tensor": name}``, ``$tuple``, ``$pairs`` (a dict whose keys are not all
plain strings), ``$counter``. Anything else is refused by name.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from ebbtide_train.session.errors import CheckpointMismatch, SessionMisuse

State: TypeAlias = Mapping[str, object]
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def pack(value: object, name: str, tensors: dict[str, torch.Tensor]) -> Json:
    """Put the tensors inside ``value`` into ``tensors`` under dotted names and return the rest.

    Raises:
        SessionMisuse: something in there is neither a tensor nor plain data.
    """
    if isinstance(value, torch.Tensor):
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [pack(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [pack(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value) and not isinstance(value, Counter):
            return {key: pack(item, f"{name}.{key}", tensors) for key, item in value.items()}
        pairs: list[Json] = [
            [pack(key, f"{name}.{key}", tensors), pack(item, f"{name}.{key}", tensors)] for key, item in value.items()
        ]
        return {"$counter" if isinstance(value, Counter) else "$pairs": pairs}
    raise SessionMisuse(
        f"{name} is a {type(value).__name__}: a portable checkpoint holds tensors, numbers, texts, lists, tuples and "
        "dicts; give the object a state_dict() made of these"
    )


def unpack(value: Json, tensors: Mapping[str, torch.Tensor]) -> object:
    """The inverse of `pack`.

    Raises:
        CheckpointMismatch: a tensor is missing, or a tag is unknown.
    """
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if len(value) == 1 and tag.startswith("$"):
        body = value[tag]
        if tag == "$tensor":
            if not isinstance(body, str) or body not in tensors:
                raise CheckpointMismatch(f"the checkpoint's index names tensor {body!r}, which is not there")
            return tensors[body]
        if isinstance(body, list) and tag in _REBUILD:
            return _REBUILD[tag]([unpack(item, tensors) for item in body])
        raise CheckpointMismatch(f"the checkpoint's index has the unknown tag {tag!r}: it is of a newer format")
    return {key: unpack(item, tensors) for key, item in value.items()}


def copied(state: State) -> State:
    """The same state, its tensors copied to host memory of their own.

    Raises:
        SessionMisuse: see `pack`.
    """
    tensors: dict[str, torch.Tensor] = {}
    index = pack(state, "state", tensors)
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    found = unpack(index, copies)
    assert isinstance(found, dict)
    return found


def _pairs(items: list[object]) -> dict[object, object]:
    return {key: item for key, item in items}  # type: ignore[misc,has-type]


_REBUILD: dict[str, Callable[[list[object]], object]] = {
    "$tuple": tuple,
    "$pairs": _pairs,
    "$counter": lambda items: Counter(_pairs(items)),
}
