"""How following a log ends."""

import os
import signal

import pytest

from ebbtide_autoscaler.commands.logs import until_ctrl_c


def test_the_first_ctrl_c_is_an_event_wherever_it_comes_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with until_ctrl_c() as over:
        assert not over.is_set()
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException as error:  # noqa: BLE001 - nothing at all may come out here
            pytest.fail(f"{error!r} could be caught by whoever was running")
        assert over.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            over.clear()
            over.wait(5)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_way_out_is_restored_after_an_error_too() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(LookupError), until_ctrl_c():
        raise LookupError
    assert signal.getsignal(signal.SIGINT) is before
