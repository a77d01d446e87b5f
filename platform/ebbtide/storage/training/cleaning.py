"""Removing what a run does not need: old checkpoints, what crashes left, and epochs in which nothing is.

A checkpoint that goes is first renamed to a name that no reader looks at, then removed: it is there whole, or not at
all. Each round may be cut off anywhere; the next one goes on.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.storage.durable import is_real_directory, telling
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, StorageError
from ebbtide.storage.training.lineage import EpochFound, lineage, overtaken_by
from ebbtide.storage.training.opening import open_directory
from ebbtide.storage.training.places import CheckpointId, RunPaths
from ebbtide.storage.training.ports import Keeping, TrainingPorts
from ebbtide.storage.training.retention import judge
from ebbtide.storage.training.survey import look, temporaries

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
    """

    paths: RunPaths
    ports: TrainingPorts
    keeping: Keeping
    epoch: int

    def clean(self, now_s: float, *, but: Path | None = None, urgent: bool = False) -> Cleaned:
        """One round.

        Args:
            now_s: by the filesystem's clock.
            but: a work directory in use.
            urgent: room is missing: what older gangs left half written goes whatever its age, and leases of readers
                are looked at until it is known who lives (up to a minute).

        Raises:
            StorageError: the run cannot be looked at; nothing was removed.
        """
        done, found = Cleaned(), look(self.paths)
        if overtaken_by(found, self.epoch) is not None:
            return done
        for one in judge(
            found,
            self.keeping.retention,
            epoch=self.epoch,
            sound=self._newest_sound(found),
            held=self._held(urgent=urgent),
        ):
            if not one.stays:
                self._remove_checkpoint(one.id, one.why, done)
        for number, path in list(temporaries(self.paths)):
            if path == but or number > self.epoch:
                continue
            with suppress(FileNotFoundError):
                age_s = now_s - _changed_s(path)
                if age_s > self.keeping.grace_s or (urgent and number < self.epoch):
                    self._remove(path, f"half written, and unchanged for {age_s:.0f} s", done)
        for found_epoch in found:
            if found_epoch.epoch < self.epoch:
                self._remove_empty(found_epoch.epoch, done)
        for name, why in done.removed:
            _logger.info("run %s: removed %s: %s", self.paths.run, name, why)
        for error in done.failed:
            _logger.warning("run %s: %s", self.paths.run, error)
        return done

    def _newest_sound(self, found: list[EpochFound]) -> CheckpointId | None:
        for one in lineage(found):
            with suppress(NotPublished, Corrupt, Refused):
                open_directory(self.paths, one)
                return one
        return None

    def _held(self, *, urgent: bool) -> Iterator[CheckpointId]:
        if self.ports.leases is None:
            return
        for subject in self.ports.leases.living() if urgent else self.ports.leases.present():
            with suppress(Refused):
                yield held_checkpoint(subject)

    def _remove_checkpoint(self, one: CheckpointId, why: str, done: Cleaned) -> None:
        aside = self.paths.removed(one)
        try:
            moved = self.ports.disk.move(self.paths.checkpoint(one), aside)
        except StorageError as error:
            done.failed.append(error)
            return
        if moved:
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
                    newest = max(newest, (Path(folder) / name).lstat().st_mtime)
    return newest
