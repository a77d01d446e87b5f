"""How far the job's own published checkpoint reaches, and the writing of it.

Rank 0 writes for the gang. A spill writes a parked gang's state from the host pool in a thread while the slot is
already somebody else's; commits never go backwards, since each write waits for the one before.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ebbtide_train.session.checkpoint import CheckpointStore
from ebbtide_train.session.errors import CheckpointFailed
from ebbtide_train.session.settings import SessionSettings

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """What one checkpoint is of."""

    step: int
    lease_epoch: int
    dataset_len: int


class Durability:
    """The published checkpoint of one job, as rank 0 advances it."""

    def __init__(self, settings: SessionSettings, store: CheckpointStore) -> None:
        self._settings = settings
        self._store = store
        self._spill: threading.Thread | None = None
        self._last_s = time.monotonic()
        self.step = 0  # finished steps covered by the commit

    def start_from(self, step: int) -> None:
        """The commit that was found at the start of this gang."""
        self.step = step

    def due(self) -> bool:
        """Whether a periodic checkpoint should be written now."""
        return time.monotonic() - self._last_s >= self._settings.checkpoint_every_s

    def write(self, state: Mapping[str, object], version: Version) -> str:
        """Commit now; returns why that failed, or the empty string."""
        self.wait()
        return self._write(state, version)

    def spill(self, state: Mapping[str, object], version: Version) -> None:
        """Commit in the background; ``step`` rises when it is done. ``state`` must stay readable until then."""
        self.wait()
        self._spill = threading.Thread(target=self._write, args=(state, version), name="spill", daemon=True)
        self._spill.start()

    def wait(self) -> None:
        """Until no write is under way."""
        if self._spill is not None:
            self._spill.join()
            self._spill = None

    def _write(self, state: Mapping[str, object], version: Version) -> str:
        self._last_s = time.monotonic()  # also after a failure: do not try again at every step
        if version.step <= self.step:
            return ""  # the same state is committed already
        settings = self._settings
        try:
            self._store.publish(
                state,
                step=version.step,
                world=settings.world,
                lease_epoch=version.lease_epoch,
                seed=settings.seed,
                global_batch=settings.global_batch,
                dataset_len=version.dataset_len,
            )
        except CheckpointFailed as error:
            _logger.warning("%s", error)
            return str(error)
        self.step = version.step
        return ""
