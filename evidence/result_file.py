"""Results on disk: JSON files below benchmarks/results, each replaced whole. Of the standard library alone.

Beside each that is kept in the repository stands its page, see `pages`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence import pages
from evidence.provenance import RESULTS


def load(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A result; nothing, if there is none yet."""
    return read(folder / f"{name}.json")


def read(path: Path) -> dict[str, Any]:
    """The result in a file; nothing, if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else {}


def write(document: Mapping[str, Any] | list[Any], path: Path) -> None:
    """Replace the file by one rename: a run that is cut off leaves the old result or the new one, whole."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    if path.is_relative_to(RESULTS) and isinstance(document, Mapping):
        pages.write_beside(path, json.loads(text), RESULTS)
