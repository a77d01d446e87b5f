"""Removing what a run does not need: old checkpoints, what crashes left, and epochs in which nothing is.

A checkpoint that goes is first renamed to a name that no reader looks at, then removed: it is there whole, or not at
all. Each round may be cut off anywhere; the next one goes on.

Readers that have a lease are asked for twice: before a checkpoint is moved away, and after it, when no reader can come
any more. If one has come in between, it is moved back; for that moment the reader may have found nothing.

Not guaranteed: that such a checkpoint is whole, if the cleaner of a gang that was replaced meets the next gang's at
that very moment. Neither touches the newest sound one.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage.checkpoints.run_directory.checkpoint_contents import open_directory
from ebbtide.storage.checkpoints.run_directory.checkpoint_retention import judge
from ebbtide.storage.checkpoints.run_directory.lineage import EpochFound, lineage, overtaken_by
from ebbtide.storage.checkpoints.run_directory.run_paths import WORK, CheckpointId, RunPaths
from ebbtide.storage.checkpoints.run_directory.run_ports import Keeping, TrainingPorts
from ebbtide.storage.checkpoints.run_directory.run_survey import look, temporaries
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError
from ebbtide.storage.files.durable_files import is_real_directory, telling

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Cleaned:
    """What a round did.

    Attributes:
        removed: names below the run's directory, with the reasons.
        failed: what the filesystem refused; the rest was done.
    """

    removed: list[tuple[str, str]] = field(default_factory=list)
    failed: list[StorageError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cleaner:
    """Cleans for one gang.

    Attributes:
        epoch: of the gang; what later gangs have is theirs.
        origin: the checkpoint that the gang has read; it stays until the gang has one of its own.
    """

    paths: RunPaths
    ports: TrainingPorts
    keeping: Keeping
    epoch: int
    origin: CheckpointId | None = None

    def clean(self, now_s: float, *, urgent: bool = False) -> Cleaned:
        """One round; leases of readers are looked at until it is known who lives, up to a minute.

        Args:
            now_s: by the filesystem's clock.
            urgent: room is missing: what older gangs left half written goes whatever its age.

        Raises:
            StorageError: the run cannot be looked at; nothing was removed.
        """
        done, found = Cleaned(), look(self.paths)
        # guard: a gang that was replaced leaves half written things alone
        if overtaken_by(found, self.epoch) is not None:
            return done
        for one in judge(
            found,
            self.keeping.retention,
            epoch=self.epoch,
            sound=self._newest_sound(found),
            held=self._held(),
            origin=self.origin,
        ):
            if not one.stays:
                self._remove_checkpoint(one.id, one.why, done)
        for number, path in list(temporaries(self.paths)):
            is_own_work = number == self.epoch and path.name.startswith(WORK)  # in use, or cleared by the next save
            if (
                is_own_work  # guard: half written things of a gang itself are in use
                or number > self.epoch
            ):
                continue
            try:
                with telling("look at", path), suppress(FileNotFoundError):
                    age_s = now_s - _changed_s(path)
                    if (
                        age_s > self.keeping.grace_s  # guard: half written things of others have a grace
                        or (urgent and number < self.epoch)
                    ):
                        self._remove(path, f"half written, and unchanged for {age_s:.0f} s", done)
            except StorageError as error:
                done.failed.append(error)
        # Before this gang has said from where it goes on, an epoch in which nothing is may be what says so.
        # guard: what an empty epoch says counts until this gang has said it
        if any(one.epoch == self.epoch and one.start is not None for one in found):
            for one_epoch in found:
                if one_epoch.epoch < self.epoch:
                    self._remove_empty(one_epoch.epoch, done)
        for name, why in done.removed:
            _logger.info("run %s: removed %s: %s", self.paths.run, name, why)
        for failure in done.failed:
            _logger.warning("run %s: %s", self.paths.run, failure)
        return done

    def _newest_sound(self, found: list[EpochFound]) -> CheckpointId | None:
        for one in lineage(found):
            with suppress(NotPublished, Corrupt, Refused):
                open_directory(self.paths, one)  # guard: damaged ones do not count as the newest that opens
                return one
        return None

    def _held(self) -> Iterator[CheckpointId]:
        if self.ports.leases is not None:
            for subject in self.ports.leases.living():
                with suppress(Refused):
                    yield held_checkpoint(subject)

    def _is_read(self, one: CheckpointId) -> bool:
        """Whether a reader has come since the dead ones were told from the living, and buried."""
        return self.ports.leases is not None and of_checkpoint(one) in self.ports.leases.present()

    def _remove_checkpoint(self, one: CheckpointId, why: str, done: Cleaned) -> None:
        place, aside = self.paths.checkpoint(one), self.paths.removed(one)
        is_moved = is_free = False
        try:
            is_moved = (
                not self._is_read(one)  # guard: readers are looked for once more before a checkpoint is moved
                and self.ports.disk.move(place, aside)  # guard: a checkpoint that goes is renamed first
            )
            is_free = (
                is_moved
                # guard: readers are looked for once more after a checkpoint was moved
                and not self._is_read(one)
            )
            if is_moved and not is_free:
                self.ports.disk.move(aside, place)
        except StorageError as error:  # guard: what cannot be removed fails no save
            done.failed.append(error)
            # guard: a checkpoint of which it cannot be told who reads it comes back
            if is_moved:
                with suppress(StorageError):
                    self.ports.disk.move(aside, place)
        if is_free:
            done.removed.append((str(one), why))
            self._remove(aside, "", done)

    def _remove(self, path: Path, why: str, done: Cleaned) -> None:
        try:
            self.ports.disk.remove_tree(path)
        except StorageError as error:
            done.failed.append(error)
            return
        if why:
            done.removed.append((str(path.relative_to(self.paths.directory)), why))

    def _remove_empty(self, epoch: int, done: Cleaned) -> None:
        directory, start = self.paths.epoch(epoch), self.paths.start(epoch)
        try:
            with telling("list", directory), suppress(FileNotFoundError):
                if set(os.listdir(directory)) - {start.name}:
                    return
                self.ports.disk.remove(start)
                directory.rmdir()
        except StorageError as error:
            done.failed.append(error)


def of_checkpoint(one: CheckpointId) -> str:
    """The subject of a lease on a checkpoint."""
    return f"checkpoint-e{one.epoch}-step-{one.step}"


def held_checkpoint(subject: str) -> CheckpointId:
    """The other way round; raises Refused for what is no such subject."""
    return CheckpointId.parse(subject.removeprefix("checkpoint-").replace("-step-", "/step-"))


def _changed_s(path: Path) -> float:
    """When something in a directory, or a file, changed last, by the filesystem's clock."""
    newest = path.lstat().st_mtime
    if is_real_directory(path):
        for folder, _, names in os.walk(path):
            for name in names:
                with suppress(FileNotFoundError):
                    # guard: a directory is as young as what is in it
                    newest = max(newest, (Path(folder) / name).lstat().st_mtime)
    return newest
