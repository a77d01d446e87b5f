"""A map of some GPUs becomes one of all, as the driver wants it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.snapshot.driver.gpu_map import completed

GPUS = tuple("abcdefgh")


@given(st.data())
def test_it_is_a_permutation_that_agrees_and_moves_nobody_without_need(data: st.DataObject) -> None:
    old = data.draw(st.lists(st.sampled_from(GPUS), unique=True))
    new = data.draw(st.permutations(GPUS))[: len(old)]
    wanted = dict(zip(old, new, strict=True))
    whole = completed(wanted, frozenset(GPUS))
    assert set(whole) == set(whole.values()) == set(GPUS)
    assert whole.items() >= wanted.items()
    assert all(whole[gpu] == gpu for gpu in GPUS if gpu not in wanted and gpu not in wanted.values())


def test_a_move_becomes_a_swap_and_a_chain_a_ring() -> None:
    assert completed({"a": "b"}, frozenset("abc")) == {"a": "b", "b": "a", "c": "c"}
    assert completed({"a": "b", "b": "c"}, frozenset("abc")) == {"a": "b", "b": "c", "c": "a"}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [({"a": "x"}, "no GPU x"), ({"y": "a"}, "no GPU y"), ({"a": "c", "b": "c"}, "two GPUs shall go to one")],
)
def test_a_map_that_cannot_be_is_refused_by_name(wanted: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        completed(wanted, frozenset("abc"))
