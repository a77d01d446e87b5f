"""Which entries of the store's folders are the store's own; strangers among them are neither read nor removed."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ebbtide.storage.errors import Refused
from ebbtide.storage.files.durable_files import TEMPORARY_SUFFIX, is_real_directory, telling
from ebbtide.storage.names import attempt, name_of_directory, object_id, tag
from ebbtide.storage.objects.store_paths import StorePaths

_ASIDE = re.compile(r"([0-9a-f]{64}|work-.+)\.[0-9a-f]+")  # see `StorePaths.aside`
_TEMPORARY = re.compile(rf"\..+\.[0-9a-f]+{re.escape(TEMPORARY_SUFFIX)}")  # see `Disk.replace`


def object_directories(paths: StorePaths) -> list[Path]:
    """All that is called like an object, whatever its state, sorted; raises TransferFailed, like all here."""
    return [path for path in _entries(paths.objects) if _passes(object_id, path.name)]


def work_directories(paths: StorePaths) -> list[Path]:
    """The work directories; a file or a link is none."""
    return [path for path in _entries(paths.incoming) if _passes(attempt, path.name) and _is_directory(path)]


def set_aside(folder: Path) -> list[Path]:
    """What the store put into its trash or quarantine."""
    return [path for path in _entries(folder) if _ASIDE.fullmatch(path.name)]


def temporaries(paths: StorePaths) -> list[Path]:
    """Files that are left of a replacement that was cut off."""
    folders = [paths.root, paths.trash, *ref_directories(paths)]
    return [path for folder in folders for path in _entries(folder) if _TEMPORARY.fullmatch(path.name)]


def ref_directories(paths: StorePaths) -> list[Path]:
    """The directories of names, with or without tags in them."""
    return [path for path in _entries(paths.refs) if name_of_directory(path.name) is not None and _is_directory(path)]


def tag_files(directory: Path) -> list[Path]:
    """The files of a name's tags: plain files alone, so that opening one never waits."""
    found: list[Path] = []
    with telling("list", directory), suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        found = [Path(one) for one in entries if _passes(tag, one.name) and one.is_file(follow_symlinks=False)]
    return sorted(found)


def strangers(paths: StorePaths) -> Iterator[Path]:
    """What lies in the store's folders and is none of its own; leases and objects are not looked into."""
    known = {*object_directories(paths), *work_directories(paths), *temporaries(paths)}
    known |= {*set_aside(paths.trash), *set_aside(paths.quarantine), *ref_directories(paths)}
    names = ref_directories(paths)
    known |= {file for directory in names for file in tag_files(directory)}
    folders = [paths.objects, paths.refs, *names, paths.incoming, paths.trash, paths.quarantine]
    yield from (path for folder in folders for path in _entries(folder) if path not in known)


def _entries(folder: Path) -> list[Path]:
    # guard: what cannot be listed stops the round
    with telling("list", folder), suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder / name for name in os.listdir(folder))
    return []


def _is_directory(path: Path) -> bool:
    with telling("look at", path):
        return is_real_directory(path)


def _passes(check: object, name: str) -> bool:
    assert callable(check)
    try:
        check(name)
    except Refused:  # guard: strangers in the store are left alone
        return False
    return True
