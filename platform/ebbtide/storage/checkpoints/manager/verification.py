"""Reading all of a checkpoint to see whether it still is what was committed, and listing all damage."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.checkpoint_contents import checkpoint_manifest
from ebbtide.storage.checkpoints.run_directory.cleanup import of_checkpoint
from ebbtide.storage.checkpoints.run_directory.run_paths import STATE, CheckpointId
from ebbtide.storage.leases.object_leases import Lease
from ebbtide.storage.maintenance.scrub import Damage, damage_of
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide.storage.objects.store_ports import StorePorts
from ebbtide.storage.transport.transport import Range


def verify(checkpoints: RunCheckpoints, wanted: CheckpointId) -> list[Damage]:
    """All damage of a checkpoint; nothing of it is changed.

    Every chunk is read and compared with its hashes; then the headers of the ranks' files with the index of tensors.

    Raises:
        NotPublished: there is no such checkpoint.
        Corrupt: its manifest or COMMIT is damaged, so that nobody can tell what it should be.
        TransferFailed: it cannot be read.
    """
    own = checkpoints.ports
    with ExitStack() as stack:
        if own.leases is not None:
            # guard: a checkpoint that is verified is held meanwhile
            stack.enter_context(own.leases.hold(of_checkpoint(wanted), comes_back=True))
        manifest = checkpoint_manifest(checkpoints.paths, wanted)
        here = _Here(checkpoints.paths.checkpoint(wanted))
        found = damage_of(StorePorts(here, own.transport, _HeldAlready(), own.disk), manifest.id, deep=True)
        if found:
            return found
        with checkpoints.open(wanted) as opened:
            return list(_contradictions(opened))


def _contradictions(opened: OpenCheckpoint) -> Iterator[Damage]:
    """Where the index of tensors and the header of a rank's file disagree: a bug of who wrote them, and no rot."""
    files = {part.file for tensor in opened.index.tensors.values() for part in tensor.parts}
    places = {
        (file, entry.dtype, entry.shape, entry.offset) for file in files for entry in opened.stored.header(file).entries
    }
    for tensor in opened.index.tensors.values():
        for part in tensor.parts:
            # guard: verifying compares the index with the headers of the files
            if part.box.volume and (part.file, tensor.dtype, part.box.sizes, part.at) not in places:
                what = f"no tensor begins at byte {part.at} of {part.file}, where {tensor.name!r} {part.box} should be"
                yield Damage(STATE, Range(0, opened.stored.file(STATE).entry.size_bytes), what)


@dataclass(frozen=True, slots=True)
class _Here(StorePaths):
    """A store of one object, which lies at its root."""

    def object(self, object_id: ObjectId) -> Path:
        return self.root


class _HeldAlready:
    """Leases of what is held in another way."""

    def hold(self, subject: str, *, comes_back: bool = False) -> AbstractContextManager[Lease]:
        return nullcontext(_Held())

    def living(self) -> frozenset[str]:
        return frozenset()

    def present(self) -> frozenset[str]:
        return frozenset()


class _Held:
    def check(self) -> None: ...

    def confirm(self) -> None: ...
