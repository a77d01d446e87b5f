"""Making restored caches at home where they are: each replica has a directory of its own.

Triton keeps with each kernel a table of its files by absolute paths (``FileCacheManager.put_group``); they lie beside
it. Of the replica that published them nothing may be left, and if there is, it is no other replica's to read.
"""

import json
from contextlib import suppress
from pathlib import Path

TABLES = "__grp__*"
_CHILDREN = "child_paths"


def relocate(directory: Path, final: Path) -> None:
    """Let the tables in ``directory`` name the files beside them, as they will be called below ``final``.

    A table that makes no sense, or of which a file is missing, is removed: then the kernel is compiled anew.

    Raises:
        OSError: one cannot be written.
    """
    for path in directory.rglob(TABLES):
        there = final / path.parent.relative_to(directory)
        children: dict[str, str] = {}
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            names = {name: Path(place).name for name, place in json.loads(path.read_bytes())[_CHILDREN].items()}
            if all((path.parent / name).is_file() for name in names.values()):
                children = {name: str(there / child) for name, child in names.items()}
        if children:
            path.write_text(json.dumps({_CHILDREN: children}))
        else:
            path.unlink()
