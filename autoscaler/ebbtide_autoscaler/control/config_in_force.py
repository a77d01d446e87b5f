"""Where the pool's file is changed: it is journaled, then it is in force.

All that follows from it is made to hold tick by tick (``config_agreement``, ``gateway_sync``). Only how much of the
shared directory may be taken is left there just before, for all that use the directory (``store_limits``).
"""

import asyncio
import os
import time
from pathlib import Path

from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.storage.errors import StorageError
from ebbtide.storage.objects.store_limits import leave_limits
from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.key_changes import KeyChanges, Write
from ebbtide_autoscaler.journal.ledger_io import OpenLedger
from ebbtide_autoscaler.journal.records import CONFIGS_KEPT


class ConfigInForce:
    """The file in force. Public attributes are replaced whole and may be read from any thread."""

    def __init__(self, shared_dir: Path, keys: KeyChanges, write: Write) -> None:
        """Args:
        shared_dir: the pool's; a file that names another is for another pool.
        keys: told which keys each file names.
        write: makes a record durable.
        """
        self.config: PoolFile | None = None  # None: before the first `up`
        self.json = ""
        self.recent: tuple[str, ...] = ()  # the files that were in force last, as JSON, oldest first
        self.mode_since_s = 0.0  # 0: since before this arbiter
        self._shared_dir, self._keys, self._write = shared_dir, keys, write
        self._changing = asyncio.Lock()

    @property
    def mode(self) -> PoolMode:
        """Of the file in force."""
        return self.config.pool.mode if self.config else PoolMode.MANAGE

    def recover(self, ledger: OpenLedger) -> None:
        """Take over what the ledger says."""
        self.recent = tuple(ledger.found.configs)
        if ledger.config is not None:
            self.json, self.config = ledger.found.config, ledger.config
            self._keys.obey(*settings.file_keys(ledger.config))

    async def put(self, config: PoolFile) -> None:
        """Put a file into force.

        Raises:
            ValueError: it is not for this pool, or names a key that the command has made; nothing was changed.
        """
        self._must_be_ours(config)
        text = config.model_dump_json(by_alias=True)
        self._keys.book.with_file(settings.file_keys(config)[0])  # raises before anything is written
        async with self._changing:
            try:
                await asyncio.to_thread(leave_limits, self._shared_dir, config.pool.storage)
            except StorageError as error:
                raise ValueError(f"the file cannot be put into force: {error}") from error
            if text != self.json:
                await self._write({"type": "config", "at_s": time.time(), "config": text})
                self.mode_since_s = time.time() if config.pool.mode != self.mode else self.mode_since_s
                self.config, self.json = config, text
                self.recent = (*self.recent, text)[-CONFIGS_KEPT:]
            self._keys.obey(*settings.file_keys(config))

    def _must_be_ours(self, config: PoolFile) -> None:
        assert config.pool.shared_dir is not None
        if self.config is not None and config.pool.name != self.config.pool.name:
            raise ValueError(f"this cluster runs the pool {self.config.pool.name}, the file names {config.pool.name}")
        if os.path.abspath(config.pool.shared_dir) != os.path.abspath(self._shared_dir):  # asks no filesystem
            raise ValueError(
                f"the pool {config.pool.name} runs with the shared directory {self._shared_dir}, "
                f"the file names {config.pool.shared_dir}"
            )
