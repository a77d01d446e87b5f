"""The share of a slot goes through the environment unchanged, and what is no share is none."""

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.client.slot_share import MEMORY_VARIABLE, THREADS_VARIABLE, SlotShare, slot_share_from_environment


@given(st.builds(SlotShare, st.integers(0, 1 << 50), st.integers(1, 1024)))
def test_a_share_comes_back(share: SlotShare) -> None:
    assert slot_share_from_environment({"PATH": "/bin"} | share.to_environment()) == share


def test_half_a_share_and_nonsense_are_none() -> None:
    assert slot_share_from_environment({}) is None
    assert slot_share_from_environment({MEMORY_VARIABLE: "1"}) is None
    assert slot_share_from_environment({MEMORY_VARIABLE: "much", THREADS_VARIABLE: "1"}) is None
