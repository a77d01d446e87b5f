"""Who may write over a file; and calls that may hang: bounded, one at a time, one error where no thread can be had."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import TransferFailed, TransferTimeout
from ebbtide.storage.files.file_operations import Overwrite
from ebbtide.storage.files.shared_files import Bounded, perform

LONG_S = 60.0


@pytest.fixture
def no_threads() -> Any:
    """The limit of threads is reached, until it is undone."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield patch.undo


@pytest.mark.proves("a file is written over only by who wrote it")
def test_a_file_is_written_over_only_by_who_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"another's")
    assert not perform(Overwrite(path, b"new", expected=b"mine"))
    assert path.read_bytes() == b"another's"
    assert perform(Overwrite(path, b"newer one", expected=b"another's"))
    assert path.read_bytes() == b"newer one"


def test_without_a_thread_it_is_one_error_and_the_next_call_works(
    no_threads: Callable[[], None], tmp_path: Path
) -> None:
    bounded = Bounded()
    with pytest.raises(TransferFailed, match=rf"cannot list {tmp_path}: .*EAGAIN.*can't start new thread") as told:
        bounded("list", tmp_path, LONG_S, lambda: 1)
    assert not isinstance(told.value, TransferTimeout), "nothing hangs"
    no_threads()
    assert bounded("list", tmp_path, LONG_S, lambda: 2) == 2


def test_a_call_that_hangs_is_left_behind_and_the_next_one_waits_for_its_end(tmp_path: Path) -> None:
    bounded, answer, begun = Bounded(), threading.Event(), list[int]()

    def call(number: int) -> int:
        begun.append(number)
        answer.wait(60.0)
        return number

    for number in (1, 2):
        with pytest.raises(TransferTimeout, match="cannot read"):
            bounded("read", tmp_path, 0.1, partial(call, number))
    assert begun == [1], "an outage costs one thread, not many"
    answer.set()
    assert bounded("read", tmp_path, LONG_S, partial(call, 3)) == 3


def test_what_a_call_raises_comes_out_unchanged_and_is_forgotten(tmp_path: Path) -> None:
    bounded, error = Bounded(), ValueError("a bug")

    def fail() -> int:
        raise error

    with pytest.raises(ValueError, match="a bug") as told:
        bounded("read", tmp_path, LONG_S, fail)
    assert told.value is error
    assert bounded("read", tmp_path, LONG_S, lambda: 1) == 1
