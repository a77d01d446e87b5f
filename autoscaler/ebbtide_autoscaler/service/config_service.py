"""The pool's file and its API keys: a change is done when it is journaled, and refused while the ledger hangs.

Every method waits, but not for ever, and raises ValueError, which the command prints. Called from many threads.
"""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from ebbtide.client.messages import KeyGrant
from ebbtide.config.pool_file import PoolFile
from ebbtide_autoscaler.control.key_changes import KeyChanges
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.journal.ledger_session import LedgerSession
from ebbtide_autoscaler.process.loop_thread import LoopThread
from ebbtide_autoscaler.service.operator_service import must_be_open

CONFIG_S = 30.0  # an fsync, and a first start of Serve: 3-14 s on 2 cores (docs/origins.md)
KEY_CHANGE_S = 10.0  # an fsync takes milliseconds; while the ledger hangs nothing changes

Configure = Callable[[PoolFile], Coroutine[Any, Any, dict[str, Any]]]
"""Puts a file into force, in the loop's own thread."""


class ConfigService:
    """For the file and the keys of one pool."""

    def __init__(
        self, published: Published, keys: KeyChanges, ledger: LedgerSession, thread: LoopThread, configure: Configure
    ) -> None:
        self._published, self._keys, self._ledger = published, keys, ledger
        self._thread, self._configure = thread, configure

    def _run(self, change: Coroutine[Any, Any, dict[str, Any]]) -> "Future[dict[str, Any]]":
        try:
            must_be_open(self._ledger, self._published)
        except ValueError:
            change.close()
            raise
        return self._thread.run(change)

    def apply_config(self, config_json: str) -> dict[str, Any]:
        """Make the pool agree with a file; waits until it is journaled and the gateway was told.

        Raises:
            ValueError: the file cannot be put into force, and nothing was changed; or the ledger does not answer.
        """
        done: Future[dict[str, Any]] = self._run(self._configure(PoolFile.model_validate_json(config_json)))
        try:
            return done.result(timeout=CONFIG_S)
        except FutureTimeout:
            raise ValueError(
                f"the ledger has not taken the file within {CONFIG_S:g} s ({self._published.frozen or 'it is slow'}); "
                "the file before it is in force until it does: see `ebbtide status`, and run `ebbtide up` again"
            ) from None

    # ---- keys; each method answers with the key's row

    def create_key(self, grant: KeyGrant) -> dict[str, Any]:
        """Make an API key; every gateway takes it within a second.

        Raises:
            ValueError: refused; the message says why.
        """
        return self._key_change(self._keys.create(grant))

    def rotate_key(self, name: str, sha256: str, grace_s: float) -> dict[str, Any]:
        """Give a key another secret; the old one stays good for ``grace_s``. Same errors."""
        return self._key_change(self._keys.rotate(name, sha256, grace_s))

    def revoke_key(self, name: str) -> dict[str, Any]:
        """Close a key for good; every gateway refuses it within a second. Same errors."""
        return self._key_change(self._keys.revoke(name))

    def _key_change(self, change: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        try:
            return self._run(change).result(timeout=KEY_CHANGE_S)
        except FutureTimeout:
            raise ValueError(
                f"not journaled within {KEY_CHANGE_S:g} s ({self._published.frozen or 'the arbiter is busy'}); "
                "it comes into force if the ledger takes it after all: see `ebbtide keys list`"
            ) from None
