"""One span of a file to or from memory, in as many requests as it takes.

Requests may move less than asked. A direct request that stopped at an odd byte goes on from the aligned byte before it
(moving a few bytes twice, which is harmless: they are the same). One that brings nothing new is finished through the
page cache, which knows no alignment and therefore knows where the file ends. Whatever lies behind the end of the last
request counts as lost: a device may have written over it. A request that moves nothing at all is the
end of the file when reading, and an error when writing: never a reason to ask again for ever.
"""

import errno
from collections.abc import Callable

from ebbtide.storage.errors import StorageError
from ebbtide.storage.posix.direct_io import REFUSALS
from ebbtide.storage.posix.file_handle import Handle, OpenedFile
from ebbtide.storage.posix.posix_calls import Requests
from ebbtide.storage.transport.chunk_ranges import down
from ebbtide.storage.transport.transfer_report import Mode

Call = Callable[[int, list[memoryview], int], int]


class Spans:
    """Moves spans of one file in one direction. Shared by the threads of a transfer."""

    def __init__(
        self,
        action: str,
        file: OpenedFile,
        requests: Requests,
        call: Call,
        *,
        nothing: Callable[[int], StorageError],
        reopen: bool,
    ) -> None:
        """``action`` is ``read`` or ``write``, ``call`` moves bytes, ``nothing`` is the error where none were moved.

        ``reopen``: whether a stale handle may be opened again (not when writing: what the cache held is lost with it).
        """
        self._action, self._file, self._requests, self._call = action, file, requests, call
        self._nothing, self._reopen = nothing, reopen

    def move(self, memory: memoryview, start: int, need: int, *, direct: bool) -> Mode:
        """Move the file's bytes from ``start`` on, at least ``need`` of them.

        Args:
            memory: of at least ``need`` bytes; with ``direct`` its address and length and ``start`` are aligned.
            start: of its first byte in the file.
            need: bytes that must be moved; more may be, if ``memory`` is longer and ``direct``.
            direct: past the page cache, if the file allows it.

        Returns:
            The mode in which it ended.

        Raises:
            StorageError: naming the byte at which it stood.
        """
        done, alignment = 0, self._file.alignment
        while done < need:
            handle = self._file.direct() if direct else None
            direct = handle is not None
            at = down(done, alignment) if direct else done
            part = memory[at:] if direct else memory[at:need]
            count = self._request(handle or self._file.cached(), part, start + at, direct=direct)
            if count is None:
                done = at
                continue
            if count == 0:
                raise self._nothing(start + at)
            if direct and at + count <= done:
                direct, done = False, at
            else:
                done = at + count
            if done < need:
                self._requests.repeat()
        return Mode.DIRECT if direct else Mode.BUFFERED

    def _request(self, handle: Handle, part: memoryview, offset: int, *, direct: bool) -> int | None:
        """Bytes moved, or None if the same must be asked on another handle."""
        try:
            return self._requests.ask(self._action, offset, lambda: self._call(handle.fd, [part], offset))
        except OSError as error:
            if direct and error.errno in REFUSALS:
                self._file.refuse_direct(error, self._action)
                return None
            if error.errno == errno.ESTALE and self._reopen and self._file.reopen(handle):
                return None
            raise self._requests.failed(self._action, error, offset) from error
