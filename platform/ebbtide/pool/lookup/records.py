"""Mappings that are never changed, only replaced, and that know by what each differs from those before it.

An event changes a few records of a pool of ten thousand slots. To copy them all would cost as much as the rest of the
event, so its result shares a plain dict with what it was made of, and has what has changed since beside it. Whoever has
looked at all records once asks :func:`changed_keys` which to look at again.
"""

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from itertools import count
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Steps by which mappings remember where they came from: at least so many, and at most twice as many. A burst in a large
# pool has hundreds of events; whoever looks less often than that looks at all records.
STEPS_KEPT = 512
APART = 128  # changes beside a dict before the two are put together: a copy of so many costs a hundredth of 10,000's
GONE: Any = object()

_serials = count()

_Step = tuple[int, Collection[Any], Any]
"""The serial of what was changed, the keys that changed, and the step before that; None: there was none."""


class Records(Mapping[K, V]):
    """What :func:`having` and :func:`without` make; nobody changes one. Equal to any mapping with the same items.

    Attributes:
        serial: larger than that of all that were made before.
        steps: how it came from others, the last step first: a chain, so that one more costs nothing.
        steps_before: those that were there when ``steps`` began anew.
        steps_count: how many ``steps`` has.
    """

    __slots__ = ("_apart", "_whole", "serial", "steps", "steps_before", "steps_count")

    def __init__(self, whole: dict[K, V], apart: dict[K, V] | None = None) -> None:
        """``apart``: what differs from ``whole``, `GONE` what is not there; nobody changes either from now on."""
        self._whole = whole
        self._apart = apart or {}
        self.serial = next(_serials)
        self.steps: _Step | None = None
        self.steps_before: _Step | None = None
        self.steps_count = 0

    def __getitem__(self, key: K) -> V:
        """Raises KeyError: there is none."""
        apart = self._apart
        if key in apart:
            found = apart[key]
            if found is GONE:
                raise KeyError(key)
            return found
        return self._whole[key]

    def get(self, key: K, default: Any = None) -> Any:
        """As of a dict."""
        apart = self._apart
        if key in apart:
            found = apart[key]
            return default if found is GONE else found
        return self._whole.get(key, default)

    def __contains__(self, key: object) -> bool:
        """As of a dict."""
        apart: dict[Any, V] = self._apart
        return apart[key] is not GONE if key in apart else key in self._whole

    def __len__(self) -> int:
        """How many there are."""
        return len(self.together())

    def __iter__(self) -> Iterator[K]:
        """In order, as of a dict."""
        return iter(self.together())

    def keys(self) -> KeysView[K]:
        """As of a dict."""
        return self.together().keys()

    def values(self) -> ValuesView[V]:
        """As of a dict."""
        return self.together().values()

    def items(self) -> ItemsView[K, V]:
        """As of a dict."""
        return self.together().items()

    def __eq__(self, other: object) -> bool:
        """Whether it has the same items, in whatever order."""
        both = other.together() if isinstance(other, Records) else other
        return self is other or self.together() == both

    __hash__ = None  # type: ignore[assignment]  # as of a dict

    def __repr__(self) -> str:
        """As of a dict."""
        return repr(self.together())

    def __reduce__(self) -> tuple[type[dict[K, V]], tuple[dict[K, V]]]:
        """Elsewhere it is a dict: there are other serials."""
        return dict, (self.together(),)

    def together(self) -> dict[K, V]:
        """All of it as one dict, which nobody changes; whoever looks at all pays once.

        Threads may do so at once: what is apart is read before the whole and emptied after it, everywhere, so that
        whoever comes in between finds it in both.
        """
        apart = self._apart
        if apart:
            self._whole = _joined(self._whole, apart)
            self._apart = {}
        return self._whole


def _joined(whole: dict[K, V], apart: dict[K, V]) -> dict[K, V]:
    found = dict(whole)
    found.update(apart)
    for key, one in apart.items():
        if one is GONE:
            found.pop(key, None)
    return found


def together(value: Any) -> Any:
    """A dict in place of `Records`, for whoever takes nothing else; anything else as it is."""
    return value.together() if isinstance(value, Records) else value


def getter(source: Mapping[K, V]) -> Callable[[K], V | None]:
    """``source.get``, without the way through `Records` where nothing is apart: for whoever looks up hundreds."""
    if isinstance(source, Records):
        apart = source._apart
        whole = source._whole  # read last: see `Records.together`
        return source.get if apart else whole.get
    return source.get


def having(source: Mapping[K, V], changes: Mapping[K, V]) -> Records[K, V]:
    """``source`` with these records in place of those of the same keys; new keys come last."""
    return differing(source, dict(changes))


def without(source: Mapping[K, V], keys: Iterable[K]) -> Records[K, V]:
    """``source`` without these keys."""
    return differing(source, {key: GONE for key in keys if key in source})


def differing(source: Mapping[K, V], changes: dict[K, V]) -> Records[K, V]:
    """Both at once: `GONE` for the keys that go; nobody changes ``changes`` from now on."""
    if not isinstance(source, Records):
        return Records(_joined(dict(source), changes))
    apart = source._apart
    whole = source._whole  # read last: see `Records.together`
    if apart and any(apart.get(key) is GONE for key in changes):  # what comes back comes last, as what is new
        found = Records(_joined(source.together(), changes))
    elif len(apart) + len(changes) > APART:
        found = Records(_joined(whole, {**apart, **changes}))
    else:
        found = Records(whole, {**apart, **changes} if apart else changes)
    full = source.steps_count == STEPS_KEPT
    found.steps = source.serial, tuple(changes), None if full else source.steps
    found.steps_before = source.steps if full else source.steps_before
    found.steps_count = 1 if full else source.steps_count + 1
    return found


def changed_keys(before: Mapping[K, V], after: Mapping[K, V]) -> Collection[K] | None:
    """The keys by which the two may differ; None: nobody has kept by what, so it may be any."""
    if before is after:
        return ()
    if not (isinstance(before, Records) and isinstance(after, Records)):
        return None
    found: set[K] = set()
    for chain in (after.steps, after.steps_before):
        step = chain
        while step is not None:
            serial, keys, step = step
            found.update(keys)
            if serial == before.serial:
                return found
            if serial < before.serial:  # made earlier: another one came of it
                return None
    return None
