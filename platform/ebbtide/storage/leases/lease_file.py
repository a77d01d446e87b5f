"""The files of leases: what they are called, what they say, and the steps in which they are made, kept and let go.

Pure: no clock, no thread, no I/O; the protocols are generators of operations of `shared_files`, and ``lease_holder``
runs them.

Two kinds of files lie in one directory:

- ``<name>~<token>``: shared. Any number of holders per name (readers of an object).
- ``<name>~<number>``: exclusive. The highest number holds the name; a claim creates the next one exclusively, so that
  exactly one of several succeeds, and there is no removal that could hit a successor's file.

Numbers are never used twice: the last ``KEPT_NUMBERS`` files of a name stay, because a claimant that saw a stale
listing (NFS caches them up to 60 s) must meet the existing file when it tries to create it.

Not guaranteed: anything about the moment between a check and the act after it. A process may be paused right there and
act late; what it does must be harmless then: published by a rename onto a name that must be free, or content-addressed.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.file_operations import (
    RECORD_BYTES,
    CreateFile,
    ListNames,
    MakeDirectory,
    Overwrite,
    ReadFile,
    RemoveFile,
    Steps,
)

KEPT_NUMBERS = 16  # a listing that is 60 s old misses less: each new number takes a whole turn of work
FENCE_FRACTION = 0.5  # of stale_after_s: half for the holder to notice, half for all clocks and servers to be wrong in
LONGEST_STALE_S = 3600.0  # what a file may ask of its observers; a day's wait for a damaged file would help nobody
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=,@%-]{0,180}")  # what ``names`` lets through, and its ``%2F``
_FILE = re.compile(rf"(?P<name>{_NAME.pattern})~(?:(?P<number>[0-9]{{9}})|(?P<token>[0-9a-f]{{32}}))")

Scalar = str | int | float | bool | None
Note = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a holder beats, and how long it may be silent.

    Attributes:
        beat_s: seconds between beats.
        stale_after_s: silence after which observers count it as dead. 60 s: servers fail over in 30 s or more, and
            whoever waits for a dead holder waits this long.
        answer_s: how long one look at the directory may take before it is given up for this time.
    """

    beat_s: float = 5.0
    stale_after_s: float = 60.0
    answer_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < 6 * self.beat_s <= self.stale_after_s <= LONGEST_STALE_S:
            raise ValueError(
                f"beats every {self.beat_s:g} s and death after {self.stale_after_s:g} s do not fit: 6 beats at least "
                f"must fit into the silence, so that 2 may be lost; it may last {LONGEST_STALE_S:g} s at most"
            )

    @property
    def fence_s(self) -> float:
        """The age of its last good beat at which a holder gives up."""
        return FENCE_FRACTION * self.stale_after_s


@dataclass(frozen=True, slots=True, order=True)
class LeaseFile:
    """A lease's file name. ``number`` is 0 for a shared one, ``token`` empty for an exclusive one."""

    name: str
    number: int = 0
    token: str = ""

    def __str__(self) -> str:
        return f"{self.name}~{self.token or f'{self.number:09d}'}"

    @classmethod
    def parse(cls, text: str) -> "LeaseFile | None":
        """None for what is none of ours."""
        found = _FILE.fullmatch(text)
        return None if found is None else cls(found["name"], int(found["number"] or 0), found["token"] or "")


def checked_name(name: str) -> str:
    """``name``, if it can be one.

    Raises:
        Refused: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name[:80]!a} cannot name a lease: letters, digits and _ . + = , @ % - only, at most 181 of them"
        )
    return name


@dataclass(frozen=True, slots=True)
class Record:
    """What a holder writes.

    Attributes:
        token: of this holding; unique.
        who: for people: host, process, purpose.
        stale_after_s: how much silence the holder asks observers to bear.
        beat: counts up.
        released: let go in good order; the name is free at once.
        note: what else others shall know: progress, an outcome.
    """

    token: str
    who: str
    stale_after_s: float
    beat: int = 0
    released: bool = False
    note: Note = field(default_factory=dict)

    def encode(self) -> bytes:
        """Always ``RECORD_BYTES``, so that no rest of a longer text stays; texts that are too long are cut."""
        known = replace(self, who=self.who[:100])
        while len(data := known._json()) >= RECORD_BYTES:
            longest = max(known.note, key=lambda key: len(str(known.note[key])))
            text = str(known.note[longest])
            assert text, "a note has few keys, and their texts can be cut"
            known = replace(known, note={**known.note, longest: text[: len(text) // 2]})
        return data.ljust(RECORD_BYTES - 1) + b"\n"

    def _json(self) -> bytes:
        return json.dumps(
            {
                "token": self.token,
                "who": self.who,
                "stale_after_s": self.stale_after_s,
                "beat": self.beat,
                "released": self.released,
                "note": dict(self.note),
            },
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Record | None":
        """None for what is no record: a claimant was killed before it wrote, or something is damaged."""
        try:
            found = json.loads(data)
            note = found["note"]
            if not all(isinstance(value, Scalar) for value in note.values()):
                return None
            return cls(
                str(found["token"]),
                str(found["who"]),
                min(max(float(found["stale_after_s"]), 0.0), LONGEST_STALE_S),
                int(found["beat"]),
                found["released"] is True,
                note,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


def current(files: Iterable[LeaseFile]) -> list[LeaseFile]:
    """Those that count: all shared ones, and of each exclusive name the highest number."""
    highest: dict[str, LeaseFile] = {}
    shared = []
    for file in files:
        if file.token:
            shared.append(file)
        elif file.number > (highest[file.name].number if file.name in highest else 0):
            highest[file.name] = file
    return sorted([*shared, *highest.values()])


def look(directory: Path, name: str | None = None, at_least: int = 0) -> Steps[dict[LeaseFile, bytes]]:
    """The contents of the files that count; of ``name`` only, if that is given.

    Args:
        at_least: a number of ``name`` that is known to exist. Where a cached listing lacks it, or its content cannot
            be had yet, it is there all the same, with nothing in it.
    """
    known = [LeaseFile(name, at_least)] if name is not None and at_least else []
    files = yield from _files(directory, name)
    contents: dict[LeaseFile, bytes] = {}
    for file in current([*files, *known]):
        content: bytes | None = yield ReadFile(directory / str(file))
        if content is not None or file in known:
            contents[file] = content or b""
    return contents


def create(directory: Path, file: LeaseFile, record: Record) -> Steps[str]:
    """Begin to hold. Why that failed, or "": it is held."""
    yield MakeDirectory(directory)
    made: bool = yield CreateFile(directory / str(file), record.encode())
    if not made:
        return f"{file} exists: somebody else was first"
    if not file.number:
        return ""
    numbers = [other.number for other in (yield from _files(directory, file.name)) if other.number]
    if max(numbers, default=0) > file.number:
        yield RemoveFile(directory / str(file))
        return f"{file.name} has come to number {max(numbers)} meanwhile"
    for number in numbers:
        if number <= file.number - KEPT_NUMBERS:
            yield RemoveFile(directory / str(LeaseFile(file.name, number)))
    return ""


def beat(directory: Path, file: LeaseFile, record: Record) -> Steps[str]:
    """Show that the holder lives. Why it holds no longer, or ""."""
    mine: bool = yield Overwrite(directory / str(file), record.encode(), record.token.encode())
    if not mine:
        return f"the file {directory / str(file)} is gone or somebody else's"
    if file.number:
        for other in (yield from _files(directory, file.name)):
            if other.number > file.number:
                return f"{other} in {directory} exists: somebody else took over"
    return ""


def release(directory: Path, file: LeaseFile, record: Record) -> Steps[None]:
    """Let go: a shared file goes; an exclusive one stays, and says so."""
    if file.number:
        yield Overwrite(directory / str(file), replace(record, released=True).encode(), record.token.encode())
    else:
        yield RemoveFile(directory / str(file))


def _files(directory: Path, name: str | None) -> Steps[list[LeaseFile]]:
    names: frozenset[str] = yield ListNames(directory)
    files = (LeaseFile.parse(text) for text in names)
    return [file for file in files if file is not None and name in (None, file.name)]
