"""What the helper did, one JSON line for each step, on the disk before the next step is begun.

A line begins with a hash of the rest. The last line of a killed helper may be torn: then it was never acted upon, and
is cut off. Any other line that does not fit is damage, and the helper does not start on it: it would take a process
for another one.

One helper at a time: the folder is locked with ``flock`` for as long as its process lives.
"""

import fcntl
import os
import threading
from pathlib import Path

import xxhash
from pydantic import ValidationError

from ebbtide.helper.errors import HelperUnusable
from ebbtide.helper.journal.journal_state import JournalState, Line
from ebbtide.storage.errors import StorageError
from ebbtide.storage.files.durable_files import Disk

COMPACT_ABOVE_BYTES = 1 << 20  # some 3000 lines; a book of a node's workloads has a few hundred
_HASH_CHARS = 16


class Journal:
    """The journal in a folder, and the book that it adds up to. For many threads."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        """Lock the folder, read the journal, and write it anew, short.

        Raises:
            HelperUnusable: another helper holds it, or a line is damaged.
            StorageError: it cannot be read or written.
        """
        disk.make_directory(folder)
        self._path, self._disk = folder / "journal", disk
        self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # guard: one helper works in a folder
        except BlockingIOError:
            os.close(self._lock_fd)
            raise HelperUnusable(
                f"another helper works in {folder}: ask that one, or give a socket elsewhere"
            ) from None
        self._turn = threading.Lock()
        self._book = _read(self._path)
        self._fd = -1
        self._compact()

    @property
    def book(self) -> JournalState:
        """What is known now."""
        return self._book

    def write(self, line: Line) -> JournalState:
        """Make one more line durable.

        Raises:
            ValueError: the tables do not allow it; nothing was written.
            HelperUnusable: the disk does not take it. Whether it is there is not known then: the helper must end,
                and the next one read it back.
        """
        with self._turn:
            book = self._book.apply(line)
            raw = encode(line)
            try:
                written = os.write(self._fd, raw)
                if written != len(raw):  # guard: half a line ends the helper
                    raise OSError(f"it took {written} of {len(raw)} bytes")
                os.fsync(self._fd)  # guard: a line is on the disk before the next step
                self._book = book
                if os.fstat(self._fd).st_size > COMPACT_ABOVE_BYTES:
                    self._compact()
            except (OSError, StorageError) as error:  # guard: a disk that fails ends the helper
                raise HelperUnusable(f"{self._path} cannot be written ({error}): make room for it") from error
            return book

    def close(self) -> None:
        """Let the folder go."""
        os.close(self._fd)
        os.close(self._lock_fd)

    def _compact(self) -> None:
        self._disk.replace(self._path, b"".join(encode(line) for line in self._book.lines()))
        before, self._fd = self._fd, os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        if before >= 0:
            os.close(before)


def encode(line: Line) -> bytes:
    """One line with its hash and line end."""
    text = line.model_dump_json().encode()
    return xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def _read(path: Path) -> JournalState:
    book = JournalState()
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return book
    lines = raw.split(b"\n")
    for number, one in enumerate(lines, 1):
        if number == len(lines):  # guard: a torn last line was never acted upon
            break  # what follows the last line end: nothing, or a line that was torn
        try:
            # guard: a damaged line is no line
            if xxhash.xxh3_64_hexdigest(one[_HASH_CHARS + 1 :]).encode() != one[:_HASH_CHARS]:
                raise ValueError("the hash does not fit")
            book = book.apply(Line.model_validate_json(one[_HASH_CHARS + 1 :]))
        except (ValidationError, ValueError) as error:
            raise HelperUnusable(
                f"{path} line {number} is damaged ({error}): look which of its workloads live, "
                "move the file away and register them anew"
            ) from error
    return book
