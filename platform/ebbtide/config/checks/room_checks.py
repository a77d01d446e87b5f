"""What the rooms above know of a pool file, such as the arguments that an engine takes.

They add their checks by entry points ``ebbtide.config_checks``; each names a function as :class:`ConfigCheck`. It is
imported when a file is checked, and without one that is broken the others go on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from ebbtide.config.checks.hub_models import with_hub_models
from ebbtide.config.errors import ConfigErrors, ConfigProblem
from ebbtide.config.finding import Finding
from ebbtide.config.loading.pool_file_loader import LoadedFile
from ebbtide.config.pool_file import PoolFile

GROUP = "ebbtide.config_checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far a check may look.

    Attributes:
        offline: at the file alone: the answer must be the same on every machine.
        starting: a pool is to be started from the file on this machine, or to join a cluster.
        note: takes one line that is no problem but must be told.
    """

    offline: bool = False
    starting: bool = False
    note: Callable[[str], None]


class ConfigCheck(Protocol):
    """One room's check; changes nothing."""

    def __call__(self, config: PoolFile, look: Look) -> Iterable[Finding]:
        """What is wrong with a file that is valid by itself."""


def check_rooms(loaded: LoadedFile, look: Look) -> None:
    """Let all rooms look at a file.

    Raises:
        ConfigErrors: a room found something; holds every problem, with its line.
    """
    problems = room_problems(loaded, look)
    if problems:
        raise ConfigErrors(problems)


def room_problems(loaded: LoadedFile, look: Look, entries: Iterable[EntryPoint] | None = None) -> list[ConfigProblem]:
    """Like :func:`check_rooms`, and returns the problems. ``entries``: default all that are installed."""
    found: list[Finding] = []
    config = loaded.config if look.offline else with_hub_models(loaded).config
    for entry in sorted(entry_points(group=GROUP) if entries is None else entries, key=lambda one: one.name):
        try:
            check = cast(ConfigCheck, entry.load())
        # Another room's module may raise anything while it is imported: what it would have looked at is not checked
        # then, and the user is told.
        except Exception as error:  # noqa: BLE001
            why = (str(error).splitlines() or [""])[0]
            look.note(f"what {entry.name!r} ({entry.value}) knows is not checked: {type(error).__name__}: {why}")
            continue
        found += check(config, look)
    return [loaded.problem(one) for one in found]
