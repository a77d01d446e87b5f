"""A fact: what is so, where it was read, which means of leaving a slot it takes away, and what would mend that."""

from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.snapshot.tiers import Hindrance, Means, Obstacle

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Fact:
    """One subject of one node or one of its processes.

    Attributes:
        id: ``<subject>.<part>``, stable: programs look for it.
        what: what is so, with values, as a clause.
        where: what was read: a path, a variable, a command.
        value: the same for programs; bytes for sizes.
        hinders: what it takes away; empty: nothing.
        remedy: what would mend it, never empty where something is hindered; without, a thing to keep in mind.
    """

    id: str
    what: str
    where: str
    value: Value = None
    hinders: frozenset[Means] = frozenset()
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.what and self.where, f"{self.id} must say what is so, and where that was read"
        assert self.remedy or not self.hinders, f"{self.id} is in the way and must say what would mend it"

    def as_json(self) -> dict[str, object]:
        """All parts, under names that a program can rely on."""
        return {
            "id": self.id,
            "what": self.what,
            "where": self.where,
            "value": self.value,
            "hinders": sorted(means.value for means in self.hinders),
            "remedy": self.remedy,
        }


def hindering(*means: Means) -> frozenset[Means]:
    """A name for the set, so that facts read as sentences."""
    return frozenset(means)


def obstacles(facts: Iterable[Fact]) -> tuple[Obstacle, ...]:
    """What of these is in the way of something, as the cost model takes it."""
    return tuple(Obstacle(fact.hinders, Hindrance(fact.what, fact.remedy)) for fact in facts if fact.hinders)
