"""The checkpoints of a job, as its session uses them: one state for the whole gang, whatever the number of workers.

They are those of ``ebbtide.storage.checkpoints``: hashed, committed by one rename, in a directory of the gang's own
epoch, ``train/<job>/e<epoch>/step-<n>``. A gang begins its epoch before its ranks read; from then on nobody reads what
an older gang writes, and that one is told so. The first rank writes, since the state is replicated.

A state that is split over the ranks (FSDP2) is written by all of them (``sharded_checkpoint``), and each reads its own
part.
"""

import logging
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.ledger.reader import identity, survey
from ebbtide.storage.bandwidth.node_traffic import node_traffic
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints, parts_of
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import Retention
from ebbtide.storage.checkpoints.run_directory.epoch_numbering import epoch_for
from ebbtide.storage.checkpoints.run_directory.lineage import Claim
from ebbtide.storage.checkpoints.run_directory.run_paths import GANG, START, CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_ports import Keeping, TrainingPorts, gang_leases, run_leases
from ebbtide.storage.checkpoints.run_directory.run_survey import look, newest_of
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError, Superseded
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.objects.store_limits import Limits, limits_of
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.sharded_checkpoint import Parts, save_together
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.errors import CheckpointFailed, CheckpointMismatch, CommitHopeless, SessionMisuse
from ebbtide_train.session.state.tensor_shards import Layout, parts_here, read_parts


def must_be_plain(state: Mapping[str, object], *, world: int = 1) -> None:
    """Go on only if a checkpoint can hold ``state``, which may be split over ``world`` ranks; nothing is copied.

    Raises:
        SessionMisuse: it cannot; names what is in the way.
    """
    try:
        parts_here(state, rank=0, world=world)
    except Refused as error:
        raise SessionMisuse(f"what was given to prepare() cannot be kept in a checkpoint: {error}") from error


_logger = logging.getLogger(__name__)

STALE_S = 60.0  # attribute caches of network filesystems hold an old listing for up to this long (nfs(5))
_LOOK_S = 0.2


class CheckpointStore:
    """The checkpoints of one run directory; its last name is the run's."""

    def __init__(self, run_dir: Path, *, keep: int = 2) -> None:
        """Nothing is read or made yet. ``keep``: how many of the newest stay."""
        self._paths = RunPaths(run_dir, run_dir.name)
        self._keep, self._limits = keep, Limits()
        self._running = ExitStack()
        self.epoch: int | None = None  # of this gang, once it has begun

    @cached_property
    def _checkpoints(self) -> RunCheckpoints:
        """Made at first use: its buffers take memory.

        They are not page-locked: one that takes the place of a buried one may be made while this process is off its
        GPU, and a call to CUDA would wait until it is back.
        """
        rate = self._look_up_limits().bytes_per_s
        traffic = node_traffic(self._paths.directory, TrafficClass.CHECKPOINT_WRITE, rate)
        ports = TrainingPorts(
            PosixTransport(process_pool(), traffic=traffic),
            leases=run_leases(self._paths),  # guard: a session's own cleaning knows the readers
        )
        return RunCheckpoints(self._paths, ports, self._keeping())

    def _to_write(self) -> RunCheckpoints:
        """With the limits as they are now: a gang that found no room goes on as soon as it was given some."""
        self._look_up_limits()
        self._checkpoints.keeping = self._keeping()
        return self._checkpoints

    def _keeping(self) -> Keeping:
        return Keeping(Retention(keep_last=self._keep), self._limits.checkpoints)

    def _look_up_limits(self) -> Limits:
        """As they were, where they cannot be told: all ranks must go on, or none."""
        try:
            self._limits = limits_of(self._paths.shared_dir)
        except StorageError as error:
            _logger.warning("what the pool allows its jobs is taken to be as before: %s", error)
        return self._limits

    def begin(self, lease_epoch: int, ledger: str = "") -> CheckpointId | None:
        """Say that the gang of a lease has begun; for its first rank, before the others read.

        The checkpoint is looked at before anybody is told to go on from it; ``epoch`` is known then.

        Args:
            lease_epoch: of the gang.
            ledger: the identity of the one within which lease epochs grow; "": they are the epochs of the run.

        Returns:
            The checkpoint from which it goes on; None: from the very beginning.

        Raises:
            CheckpointMismatch: a later gang has begun, the checkpoint is damaged, or nobody can tell where to go on.
        """
        claim = Claim(ledger, lease_epoch) if ledger else None
        try:
            # guard: the epoch of a run is that of the ledger's lease
            self.epoch = epoch_for(look(self._paths), claim, self._present_ledger) if claim else lease_epoch
            origin = self._checkpoints.begin_epoch(
                self.epoch,
                claim=claim,
                check=self._look_at,  # guard: a start looks at its checkpoint before anything leans on it
            ).origin
            if (found := newest_of(self._paths)) is not None and found.epoch == self.epoch:
                self._look_at(found)  # a gang of this very lease was here before, and committed
                origin = found
            self._checkpoints.ports.disk.make_directory(self._paths.leases)
        except StorageError as error:
            raise CheckpointMismatch(f"this gang cannot begin: {error}{self._remedy(error)}") from error
        try:
            # guard: a gang lets others see that it lives
            self._running.enter_context(gang_leases(self._paths).hold(GANG))
        except StorageError as error:  # only people ask, before they decide something
            _logger.warning("others cannot see that this gang runs: %s", error)
        return origin

    def close(self) -> None:
        """Others may know that this gang runs no more; idempotent."""
        self._running.close()

    def _look_at(self, wanted: CheckpointId) -> None:
        deadline_s = time.monotonic() + STALE_S
        while True:
            try:
                self._checkpoints.open(wanted).close()
                return
            except NotPublished:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_LOOK_S)

    def _present_ledger(self) -> str:
        directory = self._paths.shared_dir / "ledger"
        try:
            return identity(directory, survey(directory))
        except (LedgerUnusable, OSError) as error:
            raise CheckpointMismatch(
                f"this gang cannot begin: its ledger is another than that of the gang before, and which of them the "
                f"pool has now cannot be told ({error}); try again when {directory} can be read"
            ) from error

    def _remedy(self, error: StorageError) -> str:
        # guard: the error of a start says what to do where there is a choice
        if not isinstance(error, Corrupt | NotPublished) or (isinstance(error, Corrupt) and error.path.name == START):
            return ""
        run = self._paths.run
        return (
            f"; if it cannot be mended, decide from which one to go on (ebbtide checkpoints list {run}, and then "
            f"ebbtide checkpoints use {run} --at e<epoch>/step-<n>)"
        )

    def newest(self) -> CheckpointId | None:
        """The committed checkpoint, or None before the first.

        Raises:
            CheckpointMismatch: nobody can tell.
        """
        try:
            return self._checkpoints.newest()
        except StorageError as error:
            raise CheckpointMismatch(str(error)) from error

    def ref(self, wanted: CheckpointId) -> Ref | None:
        """What a checkpoint is of; None: it is not there, or not to be seen from here yet.

        Raises:
            CheckpointMismatch: it is damaged, or was not written by a session.
        """
        try:
            with self._checkpoints.open(wanted) as opened:
                return Ref.from_note(wanted, opened.about.note)
        except NotPublished:
            return None
        except StorageError as error:
            raise CheckpointMismatch(
                f"the committed checkpoint cannot be read: {error}{self._remedy(error)}"
            ) from error

    def load(self, ref: Ref, split: Mapping[str, Layout] | None = None) -> dict[str, object]:
        """The state that ``ref`` names, on the CPU, in memory of its own.

        Args:
            ref: which.
            split: tensors of which only a part lies on this rank, see `read_parts`.

        Raises:
            CheckpointMismatch: it is missing or damaged.
        """
        try:
            with self._checkpoints.open(ref.id) as opened:
                state = OpenCheckpoint.read_state(opened, read_parts(opened, split) if split else None)
        except StorageError as error:
            raise CheckpointMismatch(
                f"the committed checkpoint cannot be read: {error}{self._remedy(error)}"
            ) from error
        assert isinstance(state, dict)
        return state

    def publish(self, state: Mapping[str, object], ref: Ref) -> None:
        """Write ``state`` and commit it as ``ref``.

        Raises:
            CommitHopeless: this gang was replaced, or no checkpoint can hold the state.
            CheckpointFailed: anything else, such as a full disk. In all cases the commit before still counts.
        """
        try:
            parts_of(state)  # what is refused later may only be so for the moment
        except Refused as error:
            raise CommitHopeless(f"cannot commit step {ref.step}: {error}") from error
        try:
            self._to_write().save(state, epoch=ref.epoch, step=ref.step, note=ref.note())
        except Superseded as error:  # guard: being replaced is told from what may pass
            raise CommitHopeless(f"cannot commit step {ref.step}: {error}") from error
        except StorageError as error:
            raise CheckpointFailed(f"cannot commit step {ref.step}: {error}") from error

    def publish_together(self, group: Group, parts: Parts, ref: Ref) -> None:
        """The same for a state that is split over the ranks; all of them call it. Raises alike on all of them."""
        try:
            save_together(self._to_write(), group, parts, ref)
        except CheckpointFailed as error:
            raise type(error)(f"cannot commit step {ref.step}: {error}") from error

    def settle(self, timeout_s: float = math.inf) -> bool:
        """Wait until what is not needed any more has been removed; whether that came about in time."""
        return "_checkpoints" not in self.__dict__ or self._checkpoints.settle(timeout_s)  # else it never did anything
