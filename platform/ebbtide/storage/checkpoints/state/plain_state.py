"""Nested state in two halves: tensors by name, and the rest as JSON that points to them.

Why: neither half needs a pickle, and the names are the model's own, so that any number of workers, any device and
another program can read it. Names are paths joined by dots, as ``torch.distributed.checkpoint`` makes them; if
two tensors would be called the same, the later one gets a ``~2`` behind its name.

What JSON cannot hold by itself is tagged: ``{"$tensor": name}``, ``$array`` (of numpy), ``$tuple``, ``$pairs`` (a dict
whose keys are not all plain texts), ``$counter``, ``$float`` (infinite, or no number), ``$bytes``, ``$dtype``,
``$size``. Anything else is refused by name. Subclasses of dict come back as dict.
"""

import base64
import math
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping

import numpy as np
import torch

from ebbtide.storage.checkpoints.state.state_tree import ARRAY, TENSOR, Json
from ebbtide.storage.errors import Refused
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def pack(value: object, name: str, tensors: MutableMapping[str, torch.Tensor]) -> Json:
    """Put the tensors inside ``value`` into ``tensors`` and return the rest.

    Args:
        value: the state.
        name: of ``value``; empty for the whole state.
        tensors: names that are taken already are left alone.

    Raises:
        Refused: something in it is neither a tensor nor plain data.
    """
    try:
        return _pack(value, name, tensors)
    except RecursionError as error:  # guard: a state that holds itself is refused
        raise Refused(f"{name or 'the state'} is nested too deeply, or holds itself") from error


def unpack(value: Json, tensors: Mapping[str, torch.Tensor]) -> object:
    """The inverse of `pack`.

    Raises:
        Refused: a tensor is missing, or a tag is unknown.
    """
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if len(value) != 1 or not tag.startswith("$"):
        return {key: unpack(item, tensors) for key, item in value.items()}
    body = value[tag]
    if tag in (TENSOR, ARRAY):
        if not isinstance(body, str) or body not in tensors:
            raise Refused(f"the state names a tensor {body!r}, which is not there")
        return tensors[body] if tag == TENSOR else tensors[body].numpy()
    try:
        if isinstance(body, list) and tag in _OF_ITEMS:
            return _OF_ITEMS[tag]([unpack(item, tensors) for item in body])
        if isinstance(body, str) and tag in _OF_TEXT:
            return _OF_TEXT[tag](body)
    except Refused:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"the state has {tag} with something that makes no sense: {error}") from error
    raise Refused(f"the state has the unknown tag {tag!r}: a newer version wrote it; update this one")


def _pack(value: object, name: str, tensors: MutableMapping[str, torch.Tensor]) -> Json:
    if isinstance(value, torch.Tensor):
        return {TENSOR: _put(value, name, tensors)}
    if isinstance(value, np.ndarray):
        return {ARRAY: _put(_of_array(value, name), name, tensors)}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(float(value))}
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # narrowed by type(), which mypy does not follow
    if isinstance(value, torch.Size):
        return {"$size": list(value)}
    if isinstance(value, torch.dtype):
        return {"$dtype": _dtype_name(value, name)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [_pack(item, _inside(name, index), tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        return _pack_mapping(value, name, tensors)
    raise Refused(
        f"{name or 'the state'} is a {type(value).__name__}: a checkpoint holds tensors, arrays, numbers, texts, "
        "bytes, lists, tuples and dicts; give the object a state_dict() made of these"
    )


def _pack_mapping(value: Mapping[object, object], name: str, tensors: MutableMapping[str, torch.Tensor]) -> Json:
    plain = all(type(key) is str and not key.startswith("$") for key in value)
    if plain and not isinstance(value, Counter):
        return {str(key): _pack(item, _inside(name, key), tensors) for key, item in value.items()}
    pairs: list[Json] = []
    for key, item in value.items():
        inside = _inside(name, key)
        pairs.append([_pack(key, inside, tensors), _pack(item, inside, tensors)])
    return {"$counter" if isinstance(value, Counter) else "$pairs": pairs}


def _put(tensor: torch.Tensor, name: str, tensors: MutableMapping[str, torch.Tensor]) -> str:
    free, number = name or "tensor", 1
    while free in tensors:  # guard: tensors of one name stay two
        number += 1
        free = f"{name}~{number}"
    tensors[free] = tensor
    return free


def _of_array(value: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]", name: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(value))  # a copy: the array may be read-only, or change
    except TypeError as error:
        raise Refused(f"{name} is an array of {value.dtype}, which no tensor can hold") from error


def _dtype_name(dtype: torch.dtype, name: str) -> str:
    if dtype not in DTYPE_NAMES:
        raise Refused(f"{name} is {dtype}, which cannot be stored")
    return DTYPE_NAMES[dtype]


def _inside(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _pairs(items: list[object]) -> dict[object, object]:
    return {key: item for key, item in items}  # type: ignore[misc,has-type]


def _size(items: list[object]) -> torch.Size:
    return torch.Size(items)  # type: ignore[arg-type]


_OF_ITEMS: dict[str, Callable[[list[object]], object]] = {
    "$tuple": tuple,
    "$pairs": _pairs,
    "$counter": lambda items: Counter(_pairs(items)),
    "$size": _size,
}
_OF_TEXT: dict[str, Callable[[str], object]] = {
    "$float": float,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$dtype": _DTYPES.__getitem__,
}
