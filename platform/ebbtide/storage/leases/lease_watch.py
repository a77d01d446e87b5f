"""Watching the leases of others: who lives, who is dead, and the burial of the dead.

``lease_holder`` is the other side. Whoever acts on a death buries the file first, so that a holder that was only slow
learns at its next beat that it lost.

Not guaranteed: that a lease made after the last look is seen; see `living`.
"""

from collections.abc import Sequence
from pathlib import Path

from ebbtide.storage.files.file_operations import RemoveFile, carry_out
from ebbtide.storage.files.shared_files import Bounded
from ebbtide.storage.leases import lease_file
from ebbtide.storage.leases.lease_file import LeaseFile, Pace
from ebbtide.storage.leases.lease_holder import DEFAULT_PACE, REAL, System
from ebbtide.storage.leases.liveness import Sighting


class LeaseObserver:
    """Judges holders by watching their files. For one thread; look again and again, at the pace of their beats.

    Args:
        directory: where the leases are.
        name: look at the files of this name only.
        pace: ``stale_after_s`` is the least silence that kills; a file may ask for more.
    """

    def __init__(
        self, directory: Path, *, name: str | None = None, pace: Pace = DEFAULT_PACE, system: System = REAL
    ) -> None:
        self._directory, self._name, self._pace, self._system = directory, name, pace, system
        self._bounded = Bounded()
        self._sightings: dict[LeaseFile, Sighting] = {}

    def look(self, at_least: int = 0) -> Sequence[Sighting]:
        """The files that count now: shared ones, and the highest number of each exclusive name.

        Args:
            at_least: a number of ``name`` known to exist, in case a cached listing lacks it.

        Raises:
            StorageError: nothing was seen: the directory is not there, fails, or hangs (``pace.answer_s``).
        """
        clock_s, least_s = self._system.observer_clock_s, self._pace.stale_after_s
        began_s = clock_s()
        contents = self._bounded(
            "list",
            self._directory,
            self._pace.answer_s,
            lambda: carry_out(lease_file.look(self._directory, self._name, at_least), self._system.perform),
        )
        ended_s = clock_s()
        self._sightings = {
            file: before.again(content, began_s, ended_s, least_s)
            if (before := self._sightings.get(file))
            else Sighting(file, content, ended_s)
            for file, content in contents.items()
        }
        return tuple(self._sightings.values())

    def is_dead(self, sighting: Sighting) -> bool:
        """Whether its holder counts as dead."""
        return sighting.is_dead(self._pace.stale_after_s)

    def bury(self, sighting: Sighting) -> None:
        """Remove the file of a dead *shared* holder; if it was only slow, it learns that it lost.

        Raises:
            StorageError: that is not known to be done.
        """
        assert sighting.file.token and self.is_dead(sighting)
        grave = RemoveFile(self._directory / str(sighting.file))
        self._bounded("remove", grave.path, self._pace.answer_s, lambda: self._system.perform(grave))


def living(directory: Path, *, pace: Pace = DEFAULT_PACE, system: System = REAL) -> frozenset[str]:
    """The names that somebody holds. Buries the dead, for which it watches them as long as they may be silent.

    A lease that was made after the last look, or that a cached listing hides (up to 60 s on NFS), is not among them:
    who removes something must first make it unreachable, and ask afterwards. One that was made after the first look
    counts as living at once, so that this ends however many come and go.

    Raises:
        StorageError: the directory is not there, or cannot be read; nobody may be taken for dead then.
    """
    observer = LeaseObserver(directory, pace=pace, system=system)
    suspects: frozenset[LeaseFile] | None = None
    while True:
        sightings = [one for one in observer.look() if not (one.record and one.record.released)]
        if suspects is None:
            suspects = frozenset(sighting.file for sighting in sightings)
        dead = [sighting for sighting in sightings if observer.is_dead(sighting)]
        if all(sighting.changed or sighting in dead or sighting.file not in suspects for sighting in sightings):
            for one in dead:
                if one.file.token:
                    observer.bury(one)
            return frozenset(sighting.file.name for sighting in sightings if sighting not in dead)
        system.sleep(pace.beat_s)
