"""Records are dicts that share what has not changed: whatever is made of them, in whatever order they are looked at."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.lookup.records import APART, GONE, Records, differing, having, together, without

keys = st.integers(0, 30)
puts = st.dictionaries(keys, st.integers(), max_size=4)
steps = st.lists(st.one_of(puts, st.lists(keys, max_size=3), st.just("look")), max_size=60)


def with_step(was: dict[int, int], step: Any) -> dict[int, int]:
    """What a dict would be."""
    if step == "look":
        return was
    if isinstance(step, dict):
        return {**was, **step}
    return {key: value for key, value in was.items() if key not in step}


@given(st.dictionaries(keys, st.integers()), steps)
def test_they_are_what_a_dict_would_be_and_so_are_those_before_them(start: dict[int, int], taken: list[Any]) -> None:
    made: list[tuple[Records[int, int], dict[int, int]]] = [(having(start, {}), dict(start))]
    for step in taken:
        now, plain = made[-1]
        if step == "look":
            assert list(now.items()) == list(plain.items())
        else:
            then = having(now, step) if isinstance(step, dict) else without(now, step)
            made.append((then, with_step(plain, step)))
    for now, plain in made:
        for key in range(31):
            assert now.get(key, "none") == plain.get(key, "none")
            assert (key in now) == (key in plain)
            if key in plain:
                assert now[key] == plain[key]
            else:
                with pytest.raises(KeyError):
                    now[key]
        assert now == plain
        assert plain == now
        assert len(now) == len(plain)
        assert list(now) == list(plain)  # in order: whoever takes the first of them takes the same one
        assert list(now.values()) == list(plain.values())
        assert list(now.items()) == list(plain.items())


def test_one_change_of_many_copies_few() -> None:
    first = having(dict.fromkeys(range(10_000), 0), {})
    then = having(first, {1: 1})
    assert then._whole is first._whole
    assert len(then._apart) == 1


def test_many_changes_are_put_together() -> None:
    now = having(dict.fromkeys(range(1000), 0), {})
    for key in range(APART + 1):
        now = having(now, {key: 1})
    assert not now._apart
    assert sum(now.values()) == APART + 1


def test_elsewhere_they_are_a_dict() -> None:
    now = without(having({1: 1, 2: 2}, {3: 3}), [1])
    there = pickle.loads(pickle.dumps(now))
    assert type(there) is dict
    assert there == together(now) == {2: 2, 3: 3}
    assert together("a word") == "a word"


def test_both_at_once_and_what_is_not_there_may_go() -> None:
    assert differing({1: 1, 2: 2}, {1: GONE, 3: 3, 9: GONE}) == {2: 2, 3: 3}


class Watched(Records[int, int]):
    """Is looked at by somebody else whenever something of it has been set."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if hasattr(self, "steps_count"):
            assert self[1] == self.get(1) == 9 and 2 not in self and having(self, {3: 3})[1] == 9


def test_whoever_comes_in_between_finds_all_of_it() -> None:
    now = Watched({1: 1, 2: 2}, {1: 9, 2: GONE})
    assert list(now.items()) == [(1, 9)]
