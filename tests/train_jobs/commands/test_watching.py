"""A command that watches is ended: what it watched goes on, in one sentence, and the exit code says by what."""

import os
import signal
import time

import pytest

from ebbtide_train.commands.watching import WatchEnded, watching


def ended_by(number: signal.Signals) -> int:
    with pytest.raises(WatchEnded) as ended, watching("job lm", "lm"):
        os.kill(os.getpid(), number)
        time.sleep(10.0)
    return ended.value.exit_code


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=lambda v: str(v)
)
def test_what_was_watched_goes_on(number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as a process has it that was not started by nohup
    try:
        assert ended_by(number) == code
    finally:
        signal.signal(signal.SIGHUP, before)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "job lm goes on in the pool: `ebbtide logs lm --follow` follows it, `ebbtide cancel lm` ends it\n"
    )


def test_what_ends_by_itself_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with watching("job lm", "lm"):
        pass
    with pytest.raises(OSError, match="of its own"), watching("job lm", "lm"):
        raise OSError("of its own")
    assert capsys.readouterr().err == ""
