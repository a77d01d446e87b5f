"""One save of one step, in two phases, by as many processes as one likes.

::

    rank 0:      saving.begin(size)              the room is reserved, the work directory is there
    every rank:  entry = write_shards(saving.staging, rank, shards)
    rank 0:      saving.commit(entries, tree, about)       manifest, COMMIT, one rename

and between these the ranks tell each other: that it has begun, the entries, that it is committed. How, is the caller's
business: collectives of torch (``gang_checkpoint``), of the session, or one process that holds everything. No rank may
go on from its safe point before it has heard that the commit is done.

::

    NEW -> BEGUN -> PLACED         and DROPPED from all but the last

Until the rename nobody sees anything of it. A kill at any moment leaves the checkpoint before as it was, and a work
directory that is removed later. A step of an epoch is committed once: if it stands there already, that one stays.

Not guaranteed: that a server that hangs is noticed. Small files have no deadline; what must not wait lets a thread
do this.
"""

import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum

from ebbtide.storage.checkpoints.manager.directory_seal import seal_directory
from ebbtide.storage.checkpoints.run_directory.checkpoint_contents import open_directory
from ebbtide.storage.checkpoints.run_directory.checkpoint_space import describe_lack, measure, needed_bytes, reserve
from ebbtide.storage.checkpoints.run_directory.cleanup import Cleaner
from ebbtide.storage.checkpoints.run_directory.run_paths import ABOUT, STATE, WORK, CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_ports import Keeping, TrainingPorts
from ebbtide.storage.checkpoints.run_directory.run_survey import begin_epoch, check_epoch, temporaries
from ebbtide.storage.checkpoints.state.about_json import About
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.checkpoints.state.tensor_index import gather_index, parse_index
from ebbtide.storage.errors import Corrupt, NoRoom, NotPublished, Refused, StorageError, Superseded, TransferFailed
from ebbtide.storage.files.durable_files import telling
from ebbtide.storage.objects.manifest import FileEntry, Kind, Manifest, hashing_for, make_manifest
from ebbtide.storage.objects.staging import Staging

_logger = logging.getLogger(__name__)

MOST_TURNS = 3  # of finding something damaged in the way; more is no accident


class Stage(Enum):
    """How far a save has come, as the rank that leads it knows."""

    NEW = "new"
    BEGUN = "begun"  # the room is reserved, ranks may write
    PLACED = "placed"  # committed: readers see it
    DROPPED = "dropped"  # given up; what was written is gone, or will be


EDGES: Mapping[Stage, frozenset[Stage]] = {
    Stage.NEW: frozenset(
        {
            Stage.BEGUN,  # there is room, and no later gang
            Stage.DROPPED,  # there is not
        }
    ),
    Stage.BEGUN: frozenset(
        {
            Stage.PLACED,  # the rename, or somebody else's of the same step
            Stage.DROPPED,  # a rank failed, or the caller gave up
        }
    ),
    Stage.PLACED: frozenset(),
    Stage.DROPPED: frozenset(),
}


class Saving:
    """One process's part in one save. `begin`, `commit` and `drop` are for the rank that leads it."""

    def __init__(
        self,
        paths: RunPaths,
        wanted: CheckpointId,
        ports: TrainingPorts,
        keeping: Keeping,
        origin: CheckpointId | None = None,
    ) -> None:
        """Nothing is done yet. ``origin``: what the gang has read, see `Cleaner`."""
        self.id, self.stage = wanted, Stage.NEW
        self._leads = False  # it has the work directory made, and so it is the one that removes it
        self._paths, self._ports = paths, ports
        self._keeping, self._origin = keeping, origin
        self._work = paths.work(wanted)
        hashing = hashing_for(Kind.TRAINING, paths.key(wanted), ports.chunk_bytes)
        self.staging = Staging(self._work, hashing, ports.transport, ports.disk)

    @property
    def ports(self) -> TrainingPorts:
        """How the checkpoints are reached."""
        return self._ports

    def begin(self, tensor_bytes: int) -> None:
        """Set room aside and make the work directory.

        Args:
            tensor_bytes: of all ranks together; what comes on top is added.

        Raises:
            Superseded: a later gang has begun.
            NoRoom: also after what is not needed was removed; nothing of this save is left.
            StorageError: anything else.
        """
        self._must_be(Stage.NEW)
        try:
            begin_epoch(self._paths, self._ports.disk, self.id.epoch)
            for epoch, path in list(temporaries(self._paths)):
                # guard: what a failed save of this gang left is removed before the next one
                if epoch == self.id.epoch and path.name.startswith(WORK):
                    self._ports.disk.remove_tree(path)  # this gang writes one at a time: that attempt has failed
            self._leads = True
            self._ports.disk.make_directory(self._work)
            self._reserve(needed_bytes(tensor_bytes))
        except BaseException:
            self.drop()
            raise
        self._go(Stage.BEGUN)

    def commit(self, entries: Sequence[RankEntry], tree: Json, about: About) -> CheckpointId:
        """Make a checkpoint of what all ranks wrote.

        Args:
            entries: of all ranks.
            tree: the packed state that points to the tensors.
            about: what to say about it.

        Returns:
            Its id. Everything is durable then.

        Raises:
            Superseded: a later gang has begun; nobody reads what this one writes.
            Refused: what the ranks wrote does not make a whole.
            NoRoom: there is no space.
            StorageError: anything else. In all cases the checkpoint before still counts; call `drop`.
        """
        self._must_be(Stage.BEGUN)
        with self.telling_of_successors():
            check_epoch(self._paths, self.id.epoch)
            manifest = self._seal(entries, tree, about)
            # guard: a commit looks for a later gang once more before its rename
            check_epoch(self._paths, self.id.epoch)
            self._place(manifest)
        return self.id

    @contextmanager
    def telling_of_successors(self) -> Iterator[None]:
        """What fails in the block because a later gang has cleared it away is raised as `Superseded`."""
        try:
            yield
        except (TransferFailed, NotPublished, Corrupt, Refused) as error:
            try:
                check_epoch(self._paths, self.id.epoch)  # guard: what a later gang has cleared away is told as that
            except Superseded as reason:
                raise reason from error
            except StorageError:
                pass  # it cannot be told; then the first error is the one to tell
            raise

    def drop(self) -> None:
        """Give up; does nothing once it is committed.

        The rank that leads removes what was written, as far as that is possible. The others remove nothing: they may
        hear of a failure while that rank has all that it needs, and commits.
        """
        if self.stage in (Stage.PLACED, Stage.DROPPED):  # guard: what is committed cannot be given up
            return
        self._go(Stage.DROPPED)
        if not self._leads:  # guard: the other ranks of a gang remove nothing when it fails
            return
        with suppress(StorageError):  # the error that led here is the one to tell; the rest is removed later
            self._ports.disk.remove_tree(self._work)

    def _reserve(self, size_bytes: int) -> None:
        now_s = reserve(self._work, self._ports.disk, size_bytes)
        budget = self._keeping.budget
        if describe_lack(measure(self._paths, now_s), budget, self._paths, size_bytes):
            Cleaner(self._paths, self._ports, self._keeping, self.id.epoch, self._origin).clean(now_s, urgent=True)
            # guard: a full budget never costs the last good checkpoint
            if why := describe_lack(measure(self._paths, now_s), budget, self._paths, size_bytes):
                raise NoRoom(why)

    def _seal(self, entries: Sequence[RankEntry], tree: Json, about: About) -> Manifest:
        files: list[FileEntry] = [entry.file for entry in entries if entry.file is not None]
        # guard: each rank is in a checkpoint once
        if len({entry.rank for entry in entries}) != len(entries) or len({file.name for file in files}) != len(files):
            raise Refused(f"checkpoint {self.id}: two entries are of one rank; give each rank's once")
        raw = gather_index(entries, tree).to_bytes()
        parse_index(raw, self._work / STATE, {file.name: file.size_bytes for file in files})
        files.append(self.staging.write_bytes(STATE, raw))
        files.append(self.staging.write_bytes(ABOUT, about.to_bytes()))
        manifest = make_manifest(
            kind=Kind.TRAINING,
            key=self._paths.key(self.id),
            chunk_bytes=self.staging.hashing.chunk_bytes,
            content_hash=self.staging.hashing.content_kind,
            files=tuple(files),
        )
        seal_directory(self._work, manifest, self._ports.disk)
        return manifest

    def _place(self, manifest: Manifest) -> None:
        disk, target = self._ports.disk, self._paths.checkpoint(self.id)
        for _ in range(MOST_TURNS):
            if disk.move(self._work, target):
                break
            if self._stands(manifest):  # guard: a step that was committed stays as it is
                # Who placed it may not have come that far.
                disk.sync_directory(target.parent)  # guard: a rename whose answer was lost is made durable
                break
            with telling("look at", self._work):
                is_there = self._work.is_dir()
            # Taken away by a later gang, which `telling_of_successors` then tells; or by hand.
            if not is_there:  # guard: a work directory that is gone is told, and moves nothing away
                hint = "it was taken away while the checkpoint was committed; save it again"
                raise TransferFailed("rename", self._work, errno=errno.ENOENT, hint=hint)
            disk.move(target, self._paths.removed(self.id))  # guard: a damaged checkpoint of the same step makes way
        else:
            raise Refused(f"checkpoint {self.id} cannot be committed: what is in the way comes back at {target}")
        self._go(Stage.PLACED)
        with suppress(StorageError):  # of the same step, and committed before
            disk.remove_tree(self._work)

    def _stands(self, manifest: Manifest) -> bool:
        """Whether this step is committed already; what is there and damaged helps nobody, and is not."""
        try:
            there = open_directory(self._paths, self.id).manifest
        except NotPublished:
            return False
        except Corrupt as error:
            _logger.warning("run %s: a damaged checkpoint is replaced: %s", self._paths.run, error)
            return False
        if there.id != manifest.id:
            _logger.warning("run %s: %s was committed before, of other content; it stays", self._paths.run, self.id)
        return True

    def _must_be(self, stage: Stage) -> None:
        if self.stage is not stage:  # guard: a save is begun, committed and given up in this order only
            raise Refused(f"checkpoint {self.id} is {self.stage.value}; it should be {stage.value} for that")

    def _go(self, stage: Stage) -> None:
        if stage not in EDGES[self.stage]:
            raise Refused(f"a save that is {self.stage.value} cannot become {stage.value}")
        self.stage = stage
