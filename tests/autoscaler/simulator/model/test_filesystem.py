"""Who shares the filesystem: a rate that is never exceeded, and nobody who waits for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_simulator.model.filesystem import ASSUMED_BYTES_PER_S, SERVING, TRAINING, Filesystem

RATE = 10e9


def test_one_alone_has_all_of_it() -> None:
    disk = Filesystem(RATE)
    one = disk.begin(5.0, 20e9, SERVING)
    assert not disk.has_ended(6.9, one)
    assert disk.has_ended(7.0, one) and one.end_s == pytest.approx(7.0)
    assert one.late_s == pytest.approx(2.0 - 20e9 / ASSUMED_BYTES_PER_S)


def test_equals_share() -> None:
    disk = Filesystem(RATE)
    small, large = disk.begin(0.0, 10e9, SERVING), disk.begin(0.0, 20e9, SERVING)
    assert disk.has_ended(10.0, large)
    assert small.end_s == pytest.approx(2.0) and large.end_s == pytest.approx(3.0)


def test_replicas_go_first_and_checkpoints_keep_a_tenth() -> None:
    disk = Filesystem(RATE)
    saved, loaded = disk.begin(0.0, 10e9, TRAINING), disk.begin(0.0, 9e9, SERVING)
    assert disk.has_ended(10.0, saved)
    assert loaded.end_s == pytest.approx(1.0)
    assert saved.end_s == pytest.approx(1.0 + 0.9)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 20.0), st.floats(1e6, 5e10), st.sampled_from([SERVING, TRAINING])),
        min_size=1,
        max_size=12,
    )
)
def test_it_moves_all_bytes_at_its_rate_and_asking_again_ends(sent: list[tuple[float, float, int]]) -> None:
    disk = Filesystem(RATE)
    found = [(disk.begin(at_s, size, kind), kind) for at_s, size, kind in sorted(sent)]
    now_s = sorted(sent)[-1][0]
    for one, kind in found:
        asked = 0
        while wait_s := disk.wait_s(now_s, one, kind):
            now_s, asked = now_s + wait_s, asked + 1
            assert asked < 200
    ends = [one.end_s for one, _ in found if one.end_s is not None]
    assert len(ends) == len(found)
    busy_at_least_s = sum(size for _, size, _ in sent) / RATE
    assert max(ends) - min(at_s for at_s, _, _ in sent) >= busy_at_least_s - 1e-6
    assert max(ends) <= max(at_s for at_s, _, _ in sent) + busy_at_least_s + 1e-6
    for one, _ in found:
        assert one.end_s is not None and one.end_s >= one.begin_s + one.size / RATE - 1e-6
