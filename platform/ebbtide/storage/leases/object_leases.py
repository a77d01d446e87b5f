"""Who is at work with which object or work directory, so that the garbage collector leaves it alone."""

import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ebbtide.storage.leases.lease_file import Pace
from ebbtide.storage.leases.lease_holder import DEFAULT_PACE, REAL, System, hold
from ebbtide.storage.leases.lease_watch import LeaseObserver, living


class Lease(Protocol):
    """Something that is held."""

    def check(self) -> None:
        """Raises `Superseded` if it is not held any more; costs nothing."""

    def confirm(self) -> None:
        """The same, after asking the shared directory."""


class Leases(Protocol):
    """Gives shared leases and knows the living ones."""

    def hold(self, subject: str, *, comes_back: bool = False) -> AbstractContextManager[Lease]:
        """Hold ``subject`` beside any number of others, until the context ends.

        Args:
            comes_back: for who only reads. A lease that was lost, as in an outage, is taken again as soon as that can
                be. Between, the subject may have been collected: whoever reads it finds it gone then. Leases of who
                writes stay lost.
        """

    def living(self) -> frozenset[str]:
        """The subjects that somebody holds; may take as long as a holder may be silent."""

    def present(self) -> frozenset[str]:
        """The subjects of all leases, also of holders that may be dead; quick."""


def this_process() -> str:
    """Who this is, for people."""
    return f"{socket.gethostname()}, process {os.getpid()}"


class SharedLeases:
    """Leases as heartbeat files in a directory of the store, see ``lease_holder``."""

    def __init__(self, directory: Path, *, who: str = "", pace: Pace = DEFAULT_PACE, system: System = REAL) -> None:
        self._directory, self._who, self._pace, self._system = directory, who or this_process(), pace, system

    def hold(self, subject: str, *, comes_back: bool = False) -> AbstractContextManager[Lease]:
        """See `Leases`; raises StorageError if that cannot be had."""
        return hold(
            self._directory, subject, who=self._who, pace=self._pace, system=self._system, comes_back=comes_back
        )

    def living(self) -> frozenset[str]:
        """See `Leases`; raises StorageError where nobody may be taken for dead."""
        return living(self._directory, pace=self._pace, system=self._system)

    def present(self) -> frozenset[str]:
        """See `Leases`."""
        observer = LeaseObserver(self._directory, pace=self._pace, system=self._system)
        return frozenset(one.file.name for one in observer.look())
