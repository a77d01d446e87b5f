"""What is fresh, stale and missing, and in which order it is measured again."""

from hypothesis import given
from hypothesis import strategies as st

from evidence.results import Case
from evidence.stamps import Stamp
from evidence.standing import Row, Standing, led_on, rows, stalest_first


def case(name: str, *processes: str) -> Case:
    return Case(name, processes or ("gateway",), 100.0)


def stamp(digest: str, date: str = "2026-01-01 10:00", seconds: float = 60.0) -> Stamp:
    return Stamp("c", "h", date, seconds, ("gateway",), digest)


def found(**stamps: Stamp) -> list[Row]:
    return rows([case("a"), case("b"), case("c")], stamps, lambda _: "now", {})


def test_a_case_is_stale_when_the_code_behind_it_is_another_and_only_then() -> None:
    standing = {row.case.name: row.standing for row in found(a=stamp("now", "1999-01-01 00:00"), b=stamp("then"))}
    assert standing == {"a": Standing.FRESH, "b": Standing.STALE, "c": Standing.MISSING}


def test_each_case_is_held_against_the_code_behind_its_own_processes() -> None:
    cases = [case("a", "gateway"), case("b", "arbiter")]
    stamps = {"a": stamp("gateway"), "b": stamp("gateway")}
    got = rows(cases, stamps, lambda processes: processes[0], {})
    assert [row.standing for row in got] == [Standing.FRESH, Standing.STALE]


def test_a_statement_leads_from_earlier_code_to_the_present_one_over_several_steps() -> None:
    same = {"v1": "v2", "v2": "now"}
    [row] = rows([case("a")], {"a": stamp("v1")}, lambda _: "now", same)
    assert row.standing is Standing.FRESH
    [row] = rows([case("a")], {"a": stamp("v0")}, lambda _: "now", same)
    assert row.standing is Standing.STALE


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdef")), st.sampled_from("abcdef"))
def test_statements_that_lead_in_a_circle_end(same: dict[str, str], digest: str) -> None:
    assert led_on(digest, same) in "abcdef"


def test_missing_ones_come_first_then_the_oldest_stale_ones_then_fresh_ones() -> None:
    cases = [case(name) for name in ("new", "fresh", "old", "older")]
    stamps = {
        "fresh": stamp("now", "2020-01-01 00:00"),
        "old": stamp("then", "2026-02-02 00:00"),
        "older": stamp("then", "2026-01-01 00:00"),
    }
    order = [row.case.name for row in stalest_first(rows(cases, stamps, lambda _: "now", {}))]
    assert order == ["new", "older", "old", "fresh"]
