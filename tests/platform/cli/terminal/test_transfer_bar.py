"""How far a transfer is, in lines where there is no terminal."""

import threading
import time

import pytest

from ebbtide.cli.terminal.transfer_bar import TransferBar, _numbers, _time


def test_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    with TransferBar() as bar:
        for second in range(21):
            now_s[0] = float(second)
            bar.show("copying", second * 10**6, 100 * 10**6)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "copying: 0 bytes of 100.0 MB (0 %)",
        "copying: 5.0 MB of 100.0 MB (5 %), 1.0 MB/s, 1 min 35 s left",
        "copying: 10.0 MB of 100.0 MB (10 %), 1.0 MB/s, 1 min 30 s left",
        "copying: 15.0 MB of 100.0 MB (15 %), 1.0 MB/s, 1 min 25 s left",
        "copying: 20.0 MB of 100.0 MB (20 %), 1.0 MB/s, 1 min 20 s left",
    ]


def test_a_new_phase_is_told_at_once_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with TransferBar() as bar:
        bar.show("waiting", why="[node] 7 is at it")
        bar.show("copying", 1, 2)
        bar.show("copying", 2, 2)
    assert capsys.readouterr().err.splitlines() == ["waiting: [node] 7 is at it", "copying: 1 byte of 2 bytes (50 %)"]


def test_quiet_means_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with TransferBar(quiet=True) as bar:
        bar.show("copying", 1, 2)
    assert capsys.readouterr().err == ""


def test_it_may_be_told_from_many_threads(capsys: pytest.CaptureFixture[str]) -> None:
    with TransferBar() as bar:
        threads = [threading.Thread(target=bar.show, args=("copying", n, 100)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_numbers_are_for_people() -> None:
    assert _numbers(5, 0, 1.0) == ""
    assert _numbers(10**9, 4 * 10**9, 5 * 10**8) == ": 1.0 GB of 4.0 GB (25 %), 500.0 MB/s, 6 s left"
    assert (_time(0.4), _time(59.6), _time(3599), _time(7260)) == ("0 s", "1 min 0 s", "59 min 59 s", "2 h 1 min")
