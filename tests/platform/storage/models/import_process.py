"""A process that imports a model, for tests that run several, kill and pause them; says by lines of JSON how it goes.

    python import_process.py ROOT SOURCE NAME PAUSE_S [LOG]

PAUSE_S: how long each read of a counted:// source takes. LOG: where such reads are written down.
"""

import json
import os
import sys
import time
from pathlib import Path

from ebbtide.storage.errors import StorageError
from ebbtide.storage.leases.object_leases import SharedLeases
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.models.importer.import_progress import ImportProgress
from ebbtide.storage.models.importer.model_import import import_model
from ebbtide.storage.models.sources.source_factory import open_source
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.platform.storage.models import counted_filesystem
from tests.platform.storage.models.counted_filesystem import CountedFileSystem
from tests.platform.storage.models.made import PACE, TERMS
from tests.platform.storage.stores import CHUNK, ROOMY


def say(**what: object) -> None:
    # In one write: several threads may say something at once.
    sys.stdout.write(json.dumps({"pid": os.getpid(), "at_s": time.monotonic(), **what}) + "\n")
    sys.stdout.flush()


def observe(progress: ImportProgress) -> None:
    say(
        event=progress.phase.name,
        done=progress.done_bytes,
        total=progress.total_bytes,
        saved=progress.saved_bytes,
        why=progress.why,
    )


def shared_store(root: Path) -> ObjectStore:
    """A store with leases that beat, as several processes need them."""
    transport = PosixTransport(BufferPool(4, CHUNK), threads=2)
    return ObjectStore.at(root, transport, leases=SharedLeases(StorePaths(root).leases, pace=PACE), budget=ROOMY)


def main() -> None:
    root, source, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    counted_filesystem.register()
    CountedFileSystem.pause_s = float(sys.argv[4])
    CountedFileSystem.log = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    store = shared_store(root)
    say(event="asks")
    try:
        done = import_model(store, open_source(source), (name, "latest"), terms=TERMS, observe=observe)
    except StorageError as error:
        say(event="error", kind=type(error).__name__, text=str(error))
        return
    say(
        event="has",
        object=done.object,
        how=done.how.value,
        ref=done.ref,
        copied=done.copied_bytes,
        saved=done.saved_bytes,
        total=done.size_bytes,
    )


if __name__ == "__main__":
    main()
