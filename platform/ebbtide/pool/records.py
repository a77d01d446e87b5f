"""Mappings that are never changed, only replaced, and that know by what each differs from those before it.

A pool of ten thousand slots changes by a few records an event. Whoever has looked at all of it once asks
:func:`changed` what to look at again.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

STEPS_KEPT = 512  # a burst in a large pool has hundreds of events; who looks less often than that looks at all of it

_serials = count()


class Records(dict[K, V]):
    """What :func:`having` and :func:`without` make; nobody changes one. Equal to any mapping with the same items."""

    __slots__ = ("serial", "steps")

    def __init__(self, items: Mapping[K, V], steps: tuple[tuple[int, Collection[K]], ...] = ()) -> None:
        """``steps``: the serials that this came from, each with the keys that the step from it changed."""
        super().__init__(items)
        self.serial = next(_serials)
        self.steps = steps


def having(source: Mapping[K, V], changes: Mapping[K, V]) -> Records[K, V]:
    """``source`` with these records in place of those of the same keys; new keys come last."""
    found = Records(source, _steps(source, tuple(changes)))
    found.update(changes)
    return found


def without(source: Mapping[K, V], keys: Iterable[K]) -> Records[K, V]:
    """``source`` without these keys."""
    going = tuple(key for key in keys if key in source)
    found = Records(source, _steps(source, going))
    for key in going:
        found.pop(key, None)  # it may be named twice
    return found


def _steps(source: Mapping[K, V], keys: Collection[K]) -> tuple[tuple[int, Collection[K]], ...]:
    if not isinstance(source, Records):
        return ()
    return (*source.steps, (source.serial, keys))[-STEPS_KEPT:]


def changed(before: Mapping[K, V], after: Mapping[K, V]) -> Collection[K] | None:
    """The keys by which the two may differ; None: nobody has kept by what, so it may be any."""
    if before is after:
        return ()
    if not (isinstance(before, Records) and isinstance(after, Records)):
        return None
    found: set[K] = set()
    for serial, keys in reversed(after.steps):
        found.update(keys)
        if serial == before.serial:
            return found
        if serial < before.serial:  # made earlier: another one came of it
            return None
    return None
