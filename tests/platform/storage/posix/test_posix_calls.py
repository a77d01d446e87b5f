"""One request until it is answered: what is asked again, how often, and what the error says in the end."""

import errno
from pathlib import Path

import pytest

from ebbtide.storage.errors import NoRoom, TransferFailed
from ebbtide.storage.posix.posix_calls import LAST_PAUSE_S, Requests, error_name

PATH = Path("somewhere") / "file"


class Patient:
    """A watch that remembers, and ends after so many pauses."""

    def __init__(self, most: int = 1000) -> None:
        self.doings: list[tuple[str, int | None]] = []
        self.pauses: list[float] = []
        self.most = most

    def doing(self, action: str, offset: int | None) -> None:
        """Remember."""
        self.doings.append((action, offset))
        if len(self.doings) > self.most:
            raise TimeoutError

    def pause(self, seconds: float) -> None:
        """Remember."""
        self.pauses.append(seconds)


class Answers:
    """Errors first, then 7."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def __call__(self) -> int:
        if self.codes:
            raise OSError(self.codes.pop(0), "made up")
        return 7


def test_an_answer_is_taken_at_once() -> None:
    watch = Patient()
    requests = Requests(PATH, watch)
    assert requests.ask("read", 5, Answers()) == 7
    assert (requests.retries, watch.doings, watch.pauses) == (0, [("read", 5)], [])


def test_interrupted_requests_are_asked_again_at_once() -> None:
    watch = Patient()
    requests = Requests(PATH, watch)
    assert requests.ask("read", 5, Answers(*[errno.EINTR] * 9)) == 7
    assert (requests.retries, len(watch.doings), watch.pauses) == (9, 10, [])


def test_busy_ones_are_asked_again_after_pauses_that_grow_to_a_bound() -> None:
    watch = Patient()
    assert Requests(PATH, watch).ask("read", 5, Answers(*[errno.EAGAIN] * 12)) == 7
    assert watch.pauses == sorted(watch.pauses) and watch.pauses[0] < watch.pauses[-1] == LAST_PAUSE_S


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_for_ever_means_until_the_watch_ends_it(code: int) -> None:
    with pytest.raises(TimeoutError):
        Requests(PATH, Patient(50)).ask("read", 5, Answers(*[code] * 1000))


def test_a_failed_device_is_asked_once_more() -> None:
    assert Requests(PATH, Patient()).ask("read", 5, Answers(errno.EIO)) == 7
    with pytest.raises(OSError, match="made up"):
        Requests(PATH, Patient()).ask("read", 5, Answers(errno.EIO, errno.EINTR, errno.EIO))
    with pytest.raises(OSError, match="made up"):
        Requests(PATH, Patient()).ask("sync", None, Answers(errno.EIO), io_errors_borne=0)


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOSPC, errno.EINVAL, errno.EBADF, errno.ENOENT])
def test_nothing_else_is_asked_again(code: int) -> None:
    watch = Patient()
    with pytest.raises(OSError, match="made up"):
        Requests(PATH, watch).ask("read", 5, Answers(code))
    assert len(watch.doings) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_says_where_and_what_to_do(code: int) -> None:
    error = Requests(PATH, Patient()).failed("write", OSError(code, ""), 4096)
    assert type(error) is NoRoom
    for words in ("write", str(PATH), "at byte 4096", errno.errorcode[code], "free some space"):
        assert words in str(error)


def test_any_other_error_keeps_its_errno_and_place() -> None:
    error = Requests(PATH, Patient()).failed("read", OSError(errno.EIO, ""), 4096, hint="a hint")
    assert isinstance(error, TransferFailed)
    assert (error.action, error.path, error.errno, error.offset) == ("read", PATH, errno.EIO, 4096)
    assert "a hint" in str(error)


def test_an_error_without_a_number_is_an_io_error() -> None:
    error = Requests(PATH, Patient()).failed("read", OSError("no number"))
    assert isinstance(error, TransferFailed) and error.errno == errno.EIO
    assert error_name(OSError("no number")) == "None"
