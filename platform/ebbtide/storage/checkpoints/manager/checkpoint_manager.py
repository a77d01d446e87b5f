"""The checkpoints of one run, as one process uses them.

::

    checkpoints = RunCheckpoints(run_paths(shared, "my-run"), TrainingPorts(transport))
    checkpoints.begin_epoch(3)                                   # once, when a gang starts
    state = checkpoints.read_newest(OpenCheckpoint.read_state)   # None before the first
    checkpoints.save(state, epoch=3, step=100)                   # one process that holds all of the state

Gangs of which each rank holds shards use ``gang_checkpoint``; saves in the background are the session's.

Not guaranteed: that a step which was committed is still there; see ``checkpoint_retention``. And nothing against others
who can write to the directory: hashes are against faults, not against attackers.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import torch

from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint, open_checkpoint
from ebbtide.storage.checkpoints.manager.two_phase_save import Saving
from ebbtide.storage.checkpoints.run_directory.checkpoint_contents import open_directory
from ebbtide.storage.checkpoints.run_directory.cleanup import Cleaned, Cleaner
from ebbtide.storage.checkpoints.run_directory.lineage import Claim, Start, lineage
from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_ports import Keeping, TrainingPorts
from ebbtide.storage.checkpoints.run_directory.run_survey import begin_epoch, look, newest_of
from ebbtide.storage.checkpoints.state.about_json import About, Note
from ebbtide.storage.checkpoints.state.plain_state import pack
from ebbtide.storage.checkpoints.state.rank_file import Shard, must_be_storable, shard_bytes, write_shards
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.errors import Corrupt, NoRoom, NotPublished, Refused, StorageError
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.names import COMMIT

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class IfCorrupt(Enum):
    """What to do about a checkpoint that is damaged."""

    RAISE = "raise"
    OLDER = "older"  # take the one before, and say so: the steps since are lost


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What was read, and from where.

    Attributes:
        skipped: newer checkpoints that are damaged, with what is wrong; empty unless `IfCorrupt.OLDER` was asked for.
    """

    id: CheckpointId
    value: T
    skipped: tuple[tuple[CheckpointId, StorageError], ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """A committed checkpoint.

    Attributes:
        counts: whether the newest goes back to it; else a gang wrote it that was replaced.
        problem: why it cannot be opened; empty if it can.
        about: what its writer said; None if it cannot be opened.
        written_s: when it was committed, in seconds since 1970, by the filesystem's clock.
    """

    id: CheckpointId
    counts: bool
    size_bytes: int = 0
    written_s: float = 0.0
    about: About | None = None
    problem: str = ""


class RunCheckpoints:
    """One run; may be used by several threads, but one save at a time."""

    def __init__(self, paths: RunPaths, ports: TrainingPorts, keeping: Keeping | None = None) -> None:
        """Nothing is read or made yet; see `run_paths` for the first argument."""
        self.paths, self.ports, self.keeping = paths, ports, keeping or Keeping()
        self.planned_bytes: dict[int, int] = {}  # of each rank, as of the last save; see `storage_writer`
        self._saving = threading.Lock()
        self._origin: CheckpointId | None = None  # what was read last
        self._cleaning: threading.Thread | None = None

    # ---- reading

    def newest(self) -> CheckpointId | None:
        """The checkpoint from which the run goes on; None before the first.

        Raises:
            Corrupt: nobody can tell.
            TransferFailed: the directory cannot be looked at.
        """
        return newest_of(self.paths)

    def lineage(self) -> list[CheckpointId]:
        """The newest, and those before it, newest first. Raises as `newest` does."""
        return lineage(look(self.paths))

    def open(self, wanted: CheckpointId, *, held: bool = False) -> OpenCheckpoint:
        """Open one; see `open_checkpoint`."""
        return open_checkpoint(self.paths, wanted, self.ports, held=held)

    def read_newest(
        self, read: Callable[[OpenCheckpoint], T], *, if_corrupt: IfCorrupt = IfCorrupt.RAISE
    ) -> Found[T] | None:
        """Read the newest checkpoint.

        In a gang a chunk may be damaged that only one rank reads: with `IfCorrupt.OLDER` the ranks must agree on what
        they have read, and begin again with the older one if they differ.

        Args:
            read: takes what is needed of an open checkpoint, such as `OpenCheckpoint.read_state`.
            if_corrupt: what to do if it is damaged, at any place that ``read`` comes to.

        Returns:
            None before the first checkpoint.

        Raises:
            Corrupt, NotPublished: it is damaged or gone; with `IfCorrupt.OLDER`, all are.
            TransferFailed: it cannot be read, which another attempt or node may.
        """
        skipped: list[tuple[CheckpointId, StorageError]] = []
        line = self.lineage()
        while line:
            wanted = line.pop(0)
            try:
                with self.open(wanted) as opened:
                    found = Found(wanted, read(opened), tuple(skipped))
                self._origin = wanted
                return found
            except (Corrupt, NotPublished) as error:
                now = self.lineage()
                if not skipped and now[:1] != [wanted]:  # guard: a reader that is overtaken by commits reads the newest
                    line = now  # a newer one was committed meanwhile, and this one removed
                    continue
                # guard: an older checkpoint is read only if that is asked for
                if if_corrupt is IfCorrupt.RAISE or not line:
                    raise
                _logger.warning("run %s: %s is damaged, an older one is read: %s", self.paths.run, wanted, error)
                skipped.append((wanted, error))
        return None

    def list(self) -> list[Listed]:
        """All committed checkpoints, the highest first; those that are being removed meanwhile are left out."""
        found = look(self.paths)
        line = frozenset(lineage(found))
        ids = sorted((CheckpointId(one.epoch, step) for one in found for step in one.steps), reverse=True)
        return [listed for one in ids if (listed := self._listed(one, counts=one in line)) is not None]

    # ---- writing

    def begin_epoch(
        self,
        epoch: int,
        start: Start | None = None,
        *,
        claim: Claim | None = None,
        check: Callable[[CheckpointId], None] | None = None,
    ) -> Start:
        """Say that a gang has begun; once, by its first rank, before the others read. See `run_survey.begin_epoch`."""
        try:
            return begin_epoch(self.paths, self.ports.disk, epoch, start, claim=claim, check=check)
        except NoRoom:  # guard: a full disk is cleaned before a gang that begins calls it full
            if not self.make_room(epoch):
                raise
            return begin_epoch(self.paths, self.ports.disk, epoch, start, claim=claim, check=check)

    def saving(self, epoch: int, step: int) -> Saving:
        """A save in two phases, for several processes; see `two_phase_save`."""
        return Saving(self.paths, CheckpointId(epoch, step), self.ports, self.keeping, self._origin)

    def save(self, state: Mapping[str, object], *, epoch: int, step: int, note: Note | None = None) -> CheckpointId:
        """Commit a state of which this process holds all.

        Args:
            state: nested dicts, lists and tuples of tensors and plain data. It must not change meanwhile.
            epoch: of this gang.
            step: how many steps are finished. A step that was committed in this epoch stays as it is.
            note: what to say about it.

        Raises:
            Refused: the state holds something that cannot be stored, or another save is under way.
            NoRoom: also after what is not needed was removed; nothing of this is left.
            Superseded: a later gang has begun.
            StorageError: anything else. The checkpoint before still counts.
        """
        tree, shards = parts_of(state)
        about, wanted = About(1, dict(note or {})), CheckpointId(epoch, step)
        with self.alone():
            if self._is_committed(wanted):
                # guard: a step that is found committed is durable before that is said
                self.ports.disk.sync_directory(self.paths.epoch(epoch))  # whoever placed it may not have come that far
                return wanted
            try:
                self._save(wanted, shards, tree, about)
            except NoRoom:  # guard: a full disk is cleaned before a save calls it full
                if not self.make_room(epoch):
                    raise
                self._save(wanted, shards, tree, about)
        self.start_cleaning(epoch)
        return wanted

    def _save(self, wanted: CheckpointId, shards: Sequence[Shard], tree: Json, about: About) -> None:
        saving = self.saving(wanted.epoch, wanted.step)
        try:
            saving.begin(shard_bytes(shards))
            with saving.telling_of_successors():
                entry = write_shards(saving.staging, 0, shards)
            saving.commit([entry], tree, about)
        except BaseException:
            saving.drop()  # guard: a save of a checkpoint that fails leaves nothing
            raise

    def alone(self) -> "_Alone":
        """A context in which this process writes one checkpoint.

        Raises:
            Refused: it writes one already.
        """
        return _Alone(self._saving, self.paths.run)

    # ---- what is not needed any more

    def clean(self, epoch: int, *, urgent: bool = False) -> Cleaned:
        """Remove what is not needed, now; see `Cleaner.clean`. ``epoch`` is that of this gang."""
        directory = self.paths.directory
        self.ports.disk.touch(directory)  # the filesystem's clock, by which ages are told
        with telling("look at", directory):
            now_s = directory.stat().st_mtime
        return Cleaner(self.paths, self.ports, self.keeping, epoch, self._origin).clean(now_s, urgent=urgent)

    def make_room(self, epoch: int) -> bool:
        """Clean since something did not fit; whether there is more room now. Errors are logged."""
        try:
            return bool(self.clean(epoch, urgent=True).removed)
        except StorageError as error:
            _logger.warning("run %s: no room can be made: %s", self.paths.run, error)
            return False

    def start_cleaning(self, epoch: int) -> None:
        """The same in a thread: the commit before it is confirmed at once. Errors are logged; one round at a time."""
        if self._cleaning is not None and self._cleaning.is_alive():
            return

        def clean() -> None:
            try:
                self.clean(epoch)
            except StorageError as error:
                _logger.warning("run %s: what is not needed could not be removed: %s", self.paths.run, error)

        cleaning = threading.Thread(target=clean, name=f"clean {self.paths.run}", daemon=True)
        try:
            cleaning.start()
        # guard: without a thread to clean in a commit is one all the same
        except RuntimeError as error:  # "can't start new thread"; what was committed before is committed
            _logger.warning("run %s: what is not needed stays for now: %s", self.paths.run, error)
        else:
            self._cleaning = cleaning

    def settle(self, timeout_s: float = math.inf) -> bool:
        """Wait until nothing is being removed; whether that came about in time. It may be cut off at any moment."""
        if self._cleaning is not None:
            self._cleaning.join(min(timeout_s, threading.TIMEOUT_MAX))
            if self._cleaning.is_alive():
                return False
            self._cleaning = None
        return True

    def _is_committed(self, wanted: CheckpointId) -> bool:
        try:
            open_directory(self.paths, wanted)
        except (NotPublished, Corrupt):
            return False
        return True

    def _listed(self, wanted: CheckpointId, *, counts: bool) -> Listed | None:
        written_s = 0.0
        try:
            with self.open(wanted) as opened:
                commit = self.paths.checkpoint(wanted) / COMMIT
                with telling("look at", commit), suppress(FileNotFoundError):
                    written_s = commit.stat().st_mtime
                return Listed(wanted, counts, opened.size_bytes, written_s, opened.about)
        except NotPublished:
            return None
        except (Corrupt, Refused) as error:
            return Listed(wanted, counts, problem=str(error))


class _Alone:
    """Holds a lock that must be free."""

    def __init__(self, lock: threading.Lock, run: str) -> None:
        self._lock, self._run = lock, run

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):  # guard: a process writes one checkpoint at a time
            raise Refused(f"run {self._run}: a checkpoint is being written; wait for it, and then begin the next one")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def parts_of(state: Mapping[str, object]) -> tuple[Json, list[Shard]]:
    """What `RunCheckpoints.save` writes of a state: what is no tensor, and the tensors. Nothing is copied.

    Raises:
        Refused: it holds something that cannot be stored.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = pack(state, "", tensors)
    for name, tensor in tensors.items():
        if hasattr(tensor, "__create_write_items__"):
            raise Refused(f"{name!r} is sharded over several processes: save it with all (`gang.save_together`)")
        must_be_storable(name, tensor)
    return tree, [Shard.of_all(name, tensor) for name, tensor in tensors.items()]
