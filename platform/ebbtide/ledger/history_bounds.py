"""What is kept of the files that no replay needs any more.

Files before the newest snapshot are history: ``events`` and ``why`` read them, the arbiter does not. The oldest go
first when they are too many or too large together.
"""

from dataclasses import dataclass
from pathlib import Path

from ebbtide.ledger.reader import epoch_path, list_epochs

# A pool of 100 slots that hands over once a minute writes some 3 MB a day: this is a quarter of a year.
HISTORY_BYTES = 256 << 20
HISTORY_FILES = 256  # an arbiter that is killed again and again makes many small ones; every reader lists them all


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """How much of the past is kept, the files from the newest snapshot on apart."""

    max_bytes: int = HISTORY_BYTES
    max_files: int = HISTORY_FILES


def remove_history(directory: Path, *, base: int, bounds: HistoryBounds) -> list[int]:
    """Remove the oldest files before epoch ``base`` until the rest is within ``bounds``; gives the removed epochs.

    Call it only when the snapshot in ``base`` is durable and was acknowledged: then every later opener has read it.

    Raises:
        OSError: the directory fails; some may have been removed.
    """
    # guard: only what lies before the base is removed
    history = [epoch for epoch in list_epochs(directory) if epoch < base]
    sizes = {epoch: epoch_path(directory, epoch).stat().st_size for epoch in history}
    total, removed = sum(sizes.values()), []
    while history and (
        total > bounds.max_bytes  # guard: history is bounded in bytes
        or len(history) > bounds.max_files  # guard: history is bounded in files
    ):
        oldest = history.pop(0)
        epoch_path(directory, oldest).unlink(missing_ok=True)
        total -= sizes[oldest]
        removed.append(oldest)
    return removed
