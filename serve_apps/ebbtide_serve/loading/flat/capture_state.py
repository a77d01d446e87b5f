"""What a rank's process holds for the flat form, and how the replica steers it by the engine's own calls.

States, as told by `CaptureState.state`::

    none      nothing is held; ``why`` says so in words
    held      parameters are in host memory
    staging   they are being written
    staged    the file is written; ``entry`` is for the manifest
    failed    it could not be written; the memory is given back

Each call returns at once: the engine steps between them.
"""

import threading
from dataclasses import asdict
from enum import Enum

from ebbtide.storage.errors import StorageError
from ebbtide.storage.objects.manifest import FileEntry
from ebbtide_serve.loading.flat.capture import Capture, stage
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.process.background import be_nice


class Phase(Enum):
    """See the module."""

    NONE = "none"
    HELD = "held"  # after a load in checkpoint order
    STAGING = "staging"  # the replica said so
    STAGED = "staged"  # written
    FAILED = "failed"  # the filesystem refused


class CaptureState:
    """At most one capture of a process; its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase, self._why = Phase.NONE, "no load in checkpoint order has ended here"
        self._capture: Capture | None = None
        self._store: ProcessStore | None = None
        self._entry: FileEntry | None = None

    def hold(self, capture: Capture, store: ProcessStore) -> bool:
        """Keep it; False if there is one already (an engine may load several models)."""
        with self._lock:
            if self._phase is not Phase.NONE:
                return False
            self._phase, self._why, self._capture, self._store = Phase.HELD, "", capture, store
            return True

    def nothing(self, why: str) -> None:
        """There is nothing to hold, and why."""
        with self._lock:
            if self._phase is Phase.NONE:
                self._why = why

    def state(self) -> dict[str, object]:
        """Plain data, see the module."""
        with self._lock:
            held = self._capture
            entry = self._entry.model_dump(mode="json") if self._entry is not None else None
            told: dict[str, object] = {"phase": self._phase.value, "why": self._why, "entry": entry}
            if held is not None:
                told |= {"key": held.key.as_manifest_key(), "ref_name": held.key.ref_name, "tag": held.tag}
                told |= {"rank": held.rank, "ranks": held.key.tensor_parallel, "bytes": held.plan.file_bytes}
                told["replaces"] = held.replaces and asdict(held.replaces)
            return told

    def begin(self, attempt: str) -> None:
        """Begin to write into a publication's work directory; does nothing unless something is held."""
        with self._lock:
            if self._phase is not Phase.HELD:
                return
            self._phase = Phase.STAGING
        threading.Thread(target=self._stage, args=(attempt,), name="flat form", daemon=True).start()

    def drop(self, why: str) -> None:
        """Give the memory back. What is being written goes on to its end, and is forgotten."""
        with self._lock:
            self._phase, self._why, self._capture, self._entry = Phase.NONE, why, None, None

    def _stage(self, attempt: str) -> None:
        be_nice()  # hashing costs 0.6 CPU s/GB, which the engine's own threads must not wait for
        with self._lock:
            held, store = self._capture, self._store
        if held is None or store is None:
            return  # dropped meanwhile
        try:
            entry = stage(held, store, attempt)
        except (StorageError, OSError, MemoryError) as error:
            self._end(held, Phase.FAILED, str(error), None)
            return
        self._end(held, Phase.STAGED, "", entry)

    def _end(self, held: Capture, phase: Phase, why: str, entry: FileEntry | None) -> None:
        held.memory.clear()
        with self._lock:
            if self._capture is held:
                self._phase, self._why, self._entry = phase, why, entry


HELD = CaptureState()
"""Of this process."""
