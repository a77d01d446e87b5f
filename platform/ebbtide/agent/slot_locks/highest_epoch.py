"""The highest lease epoch that ever held a slot: whoever comes with a lower one is stale and gets no lock.

A lease is fenced off by its epoch, and the process that was late with it need not know: it may have been stopped for
minutes between its lease and its lock, while the slot went to others and was free again. So the highest epoch is kept
beside the lock, on the same node, and whoever has the lock compares before it allocates.

Epochs grow within one ledger only. A pool that was made anew counts from 1 again, so the memory is kept per ledger,
of the last few: neither does an old pool lock a new one out, nor a process of the old one undo what the new one knows.

The file is replaced whole, by rename, under the slot's lock: a kill leaves the old one or the new one. One that cannot
be read says nothing; the arbiter's own ledger is the first fence, this is the second.
"""

import json
import logging
import os
from pathlib import Path

LEDGERS_KEPT = 4  # of pools that came one after the other on this node
_LIMIT_BYTES = 4096
_log = logging.getLogger(__name__)


def memory_file(lock_file: Path) -> Path:
    """The file beside a slot's lock file."""
    return lock_file.with_suffix(".epoch")


def highest_epoch(lock_file: Path, ledger: str) -> int:
    """The highest epoch of ``ledger`` that ever held this slot; 0: none is known."""
    return _read(memory_file(lock_file)).get(ledger, 0)


def remember_epoch(lock_file: Path, ledger: str, epoch: int) -> None:
    """Keep ``epoch`` if it is the highest so far; only for whoever has the slot's lock.

    Raises:
        OSError: it cannot be written.
    """
    path = memory_file(lock_file)
    known = _read(path)
    if known.get(ledger, 0) >= epoch:  # guard: a lower epoch does not lower what is remembered
        return
    others = [(name, highest) for name, highest in known.items() if name != ledger]
    kept = dict([*others[1 - LEDGERS_KEPT :], (ledger, epoch)])  # the one written last stands last
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        file.write(json.dumps(kept))
        file.flush()
        os.fsync(file.fileno())  # else a power cut could leave an empty file under the name
    draft.replace(path)  # guard: the memory of epochs is replaced whole


def _read(path: Path) -> dict[str, int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return {}
    except OSError as error:
        _log.warning("the highest epoch of a slot cannot be read from %s: %s", path, error.strerror)
        return {}
    try:
        found = json.loads(os.pread(descriptor, _LIMIT_BYTES, 0))
        return {str(name): int(highest) for name, highest in found.items()}
    except (ValueError, TypeError, AttributeError):
        _log.warning("%s does not say an epoch: it is written anew", path)
        return {}
    finally:
        os.close(descriptor)
