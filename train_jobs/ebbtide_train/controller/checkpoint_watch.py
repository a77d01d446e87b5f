"""How far a job's published checkpoint reaches, read again and again where nothing waits for it.

A thread of its own: a shared directory that hangs must not silence the controller. It looks at the job's
checkpoints, since the last rank of a gang may be gone before it could say that its commit is done.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from ebbtide_train.session.checkpoints.checkpoint_ref import durable_step
from ebbtide_train.session.errors import CheckpointMismatch

EVERY_S = 1.0  # two listings and a look at each of a few checkpoints, which come minutes apart

_logger = logging.getLogger(__name__)


class DurableWatch:
    """Tells each reading; methods may be called from any thread."""

    def __init__(self, run_dir: Path, tell: Callable[[int], None], *, every_s: float = EVERY_S) -> None:
        self._run_dir, self._tell, self._every_s = run_dir, tell, every_s
        self._changed = threading.Condition()
        self._begun, self._done = 0, 0  # readings
        self._wanted = 0  # a reading that begins after this many had begun
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="durable-watch", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more; waits for nothing."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def look(self, timeout_s: float) -> bool:
        """Read once more, now; whether that was done in time."""
        with self._changed:
            wanted = self._wanted = self._begun + 1
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= wanted, timeout=timeout_s)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._stopped
                        or self._wanted > self._begun  # guard: a look tells of commits made just before it
                    ),
                    timeout=self._every_s,
                )
                if self._stopped:
                    return
                self._begun += 1
            try:
                self._tell(durable_step(self._run_dir))
            except (OSError, CheckpointMismatch) as error:
                _logger.warning("how far the job is durable cannot be read, what was known stays: %s", error)
            with self._changed:
                self._done = self._begun
                self._changed.notify_all()
