"""How much more may be asked for in a minute, from how it has changed of late."""

import numpy as np
import pytest

from ebbtide_autoscaler.forecast.outlook import MOST_ROOM, Outlook
from ebbtide_autoscaler.forecast.surge import ENOUGH, SAMPLE_S, Samples, Surge


def told(values: list[float], *, gap_after: int | None = None) -> Samples:
    samples, now_s = Samples(), 1000.0
    for number, value in enumerate(values):
        samples.hear(now_s, value)
        samples.hear(now_s + 1.0, 1e9)  # between two samples nothing is taken in
        now_s += SAMPLE_S if number != gap_after else 100 * SAMPLE_S
    return samples


def outlook(samples: Samples) -> Outlook:
    return Outlook(0, (), samples.surges())


def test_steady_demand_needs_no_room() -> None:
    assert outlook(told([5.0] * ENOUGH)).room(0.95, 60.0, 2.0) == 0.0


def test_a_few_samples_say_nothing() -> None:
    assert told([5.0] * (ENOUGH - 1)).surges() == ()
    assert Outlook(0, ()).room(0.95, 60.0, 2.0) == 0.0


def test_after_a_gap_all_is_begun_anew() -> None:
    assert told([5.0] * 2 * ENOUGH, gap_after=ENOUGH + 10).surges() == ()


def test_room_is_what_demand_grew_beyond_in_so_many_cases_less_what_may_wait() -> None:
    one = Surge(60.0, np.array([1.0] * 90 + [1.2] * 10))
    found = Outlook(0, (), (one,))
    lead_s = 40.0 + SAMPLE_S / 2
    assert found.room(0.95, 40.0, 2.0) == pytest.approx(0.2 - 2.0 / lead_s)
    assert found.room(0.85, 40.0, 2.0) == 0.0
    assert found.room(0.95, 40.0, 60.0) == 0.0, "a queue within the promised time absorbs it"


def test_less_room_where_more_replicas_come_sooner() -> None:
    values = np.exp(np.random.default_rng(1).normal(0.0, 0.05, 400).cumsum() * 0.3 + 2.0)
    found = outlook(told(list(values)))
    rooms = [found.room(0.95, lead_s, 2.0) for lead_s in (5.0, 45.0, 150.0)]
    assert rooms == sorted(rooms)
    assert rooms[0] < rooms[2]


def test_room_is_bounded() -> None:
    values = [1.0, 50.0] * ENOUGH
    assert outlook(told(values)).room(0.95, 60.0, 0.0) <= MOST_ROOM
