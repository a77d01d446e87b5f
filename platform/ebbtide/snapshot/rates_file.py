"""The rates that were measured on a node, kept in the pool's runtime directory there: ``rates.json``.

What is in it was written by `write_rates` or by a person, so it is read with suspicion: one that is damaged, of
another version or holds a number that cannot be is refused as a whole, and the defaults are reckoned with.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ebbtide.snapshot.errors import SnapshotError
from ebbtide.snapshot.tiers import Lane, Rate, Rates

FILE_NAME = "rates.json"
VERSION = 1
_MOST_BYTES = 1 << 16  # ten lines of text; whatever is larger is none of ours
_LEAST, _MOST = 1e4, 1e13  # bytes per second: a telephone line, and more than any machine's memory


class RatesUnusable(SnapshotError):
    """The file of rates cannot be believed; the message says why and what to do."""


def read_rates(folder: Path) -> Rates:
    """What was measured on this node; nothing if there is no file.

    Raises:
        RatesUnusable: there is one, and it is unreadable, damaged or not believable.
    """
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return Rates()
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    if len(raw) > _MOST_BYTES:
        raise _unusable(path, "it is too large")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _unusable(path, f"it is no JSON ({error})") from error
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("rates"), dict):
        raise _unusable(path, f"it is not of version {VERSION}")
    return Rates({_lane(path, name): _rate(path, name, entry) for name, entry in found["rates"].items()})


def write_rates(folder: Path, measured: Mapping[Lane, Rate]) -> Path:
    """Put these beside what is there, atomically; a file that is unusable is replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    try:
        known = dict(read_rates(folder).measured)
    except RatesUnusable:
        known = {}
    known |= measured
    rates = {lane.value: {"bytes_per_s": rate.bytes_per_s, "origin": rate.origin} for lane, rate in known.items()}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, draft = folder / FILE_NAME, folder / f".{FILE_NAME}.{os.getpid()}"
    try:
        with open(draft, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump({"version": VERSION, "rates": rates}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _lane(path: Path, name: str) -> Lane:
    try:
        return Lane(name)
    except ValueError as error:
        raise _unusable(path, f"nothing moves by {name!r}") from error


def _rate(path: Path, name: str, entry: object) -> Rate:
    value = entry.get("bytes_per_s") if isinstance(entry, dict) else None
    origin = entry.get("origin") if isinstance(entry, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not _LEAST <= value <= _MOST:  # nan fails too
        raise _unusable(path, f"{name} moves {value!r} bytes per second")
    if not isinstance(origin, str) or not origin:
        raise _unusable(path, f"{name} does not say where its number comes from")
    return Rate(float(value), origin[:200], measured=True)


def _unusable(path: Path, why: str) -> RatesUnusable:
    return RatesUnusable(f"{path}: {why}; remove it, or measure again with `ebbtide probe --rehearse`")
