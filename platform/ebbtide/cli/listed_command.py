"""A command as the list of all commands has it: known without importing the module that carries it out.

Rooms list theirs in a registry of their own, which an entry point ``ebbtide.commands`` names. A registry imports
nothing but this module, so that help and completion cost the same however much a room stands on.
"""

from dataclasses import dataclass
from enum import StrEnum


class Section(StrEnum):
    """Where the help shows a command; in this order, and without those that have none."""

    POOL = "Pool"
    JOBS = "Jobs"
    SERVING = "Serving"
    SESSIONS = "Sessions"
    LOOK = "Look"
    KEYS = "Keys"
    MODELS = "Models"


FIRST = (
    *("init", "demo", "up", "down", "plan", "validate"),
    *("submit", "park", "resume", "cancel"),
    *("run", "status", "why", "logs", "events"),
)
"""Shown first in their sections: what a person needs, in the order in which it is needed. Others follow by name."""


@dataclass(frozen=True, slots=True)
class ListedCommand:
    """``place``: ``module:attribute`` of the click command. ``help``: the first sentence of its docstring."""

    name: str
    place: str
    section: Section
    help: str

    @property
    def position(self) -> tuple[int, int, str]:
        """Where the help shows it: commands are sorted by this."""
        within = FIRST.index(self.name) if self.name in FIRST else len(FIRST)
        return list(Section).index(self.section), within, self.name
