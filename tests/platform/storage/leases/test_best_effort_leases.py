"""Reading from a store in which no lease can be written, and holding one as soon as it can be."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebbtide.storage.errors import NoRoom, StorageError, Superseded, TransferFailed, TransferTimeout
from ebbtide.storage.leases.best_effort_leases import BestEffortLeases
from ebbtide.storage.leases.object_leases import Lease
from tests.platform.storage.stores import LocalLeases

SUBJECT = "object-" + "ab" * 32
FULL = NoRoom("the filesystem is full")


class Failing(LocalLeases):
    """Fails until it is told not to."""

    error: StorageError | None = FULL

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.Event()

    @contextmanager
    def hold(self, subject: str, *, comes_back: bool = False) -> Iterator[Lease]:
        if self.error is not None:
            raise self.error
        with super().hold(subject, comes_back=comes_back) as lease:
            self.held.set()
            yield lease


def failed(code: int) -> StorageError:
    return TransferFailed("create", Path("lease"), errno=code)


@pytest.mark.parametrize("error", [FULL, failed(errno.EROFS), failed(errno.EACCES), failed(errno.EPERM)])
def test_a_reader_goes_without_where_nothing_can_be_written_and_says_so(error: StorageError) -> None:
    leases, said = Failing(), list[str]()
    leases.error = error
    with BestEffortLeases(leases, said.append).hold(SUBJECT, comes_back=True) as lease:
        assert len(said) == 1
        assert str(error) in said[0]
        with pytest.raises(Superseded):
            lease.check()
        with pytest.raises(Superseded):
            lease.confirm()


@pytest.mark.proves("only where nothing can be written one reads without a lease")
@pytest.mark.parametrize("error", [failed(errno.EIO), TransferTimeout("create", Path("lease"), after_s=1.0)])
def test_another_failure_is_one(error: StorageError) -> None:
    leases = Failing()
    leases.error = error
    with pytest.raises(TransferFailed), BestEffortLeases(leases, print).hold(SUBJECT, comes_back=True):
        raise AssertionError


@pytest.mark.proves("a lease is taken again by readers only")
def test_whoever_writes_never_goes_without() -> None:
    for subject in ("work-x", SUBJECT):
        with pytest.raises(NoRoom), BestEffortLeases(Failing(), print).hold(subject):
            raise AssertionError


@pytest.mark.proves("a lease that could not be had is held as soon as it can be")
def test_the_lease_is_held_as_soon_as_it_can_be_and_given_up_at_the_end() -> None:
    leases = Failing()
    late = BestEffortLeases(leases, lambda why: None, again_s=0.01)
    with late.hold(SUBJECT, comes_back=True):
        assert not leases.held.wait(0.1)
        leases.error = None
        assert leases.held.wait(30)
        assert late.living() == late.present() == {SUBJECT}
    for _ in range(1000):
        if not late.living():
            break
        threading.Event().wait(0.01)
    assert late.living() == frozenset()


def test_a_lease_that_can_be_had_is_held_at_once() -> None:
    leases = Failing()
    leases.error = None
    with BestEffortLeases(leases, print).hold("work-x") as lease:
        lease.check()
        assert leases.living() == {"work-x"}
    assert leases.living() == frozenset()
