"""The schedule is a pure function of its seed, and growth is found where there is some."""

from pathlib import Path

import pytest

from tests.integration.kills.chaos import MACHINES, ROUND_S, calm_of, round_of
from tests.integration.kills.growth import BOUNDS, Sample, slope, verdicts
from tests.integration.kills.picture import draw
from tests.integration.kills.player import _ACTIONS
from tests.integration.kills.processes import Role


def test_the_same_seed_gives_the_same_rounds_and_another_one_others() -> None:
    first = [round_of(7, number) for number in range(20)]
    assert first == [round_of(7, number) for number in range(20)]
    assert first[3] != round_of(8, 3) and first[3] != first[4]


@pytest.mark.parametrize("seed", range(5))
def test_every_action_is_known_in_time_order_and_leaves_a_machine(seed: int) -> None:
    for number in range(50):
        actions = round_of(seed, number)
        assert all(action.kind in _ACTIONS for action in actions)
        assert [a.at_s for a in actions] == sorted(a.at_s for a in actions)
        assert all(0 <= action.at_s <= ROUND_S + 3 for action in actions)
        machines = [a for a in actions if a.kind == "power cut" or a.values.get("role") == Role.RAYLET.name]
        assert len(machines) < len(MACHINES)


def test_every_kind_of_mishap_comes_up_within_an_hour() -> None:
    seen = {action.kind for number in range(60) for action in round_of(1, number)}
    assert seen == set(_ACTIONS)


@pytest.mark.parametrize("for_s", [60.0, 1200.0])
def test_in_a_calm_stretch_users_come_and_nothing_goes_wrong(for_s: float) -> None:
    actions = calm_of(7, for_s)
    assert actions == calm_of(7, for_s)
    assert {action.kind for action in actions} == {"trickle", "flood", "hang up"}
    assert all(action.kind in _ACTIONS and 0 <= action.at_s <= for_s for action in actions)
    assert sum(action.kind == "flood" for action in actions) >= for_s / (2 * ROUND_S) - 1


def samples(values: list[float], *, series: str = "rss_mb:arbiter", instance: str = "1") -> list[Sample]:
    return [Sample(float(minute), series, instance, value) for minute, value in enumerate(values)]


def test_one_outlier_does_not_move_the_slope() -> None:
    assert slope([(float(x), 100.0 + (500.0 if x == 9 else 0.0)) for x in range(20)]) == 0.0
    assert slope([(float(x), 2.0 * x) for x in range(10)]) == 2.0


def test_a_leak_is_found_and_a_level_is_not() -> None:
    leak_per_min = BOUNDS["rss_mb"].per_hour / 60 * 1.5
    (found,) = verdicts(samples([100 + leak_per_min * minute for minute in range(40)]))
    assert found.grows
    (found,) = verdicts(samples([100.0 + minute % 3 for minute in range(40)]))
    assert not found.grows


def test_a_process_that_is_killed_now_and_then_cannot_hide_its_growth() -> None:
    leaking = [100 + 2.0 * (minute % 12) for minute in range(48)]
    by_life = [
        one
        for life in range(4)
        for one in (
            Sample(float(12 * life + minute), "rss_mb:gateway", str(life), leaking[12 * life + minute])
            for minute in range(12)
        )
    ]
    (found,) = verdicts(by_life)
    assert found.grows and found.instances == 3, "the first life lies in the warm-up"


def test_a_short_life_that_goes_up_and_down_is_no_growth_but_one_that_only_rises_is_and_so_is_a_long_one() -> None:
    def life(name: str, values: list[float]) -> list[Sample]:
        return [Sample(10.0 + minute, "fds:raylet", name, value) for minute, value in enumerate(values)]

    level = [one for number in range(4) for one in life(f"level {number}", [60.0] * 14)]
    tides = [60.0, 64.0, 60.0, 66.0, 61.0, 65.0, 62.0, 67.0, 62.0, 66.0, 63.0, 66.0]
    assert slope(list(enumerate(tides))) > BOUNDS["fds"].per_hour / 60, "by its median it would be growth"
    for more, grows in (
        (life("a tide", tides), False),
        (life("leaks", [60.0 + 2.0 * minute for minute in range(12)]), True),
        (life("leaks slowly and for long", [60.0 + 0.5 * minute + minute % 3 for minute in range(30)]), True),
    ):
        (found,) = verdicts([*level, *more])
        assert found.grows is grows, more[0].instance


def test_descriptors_that_come_and_go_with_the_traffic_are_no_growth_and_those_that_stay_are() -> None:
    """The first is what a gateway had in the last minutes of an hour, one by one, from its fourth on."""
    traffic = [0, 0, 3, 0, 0, 0, 0, 26, 0, 2, 26, 1, 1, 2, 2, 14, 2, 2, 2, 28, 4, 32, 16, 1, 28, 0, 0]
    for leak_per_min, grows in ((0.0, False), (0.25, True)):
        values = [60.0 + extra + int(leak_per_min * minute) for minute, extra in enumerate(traffic)]
        assert slope(list(enumerate(values))) > BOUNDS["fds"].per_hour / 60, "by each minute it would be growth"
        life = [Sample(10.0 + minute, "fds:gateway", "1", value) for minute, value in enumerate(values)]
        (found,) = verdicts(life)
        assert found.grows is grows, found


def test_a_gcs_may_fill_its_tables_for_longer_and_is_judged_by_what_comes_then() -> None:
    fills = [50.0, 59.0, 63.0, 66.0, 68.0, 70.0, 72.0, 73.0, 74.0]
    for after, grows in ([76.0, 75.0] * 6, False), ([75.0 + 2.0 * minute for minute in range(12)], True):
        life = [Sample(10.0 + minute, "rss_mb:gcs", "1", value) for minute, value in enumerate([*fills, *after])]
        (found,) = verdicts(life)
        assert found.grows is grows
    (other,) = verdicts([Sample(10.0 + minute, "rss_mb:arbiter", "1", value) for minute, value in enumerate(fills)])
    assert other.grows, "of any other process the same is growth"


def test_what_was_seen_too_shortly_is_not_judged() -> None:
    assert verdicts(samples([100.0, 200.0, 300.0])) == []


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw(samples([1.0, 2.0, 3.0]) + samples([5.0, 5.0], series="processes", instance=""), tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
