"""Backends fail in their own ways; callers see ours."""

import errno
from collections.abc import Callable

import pytest

from ebbtide.storage.errors import Refused
from ebbtide.storage.remote.fsspec_calls import BackendFailed, FileMissing, ask


class HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Asked:
    """Raises the given errors in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.count = list(errors), 0

    def __call__(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def put(question: Callable[[], str], slept: list[float] | None = None) -> str:
    return ask("read", "s3://b/x", question, (slept if slept is not None else []).append, pauses_s=(1.0, 4.0))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "passing",
    [
        ConnectionResetError(errno.ECONNRESET, "reset"),
        TimeoutError("slow"),
        EOFError("7 of 8 bytes came"),
        RuntimeError("anything"),
        HttpError(503),
        HttpError(429),
        caused(FileNotFoundError("url"), ConnectionResetError("cut")),  # fsspec calls a failed look a missing file
        caused(FileNotFoundError("url"), HttpError(503)),
    ],
)
def test_what_may_pass_is_asked_again_after_pauses(passing: Exception) -> None:
    slept: list[float] = []
    assert put(Asked(passing, passing), slept) == "answer"
    assert slept == [1.0, 4.0]
    with pytest.raises(BackendFailed, match="s3://b/x"):
        put(Asked(passing, passing, passing))


@pytest.mark.parametrize(
    "final", [PermissionError(13, "no"), NotADirectoryError(20, "no"), HttpError(401), HttpError(403)]
)
def test_what_is_final_is_raised_at_once(final: Exception) -> None:
    asked = Asked(final)
    with pytest.raises(BackendFailed) as caught:
        put(asked)
    assert asked.count == 1 and caught.value.errno in (13, 20, errno.EIO)


@pytest.mark.parametrize("missing", [FileNotFoundError("x"), caused(FileNotFoundError("x"), HttpError(404))])
def test_a_missing_file_is_told_apart(missing: Exception) -> None:
    asked = Asked(missing)
    with pytest.raises(FileMissing):
        put(asked)
    assert asked.count == 1


def test_our_own_errors_pass_unchanged() -> None:
    refused = Refused("no")
    with pytest.raises(Refused) as caught:
        put(Asked(refused))
    assert caught.value is refused


def test_interrupts_are_not_swallowed() -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put(interrupt)


def test_a_message_is_never_endless() -> None:
    with pytest.raises(BackendFailed) as caught:
        put(Asked(PermissionError("x" * 100_000)))
    assert len(str(caught.value)) < 600
