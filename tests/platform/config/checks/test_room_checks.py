"""Rooms add checks of a pool file; one that is broken is told of and keeps no other from working."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from ebbtide.config.checks import room_checks
from ebbtide.config.checks.room_checks import Look, check_rooms, room_problems
from ebbtide.config.errors import ConfigErrors
from ebbtide.config.finding import Finding
from ebbtide.config.loading.pool_file_loader import load_file
from ebbtide.config.pool_file import PoolFile


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=room_checks.GROUP)


def seats(config: PoolFile, look: Look) -> Iterator[Finding]:
    """A room's check."""
    if not look.offline:
        yield Finding(("endpoints", 0, "engine", "max_model_len"), "too long", "shorter", at_key=True)


@pytest.fixture(autouse=True)
def a_room(monkeypatch: pytest.MonkeyPatch) -> None:
    room = ModuleType("a_room_that_checks")
    room.seats = seats  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, room.__name__, room)


def test_what_a_room_finds_has_its_line(world: Path) -> None:
    found = room_problems(load_file(world), Look(note=pytest.fail), [entry("a", "a_room_that_checks:seats")])
    assert [str(one) for one in found] == [f"{world}:10:7: endpoints[0].engine.max_model_len: too long (shorter)"]
    offline = Look(offline=True, note=pytest.fail)
    assert room_problems(load_file(world), offline, [entry("a", "a_room_that_checks:seats")]) == []


@pytest.mark.parametrize("value", ["no_such_room:x", "a_room_that_checks:missing", "os.path:nothing_here"])
def test_a_broken_room_is_told_of_and_the_others_go_on(world: Path, value: str) -> None:
    notes: list[str] = []
    rooms = [entry("a", value), entry("b", "a_room_that_checks:seats")]
    assert len(room_problems(load_file(world), Look(note=notes.append), rooms)) == 1
    assert len(notes) == 1 and notes[0].startswith(f"what 'a' ({value}) knows is not checked: ")


def test_the_rooms_are_those_that_are_installed(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_checks, "entry_points", lambda group: [entry("a", "a_room_that_checks:seats")])
    with pytest.raises(ConfigErrors, match="too long"):
        check_rooms(load_file(world), Look(note=pytest.fail))
    monkeypatch.setattr(room_checks, "entry_points", lambda group: [])
    check_rooms(load_file(world), Look(note=pytest.fail))
