"""A number that was given back is never used again by whoever comes late, and nobody waits for a call that hangs."""

import errno
import os
import threading
from pathlib import Path

import pytest

from ebbtide.storage.files.descriptor import Descriptor


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def fd(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def test_it_lends_its_number_until_it_is_closed(fd: int) -> None:
    file = Descriptor(fd)
    with file.lent() as one, file.lent() as other:
        assert one == other == fd
    file.close()
    assert not is_open(fd)


def test_whoever_comes_late_is_turned_away_and_meets_no_other_file(fd: int, tmp_path: Path) -> None:
    file = Descriptor(fd)
    file.close()
    another = os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT)
    assert another == fd, "the number is used again"
    with pytest.raises(OSError) as caught, file.lent():
        pass
    assert caught.value.errno == errno.EBADF
    file.close()
    assert is_open(another), "closed once only"
    os.close(another)


def test_closing_waits_for_nobody_and_the_last_user_closes(fd: int) -> None:
    file = Descriptor(fd)
    first, second = file.lent(), file.lent()
    first.__enter__()
    second.__enter__()
    file.close()
    first.__exit__(None, None, None)
    assert is_open(fd), "another call is still under way: its number must not become another file's"
    second.__exit__(None, None, None)
    assert not is_open(fd)


def test_a_call_that_fails_gives_it_back_too(fd: int) -> None:
    file = Descriptor(fd)
    with pytest.raises(KeyError), file.lent():
        raise KeyError
    file.close()
    assert not is_open(fd)


def test_many_threads_and_one_close_leave_nothing_open(fd: int) -> None:
    file, late = Descriptor(fd), list[int]()

    def use() -> None:
        for _ in range(2000):
            try:
                with file.lent() as number:
                    os.fstat(number)
            except OSError as error:
                late.append(error.errno or 0)
                return

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    file.close()
    for thread in threads:
        thread.join()
    assert not is_open(fd) and set(late) <= {errno.EBADF}
