"""What was imported from where: ``imports/<fingerprint>.json`` in the store, beside the objects.

A record saves the second import of the same source, tells waiters that the work is done, and tells `repair` where good
bytes may be. It is believed only as far as the object that it names is there; and an object needs no record.
"""

import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.durable_files import Disk, read_small, telling
from ebbtide.storage.names import ObjectId, object_id
from ebbtide.storage.objects.store_paths import StorePaths

SCHEMA = 1
MAX_RECORD_BYTES = 64 << 10


def imports(paths: StorePaths) -> Path:
    """Where the records lie."""
    return paths.root / "imports"


def flights(paths: StorePaths) -> Path:
    """Where the claims of imports under way lie; a few KiB each, and never removed."""
    return paths.root / "flights"


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """One import that ended well.

    Attributes:
        fingerprint: of the source, see ``source_checkpoint``.
        source: where it was, without passwords.
        object: what came of it.
        token: of this very import.
        at_s: seconds since 1970, by the clock of the node that did it; for people only.
    """

    fingerprint: str
    source: str
    object: ObjectId
    at_s: float
    token: str

    def to_bytes(self) -> bytes:
        """The content of its file."""
        return (
            json.dumps(
                {
                    "schema": SCHEMA,
                    "fingerprint": self.fingerprint,
                    "source": self.source,
                    "object": self.object,
                    "at_s": self.at_s,
                    "token": self.token,
                }
            )
            + "\n"
        ).encode()


class ImportRecords:
    """The records of one store. What cannot be read counts as not there: nothing depends on it."""

    def __init__(self, paths: StorePaths, disk: Disk) -> None:
        self._folder, self._disk = imports(paths), disk

    def read(self, fingerprint: str) -> ImportRecord | None:
        """The record of a source in one state.

        Raises:
            TransferFailed: it cannot be told.
        """
        return _parse(self._path(fingerprint), fingerprint)

    def write(self, fingerprint: str, source: str, target: ObjectId, at_s: float) -> ImportRecord:
        """Note an import.

        Raises:
            NoRoom, TransferFailed: it cannot be noted.
        """
        record = ImportRecord(fingerprint, source, target, at_s, secrets.token_hex(16))
        self._disk.make_directory(self._folder)
        self._disk.replace(self._path(fingerprint), record.to_bytes())
        return record

    def list(self) -> list[ImportRecord]:
        """All of them, oldest first.

        Raises:
            TransferFailed: they cannot be listed.
        """
        names: list[str] = []
        with telling("list", self._folder), suppress(FileNotFoundError):
            names = [one.name for one in self._folder.iterdir() if one.suffix == ".json"]
        found = (_parse(self._folder / name, name.removesuffix(".json")) for name in names)
        return sorted((one for one in found if one is not None), key=lambda one: one.at_s)

    def forget(self, still_there: Iterable[ObjectId], before_s: float) -> int:
        """Remove the records of objects that are gone; how many.

        Args:
            still_there: the objects that are not gone.
            before_s: by the filesystem's clock; younger records stay, since one is written before its object stands.

        Raises:
            TransferFailed: they cannot be listed or removed.
        """
        there = set(still_there)
        removed = 0
        for record in self.list():
            path = self._path(record.fingerprint)
            with telling("look at", path), suppress(FileNotFoundError):
                if record.object not in there and path.stat().st_mtime < before_s:
                    removed += self._disk.remove(path)
        return removed

    def _path(self, fingerprint: str) -> Path:
        return self._folder / f"{object_id(fingerprint)}.json"  # 64 hexadecimal digits, too


def _parse(path: Path, fingerprint: str) -> ImportRecord | None:
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError, Refused):
        fields = json.loads(read_small(path, MAX_RECORD_BYTES))
        if fields["schema"] == SCHEMA and fields["fingerprint"] == fingerprint:
            return ImportRecord(
                fingerprint,
                str(fields["source"]),
                object_id(fields["object"]),
                float(fields["at_s"]),
                str(fields["token"]),
            )
    return None
