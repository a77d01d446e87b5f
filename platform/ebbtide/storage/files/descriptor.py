"""An open file whose number is given back to the system only when no call on it is under way any more.

Transfers leave threads behind that hang (`transfer_threads`), and those may come back long after their caller has
closed its files. A call on a closed number fails, or meets whatever file was opened under that number since: a late
write would destroy it. So whoever hands a file to such threads lends it: after `close` nobody gets it any more, and the
last call that is under way closes it. Closing waits for nobody.

Not guaranteed: that a call under way at `close` does nothing any more. It still reads or writes this very file.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Descriptor:
    """Shared by threads."""

    def __init__(self, fd: int) -> None:
        """Own ``fd`` from now on."""
        self._fd, self._users, self._closed = fd, 0, False
        self._lock = threading.Lock()  # never held while the system is asked

    @contextmanager
    def lent(self) -> Iterator[int]:
        """The number, for the calls in the block.

        Raises:
            OSError: EBADF, it was closed.
        """
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._users -= 1
                is_last = self._closed and not self._users
            if is_last:
                os.close(self._fd)

    def close(self) -> None:
        """Let nobody have it any more; it is closed now, or by the last call that is under way."""
        with self._lock:
            is_last = not self._closed and not self._users
            self._closed = True
        if is_last:
            os.close(self._fd)
