"""How long a question to a source may take."""

from collections.abc import Callable
from typing import TypeVar

from ebbtide.storage.files.shared_files import Bounded
from ebbtide.storage.models.sources.source import Source

T = TypeVar("T")

PATIENCE_S = 600.0  # for looking through a source: some hundred round trips, and the tries of each


def within_patience(source: Source, action: str, ask: Callable[[], T]) -> T:
    """What ``ask`` returns or raises, of a source that may hang for ever.

    Raises:
        TransferTimeout: after `PATIENCE_S`; the question is left behind in a thread.
    """
    return Bounded()(action, source.where, PATIENCE_S, ask)
