"""Finished runs in a folder: a simulation that was broken off goes on where it was.

A run's file has the digest of all that it comes of as its name: the code of the pool and of the simulator, the
simulation's file, its inputs, the contender, its knobs and the seed. So whatever changes is played again, and nothing
has to be told. What is not whole is played again too.
"""

import hashlib
import json
import os
import pickle
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ebbtide
import ebbtide_autoscaler
from ebbtide_autoscaler.simulate.casting import File, Given
from ebbtide_autoscaler.simulate.knobs import Knobs
from ebbtide_autoscaler.simulate.report import Played

COUNTS = ("numpy", "numba")  # other releases of these may draw or add otherwise


class Kept:
    """The runs of one simulation that are in a folder."""

    def __init__(self, folder: Path, file: File, inputs: Given) -> None:
        self._folder = folder
        self._of = _code() + hashlib.sha256(file.model_dump_json().encode() + pickle.dumps(inputs)).digest()

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


def _code() -> bytes:
    """Of everything that a run goes through: what is not of the simulator costs a run once too often."""
    digest = hashlib.sha256(" ".join(map(version, COUNTS)).encode())
    for package in (ebbtide, ebbtide_autoscaler):
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()
