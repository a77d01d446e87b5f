"""Leases that readers can do without where the store cannot be written: full, or mounted read-only.

All weights can be read there, and a service that is down for want of a small file would be the worse of two ills. What
is read without a lease may be collected under the reader; but objects that have a name are not collected, nobody
collects on a read-only filesystem, and on a full one the lease is held as soon as there is room for it.

Only for leases of who only reads (``comes_back``): whoever writes needs one that others can see.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from ebbtide.storage.errors import NoRoom, StorageError, Superseded, TransferFailed
from ebbtide.storage.leases.object_leases import Lease, Leases

AGAIN_S = 30.0  # an operator who makes room needs longer
_CANNOT_WRITE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class BestEffortLeases:
    """See `Leases`."""

    def __init__(self, leases: Leases, say: Callable[[str], object], *, again_s: float = AGAIN_S) -> None:
        """``say`` is told what is read without a lease, and why."""
        self._leases, self._say, self._again_s = leases, say, again_s

    @contextmanager
    def hold(self, subject: str, *, comes_back: bool = False) -> Iterator[Lease]:
        """See `Leases`. One that comes back may come late the first time too; ``check`` says that it is not held."""
        with ExitStack() as held:
            try:
                lease = held.enter_context(self._leases.hold(subject, comes_back=comes_back))
            except (NoRoom, TransferFailed) as error:
                if (
                    not comes_back  # guard: a lease is taken again by readers only
                    or not _cannot_write(error)  # guard: only where nothing can be written one reads without a lease
                ):
                    raise
                self._say(f"{subject} is read without a lease: {error}")
                lease = held.enter_context(self._later(subject))
            yield lease

    def living(self) -> frozenset[str]:
        """See `Leases`."""
        return self._leases.living()

    def present(self) -> frozenset[str]:
        """See `Leases`."""
        return self._leases.present()

    @contextmanager
    def _later(self, subject: str) -> Iterator[Lease]:
        over = threading.Event()

        def hold_when_possible() -> None:
            while not over.wait(self._again_s):  # guard: a lease that could not be had is held as soon as it can be
                with suppress(StorageError), self._leases.hold(subject, comes_back=True):
                    over.wait()

        threading.Thread(target=hold_when_possible, name=f"late lease {subject}"[:60], daemon=True).start()
        try:
            yield _NoLease(subject)
        finally:
            over.set()


class _NoLease:
    def __init__(self, subject: str) -> None:
        self._subject = subject

    def check(self) -> None:
        """See `Lease`."""
        raise Superseded(f"{self._subject} was never leased")

    def confirm(self) -> None:
        """See `Lease`."""
        self.check()


def _cannot_write(error: StorageError) -> bool:
    return isinstance(error, NoRoom) or getattr(error, "errno", 0) in _CANNOT_WRITE
