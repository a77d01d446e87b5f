"""An open checkpoint: what is in it, and its tensors, whole or by rows.

Tensors that it makes own their memory, which can be resized, so that they can be parked (``snapshot``).
"""

import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import torch

from ebbtide.storage.checkpoints.run_directory.checkpoint_contents import open_directory
from ebbtide.storage.checkpoints.run_directory.cleanup import of_checkpoint
from ebbtide.storage.checkpoints.run_directory.run_paths import ABOUT, STATE, CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_ports import TrainingPorts
from ebbtide.storage.checkpoints.state.about_json import About, parse_about
from ebbtide.storage.checkpoints.state.box_reader import DTYPES, BoxRequest, read_boxes
from ebbtide.storage.checkpoints.state.boxes import whole
from ebbtide.storage.checkpoints.state.plain_state import unpack
from ebbtide.storage.checkpoints.state.state_tree import Json, Leaf, leaves, tensors_in
from ebbtide.storage.checkpoints.state.tensor_index import StateIndex, StoredTensor, parse_index
from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.transport.transfer_report import TransferReport


class OpenCheckpoint:
    """A committed checkpoint; a context manager. May be used by several threads.

    Attributes:
        id: which.
        stored: the files in it.
        report: what was read so far of tensors, added up.
    """

    def __init__(self, wanted: CheckpointId, stored: StoredObject) -> None:
        """Made by `open_checkpoint`."""
        self.id, self.stored = wanted, stored
        self.report = TransferReport({}, 0.0)
        self._adding = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self.stored.close()

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return self.stored.manifest.size_bytes

    @cached_property
    def about(self) -> About:
        """What its writer said about it."""
        return parse_about(self.stored.read_bytes(ABOUT), self.stored.file(ABOUT).path)

    @cached_property
    def index(self) -> StateIndex:
        """Its tensors, and where they lie."""
        sizes = {entry.name: entry.size_bytes for entry in self.stored.manifest.files}
        return parse_index(self.stored.read_bytes(STATE), self.stored.file(STATE).path, sizes)

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """Its state, cut as ``torch.distributed.checkpoint`` cuts states."""
        return leaves(self.index.tree)

    def tensor(self, name: str) -> StoredTensor:
        """One tensor.

        Raises:
            Refused: there is none of that name.
        """
        try:
            return self.index.tensors[name]
        except KeyError:
            raise Refused(f"checkpoint {self.id} has no tensor {name!r}") from None

    def read_state(self, given: Mapping[str, torch.Tensor] | None = None) -> Any:
        """All of the state, in memory of its own, on the CPU.

        Args:
            given: tensors by name that the caller has read already, in its own way; they are put in as they are.

        Raises:
            Corrupt: something is not what was committed; names file and offset.
            TransferFailed: it cannot be read.
        """
        known = dict(given or {})
        rest = self.read_tensors(name for name in self.index.tensors if name not in known)
        return self._unpacked(self.index.tree, known | rest)

    def read_object(self, packed: Json) -> Any:
        """A part of the state that is no tensor, with the tensors inside it. Raises as `read_state` does."""
        return self._unpacked(packed, self.read_tensors(set(tensors_in(packed))))

    def read_tensors(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Whole tensors by name, on the CPU. Raises as `read_state` does, and Refused for a name that is not there."""
        stored = {name: self.tensor(name) for name in names}
        found = {name: torch.empty(one.shape, dtype=DTYPES[one.dtype]) for name, one in stored.items()}
        self.read(
            BoxRequest(
                part,
                DTYPES[one.dtype],
                whole(part.box.sizes),
                _part_of(found[name], part.box.offsets, part.box.sizes),
            )
            for name, one in stored.items()
            for part in one.parts
        )
        return found

    def read(self, wanted: Iterable[BoxRequest]) -> TransferReport:
        """Boxes of stored tensors into tensors of the caller. Raises as `read_state` does."""
        report = read_boxes(self.stored, wanted)
        with self._adding:
            self.report += report
        return report

    def _unpacked(self, packed: Json, tensors: Mapping[str, torch.Tensor]) -> object:
        try:
            return unpack(packed, tensors)
        except Refused as error:
            raise Corrupt(str(error), self.stored.file(STATE).path) from error


def open_checkpoint(
    paths: RunPaths, wanted: CheckpointId, ports: TrainingPorts, *, held: bool = False
) -> OpenCheckpoint:
    """Open a checkpoint.

    Args:
        paths: of the run.
        wanted: which.
        ports: how it is reached.
        held: let others know that it is read, so that it is not removed meanwhile: for slow readers beside a gang. The
            gang itself removes nothing that it goes on from.

    Raises:
        NotPublished: there is none.
        Corrupt: something in it is not as it was committed; names the file.
        TransferFailed: it cannot be told.
    """
    with ExitStack() as undo:
        if held and ports.leases is not None:
            # Before looking: then it stays.
            # guard: a reader has its lease before it looks
            undo.enter_context(ports.leases.hold(of_checkpoint(wanted), comes_back=True))
        contents = open_directory(paths, wanted)
        return OpenCheckpoint(wanted, StoredObject(contents, ports.transport, undo.pop_all()))


def _part_of(tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    for dimension, (at, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dimension, at, size)
    return tensor
