"""Portable checkpoints: written by torch DCP, committed by one rename of ``ref.json``.

Order: write into ``ckpt/.tmp-...``, sync, rename to ``ckpt/step-<finished>-e<epoch>``, sync the folder, then replace
``ref.json`` (written aside, synced, renamed, folder synced). The last rename is the commit: readers follow
``ref.json`` and never list ``ckpt/``, so a torn or half deleted folder is never read.

Inside: DCP's own files hold tensors only; all else is JSON (see ``portable``). DCP's index is a pickle; it is read
with an allow-list of plain index classes, so that a planted file cannot run code.

Not guaranteed: detection of bits that rot after the commit; sharded state (rank 0 writes what is replicated).
"""

import json
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch
from ebbtide_train.session.portable import Json, pack, unpack
from ebbtide_train.session.ref import NAME as REF
from ebbtide_train.session.ref import Ref, read_ref

_INDEX_CLASSES = {  # what a DCP index of plain tensors is made of (torch 2.13)
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        "Metadata",
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13 and later
}


class CheckpointStore:
    """The checkpoints of one job's run directory."""

    def __init__(self, run_dir: Path, *, keep: int = 2) -> None:
        self._run_dir = run_dir
        self._keep = keep
        self._last: Ref | None = None  # the commit that was there when this gang began, or its own last one
        self._has_read = False

    def read_ref(self) -> Ref | None:
        """The committed checkpoint, or None before the first commit.

        Raises:
            CheckpointMismatch: ref.json is not ours or of another format.
        """
        self._last, self._has_read = read_ref(self._run_dir), True
        return self._last

    def publish(self, state: Mapping[str, object], **about: int) -> Ref:
        """Write ``state`` and commit it; ``about`` are the fields of `Ref` apart from ``checkpoint`` and ``format``.

        Raises:
            CheckpointFailed: the filesystem refused; the commit before still counts.
        """
        name = f"step-{about['step']}-e{about['lease_epoch']}"
        ref = Ref(checkpoint=f"ckpt/{name}", **about)
        folder = self._run_dir / "ckpt"
        temporary = folder / f".tmp-{name}-{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.rmtree(temporary, ignore_errors=True)
            self._write(temporary, state)
            final = folder / name
            if final.exists():
                _set_aside(final, committed=self._is_committed(ref))
            temporary.rename(final)
            _sync_folder(folder)
            self._commit(ref)
            self._forget_old(ref)
        except (OSError, CheckpointException) as error:  # the latter is DCP's and a BaseException
            shutil.rmtree(temporary, ignore_errors=True)  # what was written takes the space that the next one needs
            raise CheckpointFailed(f"cannot commit step {about['step']} in {folder}: {_reason(error)}") from error
        return ref

    def load(self, ref: Ref) -> dict[str, object]:
        """The state that ``ref`` names, on the CPU, in memory of its own.

        Raises:
            CheckpointMismatch: the files are missing or damaged.
        """
        folder = self._run_dir / ref.checkpoint
        try:
            index: Json = json.loads((folder / "state.json").read_text())
            tensors = _read_tensors(folder)
        except (OSError, ValueError, pickle.UnpicklingError, RuntimeError, CheckpointException) as error:
            raise CheckpointMismatch(f"the committed checkpoint {folder} cannot be read: {_reason(error)}") from error
        state = unpack(index, tensors)
        assert isinstance(state, dict)
        return state

    def _write(self, folder: Path, state: Mapping[str, object]) -> None:
        tensors: dict[str, torch.Tensor] = {}
        index = pack(state, "state", tensors)
        # It says so at each save without a group, which is how we save.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        folder.mkdir(mode=0o700)
        writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
        detached = {name: tensor.detach() for name, tensor in tensors.items()}
        state_dict_saver.save(detached, storage_writer=writer, no_dist=True)
        _write_synced(folder / "state.json", json.dumps(index))
        _sync_folder(folder)

    def _commit(self, ref: Ref) -> None:
        """The commit itself: after this returns, a crash at any moment finds ``ref``.

        A process that was stopped and goes on after its gang was replaced must not take the job back to where it was.
        Not guaranteed: that in the instant between this look and the rename nobody else commits.
        """
        present = read_ref(self._run_dir)
        if self._has_read and present != self._last:
            raise CheckpointFailed(f"another gang of this job has committed {present}; this one is of the past")
        temporary = self._run_dir / f".ref-{os.getpid()}.json"
        _write_synced(temporary, json.dumps(asdict(ref)))
        temporary.rename(self._run_dir / REF)
        self._last, self._has_read = ref, True
        _sync_folder(self._run_dir)

    def _is_committed(self, ref: Ref) -> bool:
        present = read_ref(self._run_dir)
        return present is not None and present.checkpoint == ref.checkpoint

    def _forget_old(self, ref: Ref) -> None:
        """Keep the newest few and the committed one; what a crash left half written goes too."""
        folder = self._run_dir / "ckpt"
        whole = sorted(folder.glob("step-*-e*"), key=lambda path: path.stat().st_mtime_ns)
        kept = {path.name for path in whole[-self._keep :]} | {Path(ref.checkpoint).name}
        for path in folder.iterdir():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


class _Reader(FileSystemReader):
    """DCP's reader, but its index cannot name any class that is not an index class."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _IndexUnpickler(file).load()
        assert isinstance(metadata, Metadata)
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _INDEX_CLASSES:
            raise pickle.UnpicklingError(f"its index names {module}.{name}, which no index of tensors needs")
        return super().find_class(module, name)


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    reader = _Reader(folder)
    tensors: dict[str, torch.Tensor] = {}
    for name, about in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(about, TensorStorageMetadata):
            raise ValueError(f"{name} is not a tensor")
        tensors[name] = torch.empty(about.size, dtype=about.properties.dtype)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    if tensors:
        state_dict_loader.load(tensors, storage_reader=_Reader(folder), no_dist=True)
    return tensors


def _reason(error: BaseException) -> str:
    """One line; DCP wraps what happened on each rank, with a stack each."""
    if isinstance(error, CheckpointException):
        return "; ".join(f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values())
    return str(error)


def _set_aside(folder: Path, *, committed: bool) -> None:
    """A folder of that name is there already: from a crash before its commit, or the very state committed twice."""
    if committed:
        folder.rename(folder.with_name(f"{folder.name}.again-{os.getpid()}"))
    else:
        shutil.rmtree(folder)


def _write_synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
