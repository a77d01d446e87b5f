"""The arbiter's real ledger files, in a folder of their own, on a disk that may be full or lose a writer amid a record.

An arbiter that starts reads what it does not know yet by the reader of the product; at the end all of it is read anew.
What was acknowledged must be there, whatever happened in between.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from ebbtide.ledger.epoch_file import Disk, EpochFile
from ebbtide.ledger.errors import LedgerBroken
from ebbtide.ledger.reader import Follower
from ebbtide.ledger.record import encode_payload
from ebbtide.pool.events import Event
from ebbtide_autoscaler.core.plan.inputs import Memory
from ebbtide_autoscaler.journal.records import recover
from ebbtide_autoscaler.journal.recovery import MEMORY, Recovered, decode_event, encode_event


class Torn(Exception):
    """Its writer died in mid-write."""


class SimLedger:
    """One pool's ledger."""

    def __init__(self, folder: Path) -> None:
        self.room_bytes: int | None = None  # so much fits yet; None: a lot
        self.tears = False  # the next write is the writer's last, and half done
        self.events: list[Event] = []  # as a successor finds them
        self._folder = folder
        self._file: EpochFile | None = None
        self._known, self._reader = Recovered(), Follower(folder)

    @property
    def epoch(self) -> int:
        """That is written now."""
        return self._file.epoch if self._file is not None else 0

    def open(self) -> Recovered:
        """Begin a new epoch, and read what the older ones say.

        Raises:
            LedgerUnusable: the disk is full.
        """
        self.close()
        self._file = EpochFile.open(self._folder, writer="sim", expects="", disk=Disk(_no_sync, self._write))
        while True:
            polled = self._reader.poll()
            assert not polled.dropped, "a record that was read at a takeover counts for ever"
            if not polled.records:
                return self._known
            for record in polled.records:
                self._known.take(record.payload)
                if record.payload["type"] == "event":
                    self.events.append(decode_event(record.payload))

    def write(self, events: Sequence[Event], memory: Memory | None) -> None:
        """Journal a tick.

        Raises:
            LedgerBroken: the disk took only a part, or nothing.
            Torn: the writer died.
        """
        if self._file is None:
            raise LedgerBroken("no epoch is open")
        records = [encode_event(event) for event in events]
        if memory is not None:
            records.append({"type": "memory", "memory": MEMORY.dump_python(memory, mode="json")})
        self._file.append([[encode_payload(record) for record in records]])

    def close(self) -> None:
        """As the kernel does for a writer that has died."""
        self.tears = False
        if self._file is not None:
            self._file.close()
            self._file = None

    def read_anew(self) -> Recovered:
        """All that the files say."""
        return recover(self._folder)

    def _write(self, fd: int, data: bytes) -> int:
        if self.tears:
            os.write(fd, data[: len(data) // 2])
            raise Torn
        if self.room_bytes is None:
            return os.write(fd, data)
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, data[: self.room_bytes])
        self.room_bytes -= written
        return written


def _no_sync(_: int) -> None:
    """Nothing here outlives the machine anyway."""
