"""How far the job's own published checkpoint reaches, and the writing of it.

Rank 0 writes for the gang, and all ranks write their parts of a state that is split over them. A write in the
background never holds training or a parked gang up: a periodic checkpoint is written from a copy in host memory while
the next steps run, a spill from what is parked there while the slot is already somebody else's. So a shared directory
that hangs, fills or turns read-only costs durability and no step; what is not durable and why is in ``step`` and
``error``. Commits never go backwards, since each write waits for the one before.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebbtide.storage.errors import StorageError
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.checkpoints.sharded_checkpoint import Parts
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.errors import CheckpointFailed, CommitHopeless
from ebbtide_train.session.settings import SessionSettings

RETRY_S = 1.0  # between attempts to commit when a gang must leave
_AGAIN_S = 5.0  # after a write of a parked gang's state has failed

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Version:
    """What one checkpoint is of."""

    step: int
    dataset_len: int


class Durability:
    """The published checkpoint of one job, as rank 0 advances it."""

    def __init__(self, settings: SessionSettings, store: CheckpointStore) -> None:
        self._settings = settings
        self._store = store
        self._writer: threading.Thread | None = None
        self._spill: threading.Thread | None = None  # the last one that reads what was parked
        self._last_s = time.monotonic()
        self._failed_s = 0.0
        self.step = 0  # finished steps covered by the commit
        self.error = ""  # why the last write failed; empty once one has succeeded
        self.hopeless = ""  # why no write of this gang can succeed any more; empty while one may

    def start_from(self, step: int) -> None:
        """The commit that was found at the start of this gang."""
        self.step, self.error = step, ""

    def ref(self, version: Version) -> Ref:
        """What a checkpoint of ``version`` would be, by this gang."""
        settings = self._settings
        return Ref(
            step=version.step,
            # guard: commits go into the epoch that the gang has begun
            epoch=settings.lease.epoch if self._store.epoch is None else self._store.epoch,
            world=settings.world,
            seed=settings.seed,
            global_batch=settings.global_batch,
            dataset_len=version.dataset_len,
        )

    def due(self) -> bool:
        """Whether a periodic checkpoint should be written now: never while one is being written.

        Also if that is hopeless: then the ranks come together for it, and hear so.
        """
        is_time = time.monotonic() - self._last_s >= self._settings.checkpoint_every_s
        return not self._writing() and (
            is_time
            # guard: a gang whose commits can never count leaves while it trains
            or bool(self.hopeless)
        )

    def due_again(self, version: Version) -> bool:
        """Whether ``version`` should be tried again, since writing it has failed a while ago."""
        missing = self.step < version.step and not self._writing()
        return missing and bool(self.error) and time.monotonic() - self._failed_s >= _AGAIN_S

    def write(self, state: Mapping[str, object], version: Version) -> str:
        """Commit now; returns why that failed, or the empty string."""
        self.wait()
        return self._write(version, lambda ref: self._store.publish(state, ref))

    def write_together(self, group: Group, parts: Parts, version: Version) -> str:
        """Commit now a state that is split over the ranks; all of them call it. Returns as `write`, alike on all."""
        self.wait()
        return self._write(version, lambda ref: self._store.publish_together(group, parts, ref))

    def begin(self, state: Mapping[str, object], version: Version, *, spill: bool = False) -> None:
        """Commit in the background; ``step`` rises when it is done. ``state`` must not change until then.

        Args:
            state: a copy; or, with ``spill``, what is parked in host memory.
            version: what it is of.
            spill: see `wait_for_spill`.
        """
        try:
            self._start(version, lambda ref: self._store.publish(state, ref))
        except RuntimeError as error:  # guard: without a thread to write in a write is tried again
            self.failed(error)
        else:
            # guard: a checkpoint that is being written holds up no park
            self._spill = self._writer if spill else self._spill

    def begin_together(self, group: Group, parts: Parts, version: Version) -> None:
        """The same for a state that is split over the ranks; all of them call it.

        Args:
            group: of the writers alone, see `Group.beside`.
            parts: a copy of what this rank has.
            version: what it is of.
        """
        try:
            self._start(version, lambda ref: self._store.publish_together(group, parts, ref))
        except RuntimeError:  # the other ranks wait for this one's part
            _logger.warning("no thread to write a checkpoint in: training waits for it", exc_info=True)
            self.write_together(group, parts, version)

    def failed(self, error: Exception) -> None:
        """A checkpoint was not even begun: there is no copy that could be written."""
        self._last_s = self._failed_s = time.monotonic()
        self.error = str(error) if isinstance(error, StorageError) else f"{type(error).__name__}: {error}"
        _logger.warning("no checkpoint is written: %s", self.error)

    def wait(self, timeout_s: float = math.inf) -> None:
        """Until no write is under way, or the time is over."""
        if self._writer is not None:
            self._writer.join(min(timeout_s, threading.TIMEOUT_MAX))
            if not self._writer.is_alive():
                self._writer = None

    def wait_for_spill(self) -> None:
        """Until nothing reads what was parked any more. A checkpoint that is written from a copy is not waited for."""
        if self._spill is not None:
            self._spill.join()
            self._spill = None

    def _start(self, version: Version, publish: Callable[[Ref], None]) -> None:
        """Raises RuntimeError ("can't start new thread"): the process or the machine has too many."""
        before = self._writer

        def write() -> None:
            if before is not None:
                before.join()
            self._write(version, publish)

        writer = threading.Thread(target=write, name="durability", daemon=True)
        writer.start()
        self._writer = writer

    def _writing(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _write(self, version: Version, publish: Callable[[Ref], None]) -> str:
        self._last_s = time.monotonic()  # also after a failure: do not try again at every step
        if version.step <= self.step:
            return ""  # the same state is committed already
        try:
            publish(self.ref(version))  # guard: the steps that count as durable rise only by a commit
        except CheckpointFailed as error:
            _logger.warning("%s", error)
            self._failed_s = time.monotonic()
            self.error = str(error)  # guard: a write that failed is told
            if isinstance(error, CommitHopeless):
                self.hopeless = self.error
            return self.error
        # guard: nothing ends the writer of checkpoints in silence
        except Exception as error:  # the outermost of the writer's thread: else nobody would hear, nor try again
            _logger.exception("step %d could not be committed", version.step)
            self._failed_s = time.monotonic()
            self.error = f"{type(error).__name__}: {error}"
            return self.error
        self.step, self.error = version.step, ""
        return ""
