"""Which restored caches a start on this node did not come through with.

A note beside the replica's directory says which artefact it was given. It goes when the engine serves, or when the
replica is closed in good order. What is left, since the start failed or the process was killed, makes the artefact
suspect: the next start does without, and if that one comes through, the artefact is taken out of the store.

Not guaranteed: justice. A start that was killed for another reason costs one start without caches.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.names import ObjectId, object_id
from ebbtide.system.process import is_alive

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]+\.(trial|failed)")
FORGOTTEN_AFTER_S = 86400.0  # a fault that is there still shows itself again


def begin(directory: Path, artefact: ObjectId) -> None:
    """A start begins with what was restored into ``directory``."""
    with suppress(OSError):  # the node's disk is full or broken: then nothing is remembered
        _note(directory).write_text(artefact)


def mark_failed(directory: Path) -> None:
    """It failed."""
    with suppress(OSError):  # nothing was restored, or see above
        _note(directory).rename(directory.with_name(f"{directory.name}.failed"))


def mark_passed(directory: Path) -> None:
    """It came through, or was ended in good order; one that failed before stays so."""
    with suppress(OSError):
        _note(directory).unlink()


def suspects(parent: Path) -> frozenset[ObjectId]:
    """The artefacts that starts in directories below ``parent`` did not come through with. Raises OSError."""
    return frozenset(artefact for _, artefact in _notes(parent))


def forget(parent: Path, artefact: ObjectId) -> None:
    """It was dealt with. Raises OSError."""
    for path, found in _notes(parent):
        if found == artefact:
            path.unlink(missing_ok=True)


def _note(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.trial")


def _notes(parent: Path) -> Iterator[tuple[Path, ObjectId]]:
    for path in list(parent.iterdir()) if parent.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is None or (name[3] == "trial" and is_alive(int(name[1]), int(name[2]))):
            continue
        with suppress(FileNotFoundError, UnicodeDecodeError, Refused):
            if time.time() - path.stat().st_mtime > FORGOTTEN_AFTER_S:
                path.unlink()
                continue
            yield path, object_id(path.read_text())
