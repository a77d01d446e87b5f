"""SIGTERM and SIGHUP are as Ctrl-C; what was ignored from birth stays ignored; nothing disturbs the putting right."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ebbtide.system.interrupts import Terminated, terminated_is_interrupted, undisturbed

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLED_S = 10.0  # at once; a signal that another thread gets is handled at the next look of the main thread


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """SIGHUP as a process has it that was not started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def wait() -> None:
    """Until a signal is handled. Not `signal.pause`, which waits for ever if that was before."""
    deadline_s = time.monotonic() + HANDLED_S
    while time.monotonic() < deadline_s:
        time.sleep(0.01)


@pytest.mark.parametrize("number", ALL)
def test_each_is_an_interrupt_and_what_was_before_comes_back(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in ALL]
    with pytest.raises(KeyboardInterrupt), terminated_is_interrupted():
        os.kill(os.getpid(), number)
        wait()
    assert [signal.getsignal(one) for one in ALL] == before


@pytest.mark.parametrize("number", ALL)
def test_nothing_disturbs(number: signal.Signals) -> None:
    with terminated_is_interrupted(), undisturbed():
        os.kill(os.getpid(), number)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminated_is_interrupted():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_nothing_changes() -> None:
    def inside() -> bool:
        with terminated_is_interrupted(), undisturbed():
            return threading.current_thread() is not threading.main_thread()

    before = [signal.getsignal(one) for one in ALL]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result()
    assert [signal.getsignal(one) for one in ALL] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_which_signal_it_was_is_known_and_ctrl_c_is_none(number: signal.Signals) -> None:
    with pytest.raises(Terminated) as ended, terminated_is_interrupted():
        os.kill(os.getpid(), number)
        wait()
    assert ended.value.number == number
    with pytest.raises(KeyboardInterrupt) as pressed, terminated_is_interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        wait()
    assert not isinstance(pressed.value, Terminated)
