"""The page of a simulation."""

from ebbtide_simulator.model.meter import Use
from ebbtide_simulator.report.page import Picture, page
from ebbtide_simulator.report.tables import CAUSES, Table


def test_equal_runs_have_equal_pages() -> None:
    course = {use.value: (1, 2, 3) for use in Use}
    one = Picture((3600.0, 0.999), [(1800.0, 1.0)], dict.fromkeys(CAUSES, 0.01), course)
    first, again = (page("a pool", [[Table("t", ("policy",), (("ebbtide",),))]], {"ebbtide": one}) for _ in range(2))
    assert first == again and first.count("<svg") == 3
