"""Asking what may hang."""

import threading

import pytest

from ebbtide.diagnostics.host.deadline import NoAnswer, within


def test_an_answer_comes_through() -> None:
    assert within(30.0, lambda: 7) == 7


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("its own")])
def test_an_error_comes_through_as_it_is(error: Exception) -> None:
    def ask() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        within(30.0, ask)


def test_what_hangs_is_left_behind() -> None:
    release = threading.Event()
    with pytest.raises(NoAnswer, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: release.wait(60))
    release.set()
