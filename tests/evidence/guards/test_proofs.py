"""The tests that prove guards are read from the source of tests."""

from evidence.guards.proofs import Proof, proofs_in

SOURCE = """
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.proves("of the module")]

@pytest.mark.proves("one", "two")
def test_f():
    pass

@pytest.mark.parametrize("a", [1, pytest.param(2, marks=pytest.mark.proves("of a case"))])
async def test_g(a):
    pass

@pytest.mark.proves("of a class")
class TestC:
    @pytest.mark.proves("inside")
    def test_h(self):
        pass

def test_nothing():
    text = "pytest.mark.proves('not here')"
"""


def test_markers_are_found_with_the_test_that_they_stand_on() -> None:
    assert list(proofs_in(SOURCE, "tests/x.py")) == [
        Proof("of the module", "tests/x.py"),
        Proof("one", "tests/x.py::test_f"),
        Proof("two", "tests/x.py::test_f"),
        Proof("of a case", "tests/x.py::test_g"),
        Proof("of a class", "tests/x.py::TestC"),
        Proof("inside", "tests/x.py::TestC::test_h"),
    ]
