"""Finished runs in a folder: a simulation that was broken off goes on where it was.

A run's file has the digest of all that it comes of as its name: the code of the pool and of the simulator, the
simulation's file, its inputs, the contender, its knobs and the seed. So whatever changes is played again, and nothing
has to be told. What is not whole is played again too.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

import ebbtide
import ebbtide_autoscaler
import ebbtide_simulator
from ebbtide_simulator.played.one_run import Played
from ebbtide_simulator.policies.knobs import Knobs
from ebbtide_simulator.scenes.casting import File, Given

COUNTS = ("numpy", "numba")  # other releases of these may draw or add otherwise


class Kept:
    """The runs of one simulation that are in a folder."""

    def __init__(self, folder: Path, file: File, inputs: Given) -> None:
        self._folder = folder
        self._of = _code() + hashlib.sha256(repr((_plain(file), _plain(inputs))).encode()).digest()

    def find(self, name: str, seed: int, knobs: Knobs | None) -> Played | None:
        """A run that has ended before."""
        try:
            found: dict[str, Any] = json.loads(self._path(name, seed, knobs).read_text())
            course = {use: tuple(counts) for use, counts in found.pop("course").items()}
            return Played(course=course, others=tuple(found.pop("others")), **found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not there, or not what was written
            return None

    def keep(self, name: str, seed: int, knobs: Knobs | None, found: Played) -> None:
        """Raises OSError: it cannot be written."""
        path = self._path(name, seed, knobs)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(found)))
        os.replace(draft, path)

    def _path(self, name: str, seed: int, knobs: Knobs | None) -> Path:
        run = hashlib.sha256(self._of + repr((name, seed, knobs)).encode())
        return self._folder / f"{name}-{seed}-{run.hexdigest()[:16]}.json"


def _plain(value: Any) -> object:
    """What reads alike in every process: a set is in no order there, and a pickle of equal values may differ."""
    if isinstance(value, BaseModel):
        return value.model_dump_json(), value.model_dump_json(exclude_unset=True)  # what is set may differ, too
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if is_dataclass(value):
        return type(value).__name__, [(field.name, _plain(getattr(value, field.name))) for field in fields(value)]
    if isinstance(value, Mapping):
        return [(_plain(key), _plain(one)) for key, one in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(one)) for one in value)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


def _code() -> bytes:
    """Of everything that a run goes through: what is not of the simulator costs a run once too often."""
    digest = hashlib.sha256(" ".join(map(version, COUNTS)).encode())
    for package in (ebbtide, ebbtide_autoscaler, ebbtide_simulator):
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()
