"""The leaves of a packed state, cut as ``torch.distributed.checkpoint`` cuts a state. Pure.

It walks into dicts, and into lists that hold a tensor, a dict, or a list that is walked into; everything else is one
leaf: a tensor, or an object. A leaf is called by its path, joined by dots. So a checkpoint that one process wrote in
one piece can be read by the stock planner, and the other way round.

Source: torch/distributed/checkpoint/_traverse.py (2.13), against which the tests compare it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ebbtide.storage.errors import Refused

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Path: TypeAlias = tuple[str | int, ...]

TENSOR, ARRAY = "$tensor", "$array"
_MAPPINGS = ("$pairs", "$counter")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf: how to come to it, and what it is."""

    path: Path
    value: Json

    @property
    def tensor(self) -> str | None:
        """The name of the tensor that it is; None for an object."""
        return str(self.value[TENSOR]) if isinstance(self.value, dict) and _tag(self.value) == TENSOR else None


def leaves(tree: Json) -> dict[str, Leaf]:
    """All leaves by name.

    Raises:
        Refused: two have the same name, or the state is no dict.
    """
    if not _is_mapping(tree):
        raise Refused("this state is no dict with names: it can be read as a whole, but not by torch's planner")
    found: dict[str, Leaf] = {}
    for path, value in _walk((), tree):
        name = ".".join(map(str, path))
        if name in found:
            raise Refused(f"two parts of this state are called {name!r}: it can be read as a whole, but not by parts")
        found[name] = Leaf(path, value)
    return found


def tensors_in(tree: Json) -> Iterator[str]:
    """The names of all tensors that a part of a state needs."""
    if isinstance(tree, list):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        if _tag(tree) in (TENSOR, ARRAY):
            yield str(tree[_tag(tree)])
            return
        for item in tree.values():
            yield from tensors_in(item)


def nest(parts: dict[Path, Json]) -> Json:
    """A tree of leaves; a number in a path is a place in a list.

    Raises:
        Refused: two paths contradict each other.
    """
    root: dict[str | int, object] = {}
    for path, value in parts.items():
        place = root
        for key in path[:-1]:
            inner = place.setdefault(key, {})
            if not isinstance(inner, dict):
                raise Refused(f"{'.'.join(map(str, path))} is within something that is no dict or list")
            place = inner
        if path[-1] in place:
            raise Refused(f"{'.'.join(map(str, path))} is there twice")
        place[path[-1]] = _Packed(value)
    return _closed(root)


@dataclass(frozen=True, slots=True)
class _Packed:
    value: Json


def _closed(node: object) -> Json:
    if isinstance(node, _Packed):
        return node.value
    assert isinstance(node, dict)
    if node and all(isinstance(key, int) for key in node):
        items: list[Json] = [None] * (max(node) + 1)
        for index, inner in node.items():
            items[index] = _closed(inner)
        return items
    if any(str(key).startswith("$") for key in node):
        return {"$pairs": [[key, _closed(inner)] for key, inner in node.items()]}
    return {str(key): _closed(inner) for key, inner in node.items()}


def _walk(path: Path, node: Json) -> Iterator[tuple[Path, Json]]:
    if _is_mapping(node):
        for key, inner in _items(node):
            yield from _walk((*path, key), inner)
    elif isinstance(node, list) and not _is_leaf(node):
        for index, inner in enumerate(node):
            yield from _walk((*path, index), inner)
    else:
        yield path, node


def _is_leaf(node: Json) -> bool:
    if not isinstance(node, list):
        return not _is_mapping(node)
    return not any(
        _is_mapping(inner) or _tag(inner) == TENSOR or (isinstance(inner, list) and not _is_leaf(inner))
        for inner in node
    )


def _is_mapping(node: Json) -> bool:
    return isinstance(node, dict) and (not _tag(node) or _tag(node) in _MAPPINGS)


def _items(node: Json) -> Iterator[tuple[str, Json]]:
    assert isinstance(node, dict)
    if not _tag(node):
        yield from node.items()
        return
    pairs = node[_tag(node)]
    assert isinstance(pairs, list)
    for pair in pairs:
        assert isinstance(pair, list)
        yield str(_plain_key(pair[0])), pair[1]


def _plain_key(key: Json) -> object:
    """A key as ``str`` of the original would write it, for those that are plain; tuples too."""
    if isinstance(key, dict) and _tag(key) == "$tuple":
        items = key["$tuple"]
        assert isinstance(items, list)
        return tuple(_plain_key(item) for item in items)
    if isinstance(key, dict) and _tag(key) == "$float":
        return float(str(key["$float"]))
    return key


def _tag(node: Json) -> str:
    if isinstance(node, dict) and len(node) == 1:
        key = next(iter(node))
        return key if key.startswith("$") else ""
    return ""
