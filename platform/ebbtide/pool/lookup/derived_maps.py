"""Look-ups that follow a mapping from change to change instead of being built anew from all of its records.

Each is made of one *part* of every record (None where a record has none). While no part changes, it stays the very same
object; so what is built from it in turn (:func:`ebbtide.pool.lookup.index.cached_by_identity`) is not built again
either.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import wraps
from operator import itemgetter
from typing import Any, TypeVar

from ebbtide.pool.lookup.records import GONE, changed_keys, differing, getter

K = TypeVar("K", bound=Hashable)
G = TypeVar("G", bound=Hashable)
V = TypeVar("V")
P = TypeVar("P")
A = TypeVar("A")

KEPT = 4  # sources that are looked at in turns: the ledger's, the one that is being made, an observer's

Change = tuple[K, P | None, P | None]
"""A key, and its part before and after."""

_Lines = tuple[Mapping[G, tuple[tuple[Any, ...], ...]], Mapping[G, A]]
"""Of each group where its records stand, and the columns of their rows; and what was made of these."""


def _followed(
    part: Callable[[V], P | None],
    build: Callable[[Iterable[Change[K, P]]], A],
    move: Callable[[A, list[Change[K, P]]], A],
) -> Callable[[Mapping[K, V]], A]:
    known: list[tuple[Mapping[K, V], A]] = []

    def moved(before: Mapping[K, V], after: Mapping[K, V], keys: Iterable[K]) -> list[Change[K, P]]:
        found: list[Change[K, P]] = []
        old_of, new_of = getter(before), getter(after)
        for key in keys:
            old, new = old_of(key), new_of(key)
            if old is not new:
                was, now = None if old is None else part(old), None if new is None else part(new)
                if was != now:
                    found.append((key, was, now))
        return found

    def make(source: Mapping[K, V], seen: tuple[tuple[Mapping[K, V], A], ...]) -> A:
        for asked, found in seen:
            keys = changed_keys(asked, source)
            if keys is not None:
                changes = moved(asked, source, keys)
                return move(found, changes) if changes else found
        return build((key, None, part(record)) for key, record in source.items())

    @wraps(part)
    def look_up(source: Mapping[K, V]) -> A:
        seen = tuple(known)  # another thread may add one meanwhile
        for asked, found in seen:
            if asked is source:
                return found
        found = make(source, seen)
        known.insert(0, (source, found))
        del known[KEPT:]
        return found

    return look_up


def select(part: Callable[[V], P | None]) -> Callable[[Mapping[K, V]], Mapping[K, P]]:
    """The parts that are not None, by key, in no order."""

    def build(changes: Iterable[Change[K, P]]) -> dict[K, P]:
        return {key: new for key, _, new in changes if new is not None}

    def move(before: Mapping[K, P], changes: list[Change[K, P]]) -> Mapping[K, P]:
        return differing(before, {key: GONE if new is None else new for key, _, new in changes})

    return _followed(part, build, move)


def group_by(
    order: Callable[[K], Any],
) -> Callable[[Callable[[V], tuple[G, P] | None]], Callable[[Mapping[K, V]], Mapping[G, Mapping[K, P]]]]:
    """What each group has, its keys by `order`; part: the group of a record, and what of the record is told there."""

    def build(changes: Iterable[Change[K, tuple[G, P]]]) -> dict[G, dict[K, P]]:
        found: dict[G, dict[K, P]] = {}
        for key, _, new in changes:
            if new is not None:
                found.setdefault(new[0], {})[key] = new[1]
        return {group: _in_order(mine, order) for group, mine in found.items()}

    def move(before: Mapping[G, Mapping[K, P]], changes: list[Change[K, tuple[G, P]]]) -> Mapping[G, Mapping[K, P]]:
        touched = {part[0] for _, *parts in changes for part in parts if part is not None}
        mine = {group: dict(before.get(group, {})) for group in touched}
        for key, old, new in changes:
            if old is not None and (new is None or new[0] != old[0]):
                del mine[old[0]][key]
            if new is not None:
                mine[new[0]][key] = new[1]
        joined = {new[0] for _, old, new in changes if new is not None and (old is None or old[0] != new[0])}
        made = {group: _in_order(one, order) if group in joined else one or None for group, one in mine.items()}
        return _regrouped(before, made)

    def follow(part: Callable[[V], tuple[G, P] | None]) -> Callable[[Mapping[K, V]], Mapping[G, Mapping[K, P]]]:
        return _followed(part, build, move)

    return follow


def _regrouped(before: Mapping[G, A], made: Mapping[G, A | None]) -> Mapping[G, A]:
    """With these groups in place of theirs; None: nothing is left of one."""
    return differing(before, {group: GONE if one is None else one for group, one in made.items()})


def _in_order(mine: Mapping[K, P], order: Callable[[K], Any]) -> dict[K, P]:
    return {key: mine[key] for key in sorted(mine, key=order)}


def order_by(
    order: Callable[[V], Any],
) -> Callable[[Callable[[V], P | None]], Callable[[Mapping[K, V]], tuple[P, ...]]]:
    """The parts that are not None, as `order` puts their records in order; no two of them may stand alike."""

    def build(changes: Iterable[Change[K, tuple[Any, P]]]) -> tuple[tuple[Any, ...], tuple[P, ...]]:
        rows = sorted((new for _, _, new in changes if new is not None), key=itemgetter(0))
        return tuple(where for where, _ in rows), tuple(one for _, one in rows)

    def move(
        before: tuple[tuple[Any, ...], tuple[P, ...]], changes: list[Change[K, tuple[Any, P]]]
    ) -> tuple[tuple[Any, ...], tuple[P, ...]]:
        where, parts = list(before[0]), list(before[1])
        for _, old, _ in changes:
            if old is not None:
                at = bisect_left(where, old[0])
                del where[at], parts[at]
        for _, _, new in changes:
            if new is not None:
                at = bisect_left(where, new[0])
                where.insert(at, new[0])
                parts.insert(at, new[1])
        return tuple(where), tuple(parts)

    def follow(part: Callable[[V], P | None]) -> Callable[[Mapping[K, V]], tuple[P, ...]]:
        def placed(record: V) -> tuple[Any, P] | None:
            found = part(record)
            return None if found is None else (order(record), found)

        rows: Callable[[Mapping[K, V]], tuple[tuple[Any, ...], tuple[P, ...]]] = _followed(placed, build, move)
        return lambda source: rows(source)[1]

    return follow


def lined_up(
    order: Callable[[V], Any], make: Callable[..., A]
) -> Callable[[Callable[[V], tuple[G, tuple[Any, ...]] | None]], Callable[[Mapping[K, V]], Mapping[G, A]]]:
    """What `make` makes of each group, its records sorted by `order`; no two may have the same place.

    The part of a record is its group and a row. `make` gets the columns of the group's rows as tuples: the first
    entries of all rows, then the second ones, and so on. So one more row in a line of thousands looks at no other row.
    """

    def move(before: _Lines[G, A], changes: list[Change[K, tuple[G, tuple[Any, ...]]]]) -> _Lines[G, A]:
        widths = {part[0]: len(part[1]) for _, *both in changes for part in both if part is not None}
        lines = {group: [list(one) for one in before[0].get(group, ((),) * width)] for group, width in widths.items()}
        for _, old, _ in changes:
            if old is not None:
                columns = lines[old[0]]
                at = bisect_left(columns[0], old[1][0])
                for column in columns:
                    del column[at]
        for _, _, new in changes:
            if new is not None:
                columns = lines[new[0]]
                at = bisect_left(columns[0], new[1][0])
                for column, one in zip(columns, new[1], strict=True):
                    column.insert(at, one)
        left = {group: tuple(map(tuple, columns)) if columns[0] else None for group, columns in lines.items()}
        made = {group: None if columns is None else make(*columns[1:]) for group, columns in left.items()}
        return _regrouped(before[0], left), _regrouped(before[1], made)

    def build(changes: Iterable[Change[K, tuple[G, tuple[Any, ...]]]]) -> _Lines[G, A]:
        return move(({}, {}), [change for change in changes if change[2] is not None])

    def follow(part: Callable[[V], tuple[G, tuple[Any, ...]] | None]) -> Callable[[Mapping[K, V]], Mapping[G, A]]:
        def placed(record: V) -> tuple[G, tuple[Any, ...]] | None:
            found = part(record)
            return None if found is None else (found[0], (order(record), *found[1]))

        lines: Callable[[Mapping[K, V]], _Lines[G, A]] = _followed(placed, build, move)
        return lambda source: lines(source)[1]

    return follow


def sum_by(part: Callable[[V], Mapping[G, int] | None]) -> Callable[[Mapping[Any, V]], Mapping[G, int]]:
    """The sum over all records of what each adds to whom, never less than 0; whoever comes to nothing is left out."""

    def build(changes: Iterable[Change[Any, Mapping[G, int]]]) -> Mapping[G, int]:
        return move({}, changes)

    def move(before: Mapping[G, int], changes: Iterable[Change[Any, Mapping[G, int]]]) -> Mapping[G, int]:
        more: Counter[G] = Counter()
        for _, old, new in changes:
            _add(more, old, -1)
            _add(more, new, 1)
        sums = {key: before.get(key, 0) + amount for key, amount in more.items() if amount}
        changed_sums = {key: one if one > 0 else GONE for key, one in sums.items()}
        return differing(before, changed_sums) if sums else before

    return _followed(part, build, move)


def _add(sums: Counter[G], more: Mapping[G, int] | None, times: int) -> None:
    for key, amount in (more or {}).items():
        sums[key] += times * amount
