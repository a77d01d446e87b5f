"""A map of some GPUs becomes one of all, as the driver wants it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.snapshot.driver.gpu_map import complete_map, moved_in, whole_map

GPUS = tuple("abcdefgh")


@given(st.data())
def test_it_is_a_permutation_that_agrees_and_moves_nobody_without_need(data: st.DataObject) -> None:
    old = data.draw(st.lists(st.sampled_from(GPUS), unique=True))
    new = data.draw(st.permutations(GPUS))[: len(old)]
    wanted = dict(zip(old, new, strict=True))
    whole = complete_map(wanted, frozenset(GPUS))
    assert set(whole) == set(whole.values()) == set(GPUS)
    assert whole.items() >= wanted.items()
    assert all(whole[gpu] == gpu for gpu in GPUS if gpu not in wanted and gpu not in wanted.values())


def test_a_move_becomes_a_swap_and_a_chain_a_ring() -> None:
    assert complete_map({"a": "b"}, frozenset("abc")) == {"a": "b", "b": "a", "c": "c"}
    assert complete_map({"a": "b", "b": "c"}, frozenset("abc")) == {"a": "b", "b": "c", "c": "a"}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [({"a": "x"}, "no GPU x"), ({"y": "a"}, "no GPU y"), ({"a": "c", "b": "c"}, "two GPUs shall go to one")],
)
def test_a_map_that_cannot_be_is_refused_by_name(wanted: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        complete_map(wanted, frozenset("abc"))


H, A = "NVIDIA H100", "NVIDIA A100"


def test_on_the_machine_where_it_was_a_map_is_left_as_it_is() -> None:
    assert whole_map({}, {}, {"a": H, "b": H}) == {}
    assert whole_map({"a": "b"}, {}, {"a": H, "b": H}) == {"a": "b"}
    assert whole_map({"a": "b"}, {"a": H, "b": H}, {"a": H, "b": H, "c": A}) == {"a": "b"}
    assert whole_map({"x": "y"}, {}, {}) == {"x": "y"}, "nobody knows these GPUs: the driver will say"


def test_from_another_machine_every_gpu_of_it_gets_a_place_of_its_own_chip() -> None:
    there, here = {"a": H, "b": H, "c": A}, {"x": A, "y": H, "z": H}
    assert whole_map({"a": "z"}, there, here) == {"a": "z", "b": "y", "c": "x"}
    kept = whole_map({"a": "y"}, {"a": H, "b": H, "z": H}, {"b": H, "y": H, "z": H})
    assert kept == {"a": "y", "b": "b", "z": "z"}, "what is here too stays where it is"
    assert moved_in(kept, frozenset("byz")) == kept


@pytest.mark.parametrize(
    ("wanted", "there", "says"),
    [
        ({"a": "c"}, {}, "a is one NVIDIA H100, and c one NVIDIA A100: the driver needs the same chip"),
        ({"o": "c"}, {"o": H}, "o is one NVIDIA H100, and c one NVIDIA A100"),
        ({"a": "z"}, {}, "no GPU z"),
        ({"a": "b", "b": "b"}, {}, "two GPUs shall go to one"),
        ({}, {"o": H}, "say which one becomes which"),
        ({"n": "a"}, {"o": H}, "say which one becomes which"),
        ({"o": "a"}, {"o": H, "p": H, "q": H}, "too few GPUs of the chip NVIDIA H100"),
    ],
)
def test_what_cannot_be_put_back_is_refused_before_the_driver_is_asked(
    wanted: dict[str, str], there: dict[str, str], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        whole_map(wanted, there, {"a": H, "b": H, "c": A})


@pytest.mark.parametrize(("whole", "says"), [({"o": "z"}, "no GPU z"), ({"o": "a", "p": "a"}, "two GPUs shall go")])
def test_a_whole_map_leads_to_gpus_that_are_here(whole: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        moved_in(whole, frozenset("ab"))
