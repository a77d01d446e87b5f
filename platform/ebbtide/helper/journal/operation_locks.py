"""One operation at a time on each workload and each image."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ebbtide.helper.errors import Busy


class OperationLocks:
    """Who is at work on what. For many threads; nobody ever waits."""

    def __init__(self) -> None:
        """Nobody is."""
        self._turn = threading.Lock()
        self._held: dict[str, str] = {}

    def who(self, key: str) -> str:
        """What is under way on ``key``; "": nothing."""
        return self._held.get(key, "")

    def all(self) -> dict[str, str]:
        """What is under way, by workload and image."""
        with self._turn:
            return dict(self._held)

    @contextmanager
    def claim(self, keys: Iterable[str], what: str) -> Iterator[None]:
        """Hold all of ``keys`` for the block.

        Raises:
            Busy: somebody holds one of them; none was taken.
        """
        wanted = dict.fromkeys(keys, what)
        with self._turn:
            for key in wanted:
                if key in self._held:  # guard: what is claimed is refused at once
                    raise Busy(f"{self._held[key]} of {key} is under way", "ask again later, or look with state")
            self._held |= wanted
        try:
            yield
        finally:
            with self._turn:
                for key in wanted:
                    del self._held[key]  # guard: a claim is given back
