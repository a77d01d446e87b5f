"""In which order contenders run, and what is made of what they did."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from benchmarks.bulk import readers, writers
from benchmarks.bulk.fio import Ceiling
from benchmarks.bulk.outcome import Outcome
from benchmarks.bulk.rounds import contest, read_bars, rows_of, turn

GB = 10**9


def outcome(name: str, seconds: float = 1.0, **more: object) -> Outcome:
    figures = {"size_bytes": GB, "cpu_s": 0.05, "peak_bytes": GB, "peak_rss_bytes": 3 * GB} | more
    return Outcome(name=name, seconds=seconds, **figures)  # type: ignore[arg-type]


def steady() -> Ceiling:
    return Ceiling(2.0, 0.01)


@pytest.mark.parametrize("names", [list(readers.READERS), list(writers.WRITERS)])
def test_all_take_part_in_each_round_and_nobody_comes_after_the_same_one_again(names: list[str]) -> None:
    seen: set[tuple[str, str]] = set()
    rounds = min(5, len(names))  # the fifth of the four writers is their first again
    for number in range(rounds):
        order = turn(names, number)
        assert sorted(order) == sorted(names)
        after = set(pairwise(order))
        assert not after & seen
        seen |= after
    assert len({turn(names, number)[0] for number in range(rounds)}) == rounds, "each round begins with another one"


@pytest.mark.parametrize("count", range(1, 13))
def test_any_number_of_contenders_all_take_part(count: int) -> None:
    names = [f"c{number}" for number in range(count)]
    assert all(sorted(turn(names, number)) == sorted(names) for number in range(2 * count))
    assert turn(names, 0) == names


def test_the_rounds_of_a_contest_go_in_turns_and_who_fails_is_out() -> None:
    ran = []

    def run(name: str) -> Outcome:
        ran.append(name)
        return outcome(name, wrong="a bit" if name == "c" else "")

    found = contest(["a", "b", "c"], 3, steady, run)
    assert ran == [*("a", "b", "c"), *("b", "a"), *("a", "b")], "c has no second round"
    assert [len(found.series[name].outcomes) for name in "abc"] == [3, 3, 0]
    assert found.series["c"].failed == "a bit"
    assert len(found.ceilings) == 3 + 7 - 1, "one before each round and one after each who came through"


def test_rows_have_the_peak_both_ways() -> None:
    rows = {one.metric: one for one in rows_of("cold read", contest(["a"], 2, steady, outcome))}
    assert (rows["a, memory besides what it had"].median, rows["a, memory besides what it had"].unit) == (
        1.0,
        "x bytes",
    )
    assert (rows["a, peak RSS"].median, rows["a, peak RSS"].unit, rows["a, peak RSS"].n) == (3 * GB, "bytes", 2)
    assert rows["a, to the ceiling"].median == 0.5


def run_at(speeds: dict[str, float]) -> Callable[[str], Outcome]:
    return lambda name: outcome(name, seconds=1 / speeds.get(name, 1.0))


def test_the_bars_of_reads_compare_shares_of_the_ceiling() -> None:
    speeds = {readers.OURS: 1.9, readers.SAFETENSORS: 1.0, readers.KVIKIO: 2.0}
    found = contest(list(readers.READERS), 1, steady, run_at(speeds))
    ratio, cpu, peers = read_bars(found)
    assert (ratio.value, ratio.met) == (0.95, True)
    assert (cpu.value, cpu.met) == (0.05, True)
    assert (peers.value, peers.met) == (0.95, False), "that of kvikio, for it is the smaller one"
    assert "here 0.950" in peers.goal
