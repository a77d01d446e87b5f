"""A checkpoint out of the store, as stock ``torch.distributed.checkpoint`` reads it: for other tools, and far away.

The destination is a local directory (read by ``FileSystemReader``) or any URL that fsspec knows (``FsspecReader``).
Every chunk is checked while it is read. The index ``.metadata`` comes last, and a local directory appears by a rename:
an export that was cut off cannot be taken for a whole one.

These files hold pickles, as the stock format wants it. They are not ours any more: nothing here ever reads them.

Not guaranteed: little memory. Parts are put together into files of up to `FILE_BYTES`; one that is larger is in memory
twice. And no going on where an export was cut off.

Source: torch/distributed/checkpoint/filesystem.py (2.13) for the format.
"""

import io
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex

from ebbtide.storage.checkpoints.dcp.storage_reader import metadata_of
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide.storage.checkpoints.state.box_reader import DTYPES, BoxRequest
from ebbtide.storage.checkpoints.state.boxes import whole
from ebbtide.storage.errors import Refused, StorageError
from ebbtide.storage.files.durable_files import TEMPORARY_SUFFIX, Disk, telling
from ebbtide.storage.remote.remote_target import RemoteTarget
from ebbtide.storage.remote.urls import local_path

FILE_BYTES = 256 << 20  # object stores like files of some hundred MiB; this much is in memory
_INDEX = ".metadata"

Progress = Callable[[int, int], None]  # called with bytes done and bytes of all


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did.

    Attributes:
        where: the directory or URL, without passwords.
        files: all that are there now.
        written_bytes: of them.
    """

    where: str
    files: tuple[str, ...]
    written_bytes: int


class Target(Protocol):
    """Takes files, one after the other."""

    @property
    def where(self) -> str:
        """For people."""

    def put(self, name: str, content: bytes) -> None:
        """One file, durably; raises StorageError."""

    def end(self) -> None:
        """All are there."""

    def give_up(self) -> None:
        """Remove what was written, as far as that is possible."""


def export(
    checkpoints: RunCheckpoints, wanted: CheckpointId, destination: str, *, progress: Progress | None = None
) -> Exported:
    """Write a checkpoint where stock PyTorch can read it.

    Args:
        checkpoints: of the run.
        wanted: which; it is not removed meanwhile, if the run's ports have leases.
        destination: a directory that is empty or not there, or a URL.
        progress: told how far it is.

    Raises:
        NotPublished: there is no such checkpoint.
        Corrupt: it is damaged; nothing stays at a local destination, and no index at a URL.
        Refused: something else is at the destination, nobody knows such URLs, or the state cannot be read by parts.
        NoRoom, TransferFailed: it cannot be written.
    """
    path = local_path(destination)
    with checkpoints.open(
        wanted,
        held=True,  # guard: a checkpoint that goes out is held meanwhile
    ) as opened:
        metadata = metadata_of(opened)
        target: Target = _Local(path.absolute()) if path else _Remote(destination)
        writer = _Writer(target, opened.size_bytes, progress or _nobody)
        try:
            for index, value in _values(opened, metadata.storage_data):
                writer.add(index, value)
            writer.flush()
            writer.put(_INDEX, pickle.dumps(replace(metadata, storage_data=writer.places, version=CURRENT_DCP_VERSION)))
            target.end()
        except BaseException:
            target.give_up()  # guard: an export that fails leaves nothing that looks whole
            raise
    return Exported(target.where, tuple(writer.files), writer.written_bytes)


def _values(opened: OpenCheckpoint, parts: dict[MetadataIndex, Any]) -> Iterator[tuple[MetadataIndex, Any]]:
    """Every object and every part of a tensor, one at a time."""
    for name, leaf in opened.leaves.items():
        if leaf.tensor is None:
            yield MetadataIndex(name), opened.read_object(leaf.value)
    for index, (tensor, part) in parts.items():
        found = torch.empty(part.box.sizes, dtype=DTYPES[tensor.dtype])
        opened.read([BoxRequest(part, found.dtype, whole(part.box.sizes), found)])
        yield index, found


class _Writer:
    """Puts values together into files."""

    def __init__(self, target: Target, total_bytes: int, progress: Progress) -> None:
        self.places: dict[MetadataIndex, _StorageInfo] = {}
        self.files: list[str] = []
        self.written_bytes = 0
        self._target, self._total_bytes, self._progress = target, total_bytes, progress
        self._content = io.BytesIO()

    @property
    def _name(self) -> str:
        return f"__0_{len(self.files)}.distcp"

    def add(self, index: MetadataIndex, value: Any) -> None:
        at = self._content.tell()
        torch.save(value, _Tail(self._content))  # type: ignore[arg-type]  # only `write` is asked of it
        self.places[index] = _StorageInfo(self._name, at, self._content.tell() - at)
        if self._content.tell() >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._content.tell():
            self.put(self._name, self._content.getvalue())
            self._content = io.BytesIO()

    def put(self, name: str, content: bytes) -> None:
        self._target.put(name, content)
        self.files.append(name)
        self.written_bytes += len(content)
        self._progress(min(self.written_bytes, self._total_bytes), self._total_bytes)


class _Tail(io.IOBase):
    """Writes behind what is there: an archive in the middle of a file, which counts from its own beginning."""

    def __init__(self, content: io.BytesIO) -> None:
        self._content = content

    def write(self, data: bytes) -> int:
        return self._content.write(data)


class _Local:
    """A directory that appears whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._disk = path, Disk()
        with telling("look at", path):
            if path.exists() and (not path.is_dir() or any(path.iterdir())):  # guard: an export overwrites nothing
                raise Refused(f"{path} is there and not empty, and nothing is overwritten: name another directory")
        self._work = path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
        self._disk.make_directory(self._work)

    @property
    def where(self) -> str:
        return str(self._path)

    def put(self, name: str, content: bytes) -> None:
        self._disk.write(self._work / name, content)

    def end(self) -> None:
        self._disk.sync_directory(self._work)
        with telling("remove", self._path):
            if self._path.is_dir():
                os.rmdir(self._path)
        if not self._disk.move(self._work, self._path):
            raise Refused(f"{self._path} was made by somebody else meanwhile: name another directory")

    def give_up(self) -> None:
        try:
            self._disk.remove_tree(self._work)
        except StorageError:
            return  # the error that led here is the one to tell


class _Remote:
    """A directory behind a URL."""

    def __init__(self, url: str) -> None:
        self._target = RemoteTarget(url)
        if there := sorted(self._target.names()):
            raise Refused(f"{self._target.where} is not empty ({there[0]!a} is there): name another directory")

    @property
    def where(self) -> str:
        return self._target.where

    def put(self, name: str, content: bytes) -> None:
        def write_to(sink: Callable[[bytes], object]) -> None:
            sink(content)

        self._target.write(name, len(content), write_to)

    def end(self) -> None:
        """Nothing: the index was written last."""

    def give_up(self) -> None:
        """Nothing: without an index nobody reads the rest."""


def _nobody(_done: int, _total: int) -> None:
    return None
