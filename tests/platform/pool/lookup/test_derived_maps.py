"""Look-ups that follow a mapping say, after any changes in any order, what one that looks at all of it says."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.pool.lookup.derived_maps import group_by, lined_up, order_by, select, sum_by
from ebbtide.pool.lookup.records import STEPS_KEPT, Records, changed_keys, having, without

Pair = tuple[int, str]


def _number(key: str) -> int:
    return int(key)


@select
def big(record: Pair) -> int | None:
    return record[0] if record[0] > 1 else None


@group_by(order=_number)
def of_color(record: Pair) -> tuple[str, int] | None:
    return (record[1], record[0]) if record[1] else None


@sum_by
def sums(record: Pair) -> Mapping[str, int] | None:
    return {record[1]: max(0, record[0]), "all": 1} if record[1] else None


def _place(record: Pair) -> tuple[str, int]:
    return record[1], -record[0]


@order_by(_place)
def in_line(record: Pair) -> Pair | None:
    return record if record[0] > 1 else None


@lined_up(_place, lambda ones, numbers: tuple(zip(ones, numbers, strict=True)))
def by_color_in_line(record: Pair) -> tuple[str, tuple[Pair, int]] | None:
    return (record[1], (record, record[0])) if record[0] > 1 else None


records = st.tuples(st.integers(-2, 3), st.sampled_from(["", "red", "blue"]))
keys = st.sampled_from([str(number) for number in range(12)])
steps = st.lists(st.one_of(st.dictionaries(keys, records, max_size=3), st.lists(keys, max_size=2)), max_size=12)


def moved(source: Mapping[str, Pair], step: dict[str, Pair] | list[str]) -> Mapping[str, Pair]:
    return having(source, step) if isinstance(step, dict) else without(source, step)


def agrees(source: Mapping[str, Pair]) -> None:
    assert big(source) == {key: number for key, (number, _) in source.items() if number > 1}
    by_color = of_color(source)
    for color in ("red", "blue"):
        expected = [(key, source[key][0]) for key in sorted(source, key=int) if source[key][1] == color]
        assert list(by_color.get(color, {}).items()) == expected
    assert set(by_color) == {color for _, color in source.values() if color}
    assert list(in_line(source)) == sorted((one for one in source.values() if one[0] > 1), key=_place)
    lines = {color: [one for one in in_line(source) if one[1] == color] for color in ("", "red", "blue")}
    assert {color: list(line) for color, line in by_color_in_line(source).items()} == {
        color: [(one, one[0]) for one in line] for color, line in lines.items() if line
    }
    expected_sums = Counter[str]()
    for number, color in source.values():
        if color:
            expected_sums.update({color: max(0, number), "all": 1})
    assert sums(source) == {key: count for key, count in expected_sums.items() if count > 0}


@given(st.dictionaries(keys, records), steps, st.lists(st.integers(0, 12), max_size=20))
def test_they_agree_whatever_way_a_mapping_went_and_whatever_was_asked_before(
    first: dict[str, Pair], then: list[dict[str, Pair] | list[str]], asked: list[int]
) -> None:
    course: list[Mapping[str, Pair]] = [first]
    for number, step in enumerate(then):  # from any of those before: a plan that was not carried out leaves a fork
        course.append(moved(course[asked[number % len(asked)] % len(course)] if asked else course[-1], step))
    for number in asked:
        agrees(course[number % len(course)])
    for one in course:
        agrees(one)


@given(st.dictionaries(keys, records), steps, steps)
def test_changed_misses_nothing(
    first: dict[str, Pair], then: list[dict[str, Pair]], fork: list[dict[str, Pair]]
) -> None:
    course: list[Mapping[str, Pair]] = [having(first, {})]
    for step in then:
        course.append(moved(course[-1], step))
    for step in fork:
        course.append(moved(course[len(course) // 2], step))
    for before in course:
        for after in course:
            told = changed_keys(before, after)
            if told is not None:
                differ = {key for key in {*before, *after} if before.get(key) is not after.get(key)}
                assert differ <= set(told)


def test_what_is_not_touched_stays_the_same_object() -> None:
    source = having({str(number): (number, "red") for number in range(5)}, {})
    before = big(source), of_color(source), sums(source)
    after = having(source, {"7": (0, "")})
    assert [one is two for one, two in zip(before, (big(after), of_color(after), sums(after)), strict=True)] == [
        True
    ] * 3
    other = having(after, {"8": (3, "blue")})
    assert of_color(other)["red"] is of_color(source)["red"] and "blue" in of_color(other)


def test_a_change_costs_a_look_at_what_changed_and_not_at_everything() -> None:
    looked: list[Pair] = []

    @select
    def counted(record: Pair) -> int | None:
        looked.append(record)
        return record[0]

    source: Mapping[str, Pair] = having({str(number): (number, "red") for number in range(1000)}, {})
    counted(source)
    looked.clear()
    for number in range(1, STEPS_KEPT):
        source = having(source, {"3": (number, "red")})
    assert counted(source)["3"] == STEPS_KEPT - 1 and len(looked) == 2


def test_who_looks_too_seldom_looks_at_all_of_it() -> None:
    first = source = having({"0": (2, "red")}, {})
    assert changed_keys(first, source) == ()
    for number in range(2 * STEPS_KEPT + 1):
        source = having(source, {str(number): (number, "red")})
    assert changed_keys(first, source) is None
    agrees(source)


def test_a_mapping_of_another_kind_has_no_history() -> None:
    source = having({"0": (2, "red")}, {"1": (3, "blue")})
    assert changed_keys(dict(source), source) is None and changed_keys(source, dict(source)) is None
    assert source == {"0": (2, "red"), "1": (3, "blue")} and isinstance(source, Records)
    assert without(source, ["1", "9"]) == {"0": (2, "red")}
