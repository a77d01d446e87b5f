"""An open object: what it says of itself, and its files, read and checked."""

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ebbtide.storage.errors import Refused
from ebbtide.storage.integrity.chunk_index import Index
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import Manifest
from ebbtide.storage.objects.object_contents import Contents
from ebbtide.storage.objects.stored_file import StoredFile, read_stored
from ebbtide.storage.safetensors.file_header import PREFIX_BYTES, SUFFIX, Header, header_bytes, parse_header
from ebbtide.storage.safetensors.numpy_views import array_views
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Pending, Range, Transport


class StoredObject:
    """An object that was found whole (but for the content of its files) and is leased until it is closed.

    A context manager; may be used by several threads. The lease keeps the object from being collected. A process that
    lost it, since it was paused or the shared directory did not answer for half a minute or longer, may go on, and
    holds it again as soon as it can.

    Guaranteed: what is read is what was published, or `NotPublished` says that the object is gone, whatever happened to
    the lease. An object that only lies in the trash when the lease is back comes back with the next round of the
    collector.

    Not guaranteed: that an object without a ref outlives an outage. A collector that reaches the directory while this
    process does not, or is paused, takes it after a minute of silence; that shows at the next read, and no earlier.
    """

    def __init__(self, contents: Contents, transport: Transport, held: ExitStack) -> None:
        """Made by `ObjectStore.open`; ``held`` is what is given up at the end."""
        self._contents, self._transport, self._held = contents, transport, held
        self._entries = {entry.name: entry for entry in contents.manifest.files}
        self._headers: dict[str, Header] = {}
        self._beginnings: dict[str, bytes] = {}  # of safetensors files that were read: headers, not parsed

    @property
    def id(self) -> ObjectId:
        """Its id."""
        return self._contents.id

    @property
    def manifest(self) -> Manifest:
        """What it consists of."""
        return self._contents.manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lease; the object may be collected from now on."""
        self._held.close()

    def file(self, name: str) -> StoredFile:
        """One file: where it lies, how long it is, its chunk hashes.

        Raises:
            Refused: there is none of that name.
        """
        entry = self._entries.get(name) or self.manifest.file(name)
        directory, kind = self._contents.directory, self.manifest.content_hash
        return StoredFile(self.id, directory / entry.name, entry, self._contents.indexes.get(entry.name), kind)

    def index(self, name: str) -> Index:
        """The chunk hashes of a file, for who checks them on a device.

        Raises:
            Refused: there is no such file, or it is so small that it has none.
        """
        index = self.file(name).index
        if index is None:
            raise Refused(f"file {name} of object {self.id} has no index: small files are checked as a whole")
        return index

    def read_file(
        self,
        name: str,
        *,
        consume: Consume | None = None,
        into: memoryview | None = None,
        ranges: Iterable[Range] | None = None,
        verify: bool = True,
        deadline_s: float | None = None,
    ) -> TransferReport:
        """Read a file, or the chunks that hold some ranges of it, see `read_stored`.

        Raises:
            Corrupt: bytes are not those that were published.
            NotPublished: the object was removed meanwhile.
            TransferFailed: they cannot be read.
        """
        return read_stored(
            self._transport,
            self.file(name),
            consume=self._noting(name, consume) if verify and name.endswith(SUFFIX) else consume,
            into=into,
            ranges=ranges,
            verify=verify,
            deadline_s=deadline_s,
        )

    def read_bytes(self, name: str) -> bytes:
        """All of a file in fresh memory: for configuration and tokenizers. Raises as `read_file` does."""
        found = np.empty(self.file(name).size_bytes, dtype=np.uint8)
        self.read_file(name, into=found.data)
        return found.tobytes()

    def read_arrays(self, name: str) -> dict[str, NDArray[np.generic]]:
        """All tensors of a safetensors file in fresh memory (see `array_views` for their types).

        Fresh memory costs more than reading into it (``memory``): loaders give their own by ``read_file(into=...)``
        and take `header`. Raises as `read_file` does.
        """
        header = self.header(name)
        found = np.empty(header.file_bytes, dtype=np.uint8)
        self.read_file(name, into=found.data)
        return array_views(header, found.data)

    def header(self, name: str) -> Header:
        """The header of a safetensors file: where its tensors lie. Raises as `read_file` does.

        Checked; read once, or not at all where `read_file` has brought and checked the beginning of the file before.
        """
        if name not in self._headers:
            file = self.file(name)
            size_bytes = file.entry.size_bytes
            if name not in self._beginnings and size_bytes:
                first = Range(0, min(PREFIX_BYTES, size_bytes))
                self.read_file(name, consume=self._noting(name, None), ranges=[first])
            raw = self._beginnings.get(name, b"")
            length = header_bytes(raw, size_bytes, file.path)
            if len(raw) != length:
                raw = self._read_part(name, length)
            self._headers[name] = parse_header(raw, size_bytes, file.path)
            self._beginnings.pop(name, None)
        return self._headers[name]

    def _noting(self, name: str, consume: Consume | None) -> Consume:
        """Before what ``consume`` does: keep the header as it comes by, since reading it again takes a whole chunk."""

        def receive(offset: int, memory: memoryview) -> Pending | None:
            if offset == 0 and name not in self._headers:
                self._beginnings[name] = _header_in(memory)
            return consume(offset, memory) if consume is not None else None

        return receive

    def _read_part(self, name: str, length: int) -> bytes:
        found = bytearray(length)

        def keep(offset: int, memory: memoryview) -> None:
            part = memory[: max(0, length - offset)]
            found[offset : offset + len(part)] = part

        self.read_file(name, consume=keep, ranges=[Range(0, length)])
        return bytes(found)


def _header_in(beginning: memoryview) -> bytes:
    """The header at the beginning of a file, or the eight bytes of its length where it goes on beyond this."""
    prefix = bytes(beginning[:PREFIX_BYTES])
    length = PREFIX_BYTES + int.from_bytes(prefix, "little")
    return bytes(beginning[:length]) if length <= len(beginning) else prefix
