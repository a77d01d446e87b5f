"""A result of several parts in one file, each measured when it was measured.

A part replaces its own rows and bars and nothing else, by one rename, as soon as it has ended: a run that is cut off
keeps what it has, and one part can be measured again by itself. So each part has its own date, commit, machine and
sizes. A bar that nobody has measured stands there as null, with the reason. A bar of several parts is met if each of
them meets it, and has the least of their values: larger must be better.

Not guaranteed: two runs at the same time; the one that ends a part last may undo a part of the other.
"""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rows import Bar, Row, result
from evidence.provenance import RESULTS, as_measured, commit
from evidence.result_file import write

Goals = Mapping[str, Mapping[str, str]]
"""By part: each of its bars, with its goal in words."""


@dataclass(frozen=True, slots=True)
class Book:
    """Which result it is: its name, the command of the whole, and the module that measures a single part."""

    name: str
    command: str
    module: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A row that has no figures, or fewer than it should have, and why."""

    case: str
    metric: str
    why: str


@dataclass(slots=True)
class Measured:
    """What one part brought.

    Attributes:
        sizes: how much was moved and how often.
        versions: of programs and packages that no other part uses, by name.
    """

    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def unmeasured(goals: Mapping[str, str], why: str) -> list[dict[str, Any]]:
    """The bars of a part that has no figures."""
    return [{"bar": bar, "goal": goal, "value": None, "met": False, "why": why} for bar, goal in goals.items()]


def with_part(
    book: Book,
    old: Mapping[str, Any] | None,
    part: str,
    measured: Measured | str,
    facts: Mapping[str, Any],
    goals: Goals,
) -> dict[str, Any]:
    """The result with one part new. Pure but for the facts of today that ``result`` adds.

    Args:
        book: of which result.
        old: what stood there; None if nothing did. Parts that are not named in ``goals`` are dropped.
        measured: the part, or why it failed.
        facts: of the run: date, commit, machine.
        goals: of all parts, in the order of the file.
    """
    before = old if old is not None and isinstance(old.get("parts"), dict) else {"parts": {}, "rows": [], "bars": []}
    old_bars = before.get("bars_by_part", before["bars"])
    new = result(book.name, book.command, [], [])
    parts: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    for name, its_goals in goals.items():
        if name != part:
            if name in before["parts"]:
                parts[name] = before["parts"][name]
            rows += [row for row in before["rows"] if row["part"] == name]
            kept = [bar for bar in old_bars if bar["part"] == name and bar["bar"] in its_goals]
            known = {bar["bar"] for bar in kept}
            missing = {bar: goal for bar, goal in its_goals.items() if bar not in known}
            bars += kept + [{"part": name} | bar for bar in unmeasured(missing, "this part was not run yet")]
        elif isinstance(measured, str):
            parts[name] = {**facts, "failed": measured}
            bars += [{"part": name} | bar for bar in unmeasured(its_goals, f"this part failed: {measured}")]
        else:
            with_its_own = {**facts.get("versions", {}), **measured.versions}
            parts[name] = {**facts, **({"versions": with_its_own} if with_its_own else {}), "sizes": measured.sizes}
            rows += [{"part": name} | row for row in _rows(measured)]
            bars += [{"part": name} | bar for bar in _bars(measured.bars, its_goals)]
    by_part = {"bars_by_part": bars} if len({bar["bar"] for bar in bars}) < len(bars) else {}
    return new | {"parts": parts, "rows": rows, "bars": least(bars), **by_part}


def least(bars: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each bar once: of one that several parts have, the least value, and null as long as one part has none."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for bar in bars:
        found.setdefault(bar["bar"], []).append(bar)
    return [dict(same[0]) if len(same) == 1 else _least(same) for same in found.values()]


def _least(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = {bar["part"]: bar["value"] for bar in same}
    known = [value for value in values.values() if value is not None]
    whys = [f"{bar['part']}: {bar['why']}" for bar in same if "why" in bar]
    return {
        "part": ", ".join(values),
        "bar": same[0]["bar"],
        "goal": same[0]["goal"],
        "value": min(known) if len(known) == len(values) else None,
        "met": all(bar["met"] for bar in same),
        "values": values,
        **({"why": "; ".join(whys)} if whys else {}),
    }


def save(book: Book, document: Mapping[str, Any], folder: Path, *, quick: bool) -> Path:
    """Replace the file, by one rename.

    Raises:
        ValueError: figures of a quick run would stand among the results.
    """
    if quick and folder.resolve() == RESULTS.resolve():
        raise ValueError("what was measured with --quick is no result")
    path = folder / f"{book.name}.json"
    write(document, path)
    return path


def load(book: Book, folder: Path) -> dict[str, Any] | None:
    """What stands there; None if nothing does.

    Raises:
        ValueError: it is no JSON object. Nothing is thrown away in silence.
    """
    path = folder / f"{book.name}.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no result: move it away")
    return found


@dataclass(frozen=True, slots=True)
class Began:
    """What must be noted before a part begins.

    Attributes:
        at_s: when, in seconds since the epoch.
        load_average: of the last minute: what else this machine was doing.
        commit: of the sources that this process has loaded.
    """

    at_s: float
    load_average: float
    commit: str

    @classmethod
    def now(cls, commit: str) -> "Began":
        """A part begins."""
        return cls(time.time(), os.getloadavg()[0], commit)


def facts(book: Book, part: str, directory: Path, began: Began, *, quick: bool) -> dict[str, Any]:
    """When, with what and on which machine a part was measured; ``directory`` is on the filesystem that was."""
    today = result(book.name, book.command, [], [])
    mountinfo = Path("/proc/self/mountinfo").read_text()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(began.at_s)),
        "seconds": round(time.time() - began.at_s),
        "commit": as_measured(began.commit, commit()),
        "command": f"python -m {book.module} --only {part}{' --quick' if quick else ''}",
        "quick": quick,
        "hardware": today["hardware"],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "filesystem": filesystem(directory, mountinfo),
        "disk": disk(directory, mountinfo),
        "load_average_before": round(began.load_average, 2),
        "versions": today["versions"],
    }


def filesystem(directory: Path, mountinfo: str) -> str:
    """The type of the filesystem that a directory is on, by proc(5), ``/proc/self/mountinfo``."""
    _, kind, _ = _mount(directory, mountinfo)
    return kind


def disk(directory: Path, mountinfo: str, devices: Path = Path("/sys/dev/block")) -> str:
    """The block device of a directory and the options of its filesystem; neither of a network's, which name hosts."""
    number, kind, options = _mount(directory, mountinfo)
    device = (devices / number).resolve()
    try:
        size_bytes = int((device / "size").read_text()) * 512  # always in sectors of 512 bytes, sysfs-block
    except (OSError, ValueError):
        return f"{kind} on no block device"
    whole = device if (device / "device").exists() else device.parent  # a partition has no driver of its own
    driver = (whole / "device" / "driver").resolve().name if (whole / "device" / "driver").exists() else "no driver"
    return f"{kind} on {device.name} ({driver}, {size_bytes / 1e9:.0f} GB), {options}"


def _mount(directory: Path, mountinfo: str) -> tuple[str, str, str]:
    """Of the mount that holds a directory: number of its device, type, and options of the filesystem."""
    best, found = -1, ("", "unknown", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        place = Path(before.split()[4].replace("\\040", " "))
        if directory.resolve().is_relative_to(place) and len(place.parts) >= best:
            kind, _, options = [*after.split(maxsplit=2), "", ""][:3]
            best, found = len(place.parts), (before.split()[2], kind, options)
    return found


def _rows(measured: Measured) -> list[dict[str, Any]]:
    """A gap of a row that has some figures says so there."""
    gaps = {(gap.case, gap.metric): gap.why for gap in measured.gaps}
    rows = [asdict(row) for row in measured.rows]
    for row in rows:
        if (row["case"], row["metric"]) in gaps:
            row["failed"] = gaps.pop((row["case"], row["metric"]))
    empty: dict[str, Any] = {"unit": "", "median": None, "min": None, "max": None, "n": 0}
    return rows + [{"case": case, "metric": metric, **empty, "failed": why} for (case, metric), why in gaps.items()]


def _bars(bars: Sequence[Bar], goals: Mapping[str, str]) -> list[dict[str, Any]]:
    found = []
    for bar in bars:
        if bar.value is None and bar.bar in goals:  # its goal says why
            found += unmeasured({bar.bar: goals[bar.bar]}, bar.goal)
        else:
            found.append(asdict(bar))
    known = {bar.bar for bar in bars}
    missing = {bar: goal for bar, goal in goals.items() if bar not in known}
    return found + unmeasured(missing, "the part brought no figures for it")
