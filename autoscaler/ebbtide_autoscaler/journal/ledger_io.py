"""The way to the ledger and to what else the arbiter reads on the shared directory, for a directory that may hang.

A thread in a hung system call can never be ended. So all of it happens in one daemon thread, one attempt at a time:
while an attempt hangs none is added, and when the filesystem comes back that very attempt goes on. Nobody waits for it
but the loop, which says so. That there are never two writers is the ledger's own doing (``epoch_file``).

An arbiter that has known its ledger takes no other for it: a shared directory that is not mounted looks like an empty
one, and a pool that began anew would forget who sits where. Between two lives of an arbiter a file beside the slot
locks remembers which ledger it was; it counts for one Ray cluster.
"""

import asyncio
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from ebbtide.config.pool_file import PoolFile
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.system.directory_check import directory_fault
from ebbtide_autoscaler.journal.records import Journal, Recovered, recover

PATIENCE_S = 5.0  # an open takes milliseconds, and a replay some seconds; then somebody should be told
LEAST_FREE_BYTES = 1 << 20  # an epoch needs a kilobyte to begin with, and one that fails leaves an empty file
FOR_EVER_S = 1e6

Opener = Callable[..., EpochLog]


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """An epoch of the ledger, just opened, and all that was read there."""

    journal: Journal
    found: Recovered
    epoch: int
    ledger: str
    token: str
    config: PoolFile | None


class LedgerIO:
    """Opens the ledger, as often as it takes. For one event loop, and one caller at a time."""

    def __init__(self, shared_dir: Path, *, memory: Path, cluster: str, open_log: Opener) -> None:
        """Args:
        shared_dir: the pool's.
        memory: node-local file that remembers which ledger this cluster's arbiter keeps.
        cluster: what tells this Ray cluster from another; "": nothing is remembered.
        open_log: ``EpochLog.open`` with all but the directory and ``expects``.
        """
        self._shared_dir, self._memory, self._cluster, self._open_log = shared_dir, memory, cluster, open_log
        self._expects = ""
        self._attempt: Future[OpenLedger] | None = None
        self._since_s = 0.0

    async def open(self, late: Callable[[float], None]) -> OpenLedger:
        """The next epoch.

        Args:
            late: called every few seconds while the shared directory does not answer, with the seconds so far.

        Raises:
            LedgerError, OSError, ValueError, PoolError: it cannot be opened now; try again.
        """
        if self._attempt is None:  # guard: one attempt to open the ledger at a time
            self._attempt, self._since_s = Future(), time.monotonic()
            work = threading.Thread(target=self._try, args=(self._attempt,), name="ledger-door", daemon=True)
            work.start()
        attempt = asyncio.wrap_future(self._attempt)
        while True:
            done, _ = await asyncio.wait(
                {attempt},
                timeout=PATIENCE_S,  # guard: the arbiter goes on while a directory hangs
            )
            if done:
                self._attempt = None
                return attempt.result()
            late(time.monotonic() - self._since_s)  # guard: a directory that hangs is told of

    def _try(self, attempt: "Future[OpenLedger]") -> None:
        try:
            attempt.set_result(self._open())
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            attempt.set_exception(error)

    def _open(self) -> OpenLedger:
        directory = self._shared_dir / "ledger"
        fault = directory_fault(directory, min_free_bytes=LEAST_FREE_BYTES, deadline_s=FOR_EVER_S)
        if fault is not None:  # guard: the directory is looked at before a file is made there
            raise LedgerUnusable(fault)
        opened = self._open_log(directory, expects=self._expects or self._remembered())
        try:
            found = recover(directory, up_to=opened.epoch)
            config = PoolFile.model_validate_json(found.config) if found.config else None
            token = internal_token(self._shared_dir)
            self._remember(opened.ledger)  # guard: the cluster remembers its ledger
        except BaseException:
            opened.close()  # guard: a ledger that cannot be read is closed again
            raise
        self._expects = opened.ledger  # guard: an arbiter remembers its ledger
        return OpenLedger(Journal(opened, found), found, opened.epoch, opened.ledger, token, config)

    def _remembered(self) -> str:
        try:
            known = json.loads(self._memory.read_text())
        except (OSError, ValueError):
            return ""
        same = (
            self._cluster
            # guard: one cluster's memory is not another's
            and known.get("cluster") == self._cluster
        )
        return str(known.get("ledger", "")) if same else ""

    def _remember(self, ledger: str) -> None:
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        draft = self._memory.with_suffix(".new")
        draft.write_text(json.dumps({"cluster": self._cluster, "ledger": ledger}))
        os.replace(draft, self._memory)  # guard: the memory of the ledger is replaced whole


def internal_token(shared_dir: Path) -> str:
    """The secret that the gateway shows to replicas; made once per pool, readable by its owner only.

    Raises:
        OSError: the directory cannot be read or written.
    """
    path = shared_dir / "internal-token"
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.touch(mode=0o600)  # guard: the internal token is its owner's
        draft.write_text(secrets.token_urlsafe(32))
        draft.replace(path)
    return path.read_text()
