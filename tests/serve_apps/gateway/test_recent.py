"""What there was of late, by the second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_serve.gateway.recent import Recent

TIMES = st.lists(st.floats(0.0, 100.0), max_size=200).map(sorted)


@given(TIMES, st.floats(0.0, 50.0))
def test_it_counts_what_a_list_would_count_to_the_second(times_s: list[float], later_s: float) -> None:
    recent = Recent(15, 0.0)
    for at_s in times_s:
        recent.add(at_s, 2.0)
    now_s = (times_s[-1] if times_s else 0.0) + later_s
    surely = sum(at_s > now_s - 14.0 for at_s in times_s)
    perhaps = sum(at_s > now_s - 16.0 for at_s in times_s)
    assert surely <= recent.count(now_s) <= perhaps
    assert recent.total(now_s) == pytest.approx(2.0 * recent.count(now_s))


def test_a_rate_is_never_over_time_before_the_first_nor_over_less_than_a_second() -> None:
    recent = Recent(15, 100.0)
    for _ in range(6):
        recent.add(100.2)
    assert recent.per_s(100.5) == 6.0
    assert recent.per_s(103.0) == 2.0
    assert recent.per_s(114.0) == pytest.approx(6 / 14)
    assert recent.per_s(200.0) == 0.0
