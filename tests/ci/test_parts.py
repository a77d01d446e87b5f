"""The shares of the budget: whatever hangs, a run ends in time, and later parts keep the least that they need."""

from hypothesis import given
from hypothesis import strategies as st

from ci.part import Unit
from ci.parts import CHECK, CLUSTERS, SHARED, SHARES, TEST, limit_s, modules, with_clusters


@given(st.floats(60, 70 * 60))
def test_parts_that_all_use_up_their_share_end_within_the_budget(left_s: float) -> None:
    for part in (CHECK, TEST, CLUSTERS):
        takes_s = limit_s(part, left_s)
        assert 0 <= takes_s <= left_s
        left_s -= takes_s


def test_tests_that_hang_leave_the_clusters_their_time() -> None:
    left_s = 68 * 60.0
    left_s -= limit_s(CHECK, left_s)
    left_s -= limit_s(TEST, left_s)
    assert left_s >= 60 * SHARES[TEST].leave_min


def test_modules_are_taken_once_the_longest_first_and_unknown_ones_before_them() -> None:
    found = modules(["a.py::one", "b.py::two[x::y]", "a.py::three", "c.py::four"])
    assert found == ["a.py", "b.py", "c.py"]
    units = with_clusters(found, (), "ray", {"a.py": 10.0, "b.py": 200.0, "c.py": 700.0})
    assert [(unit.name, limit) for unit, limit in units] == [("c.py", 2800.0), ("b.py", 800.0), ("a.py", 420.0)]


def test_modules_that_share_a_cluster_have_one_process() -> None:
    units = [unit for unit, _ in with_clusters(["a.py", "b.py", "c.py"], ["c.py", "a.py"], "ray", {})]
    assert units == [Unit("b.py", ("-q", "-m", "ray", "b.py")), Unit(SHARED, ("-q", "-m", "ray", "a.py", "c.py"))]
    assert [unit.name for unit, _ in with_clusters(["a.py"], [], "ray", {})] == ["a.py"]
