"""Keeping the arbiter's ledger open: a first time, again after it broke, and short; and waiting for what it confirms.

While the shared directory does not answer this waits and halts the arbiter; nothing is given up, since a thread in a
hung system call cannot be ended and what it writes may count (see ``ledger_io``).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ebbtide.ledger.epoch_log import LedgerHealth
from ebbtide.ledger.errors import LedgerError, LedgerFenced, SnapshotDeclined
from ebbtide.pool.errors import PoolError
from ebbtide.pool.events import Event
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.journal.halt import Halt
from ebbtide_autoscaler.journal.ledger_io import LedgerIO, OpenLedger
from ebbtide_autoscaler.journal.records import Journal

LEDGER_DEADLINE_S = 5.0  # an fsync takes milliseconds; a filesystem that needs this long hangs
REOPEN_S = 2.0  # between two tries to open a new epoch after the ledger broke
FENCED_S = 30.0  # the same, when another arbiter has taken over: two must not throw each other out all the time

log = logging.getLogger(__name__)


class LedgerSession:
    """Runs in the arbiter's event loop; what is said to be for any thread may be asked from there."""

    def __init__(self, door: LedgerIO, shared_dir: Path, halt: Halt, take_over: Callable[[OpenLedger], None]) -> None:
        """Args:
        door: the way to the ledger.
        shared_dir: to be named to people.
        halt: in force while the ledger does not answer.
        take_over: called with each new epoch and all that was read there, before anybody is told that it is open.
        """
        self.opened = False  # for any thread; until it was read for the first time, nothing is known
        self.ledger_id = ""
        self.token = ""  # the secret that the gateway shows to replicas
        self._door, self._shared_dir, self._halt, self._take_over = door, shared_dir, halt, take_over
        self._journal: Journal
        self._entered = threading.Event()

    @property
    def epoch(self) -> int:
        """This arbiter's epoch, for any thread; it grows with every snapshot. 0: the ledger has not been read yet."""
        return self._journal.epoch if self.opened else 0  # guard: the epoch is 0 before the ledger is open

    def wait_opened(self) -> bool:
        """Wait in another thread, some seconds at most; says whether the ledger is open."""
        return self._entered.wait(LEDGER_DEADLINE_S)

    def health(self) -> LedgerHealth:
        """How it does; for any thread once it is open."""
        return self._journal.health()

    # ---- opening

    async def open_first(self, given_up: Callable[[], bool]) -> None:
        """Returns when it is open, however late, or when ``given_up``."""
        while not self.opened and not given_up():
            try:
                self._enter(await self._door.open(self._late))
            except (LedgerError, OSError, ValueError, PoolError) as error:
                self._halt.freeze(f"the ledger cannot be opened: {error}")
                await asyncio.sleep(REOPEN_S)  # guard: a pause between tries to open the ledger

    async def reopen(self, error: LedgerError) -> None:
        """Begin another epoch after the last one broke. The tick that failed has changed nothing, and is done again."""
        self._halt.freeze(f"the ledger is broken: {error}")
        await asyncio.sleep(FENCED_S if isinstance(error, LedgerFenced) else REOPEN_S)
        self._journal.close(timeout_s=0.0)
        try:
            self._enter(await self._door.open(self._late))
        except (LedgerError, OSError, ValueError, PoolError) as again:
            self._halt.freeze(f"the ledger is broken: {again}")

    def _enter(self, ledger: OpenLedger) -> None:
        self._journal, self.ledger_id, self.token = ledger.journal, ledger.ledger, ledger.token
        self._take_over(ledger)
        self.opened = True
        self._entered.set()

    def _late(self, late_s: float) -> None:
        """The shared directory has not answered for so long."""
        why = f"the shared directory {self._shared_dir} has not answered for {late_s:.0f} s; what runs goes on"
        self._halt.freeze(why, since_s=time.time() - late_s)

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.opened:
            self._journal.close()

    # ---- writing

    def write(
        self, events: Sequence[Event], *, memory: Memory | None = None, extra: Sequence[Mapping[str, Any]] = ()
    ) -> Future[int]:
        """Queue records, together; see :meth:`durable`."""
        return self._journal.write(events, memory=memory, extra=extra)

    async def record(self, payload: Mapping[str, Any]) -> None:
        """Write one record that is no event; returns when it is durable."""
        await self.durable(self.write((), extra=[payload]))

    async def durable(self, written: Future[int]) -> None:
        """Returns when the ledger has confirmed what was queued, however late."""
        waiting = asyncio.wrap_future(written)
        while True:
            try:
                await asyncio.wait_for(asyncio.shield(waiting), LEDGER_DEADLINE_S)
                return
            except TimeoutError:
                self._late(self._journal.health().oldest_pending_s)  # guard: the tick does not wait in silence

    async def keep_short(self) -> bool:
        """Begin a new file with a snapshot when a replay would take too long; says whether it did: a new epoch."""
        rolling = self._journal.keep_short()
        if rolling is None:
            return False
        try:
            await self.durable(rolling)
        except SnapshotDeclined as why:  # guard: no room for a snapshot stops nothing
            log.warning("the ledger gets no snapshot now, and grows on: %s", why)
            return False
        return True
