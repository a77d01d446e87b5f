"""Where results go: said before an hour of simulation rather than after it, if they cannot."""

import os
import sys
from collections.abc import Sequence
from errno import EACCES
from pathlib import Path

from ebbtide.cli.terminal.errors import BadInput

STDOUT = "-"


def check_outputs(json_path: Path | None, page_path: Path | None, keep: Path | None, read: Sequence[Path]) -> None:
    """Nothing that is there changes.

    Args:
        json_path: figures; `STDOUT` is stdout.
        page_path: a page.
        keep: a folder, which is made.
        read: files that the simulation is of: none of them may be written over.

    Raises:
        BadInput: one of them cannot be written, or it would cost a file.
    """
    if json_path is not None and page_path is not None and _same(json_path, page_path):
        raise BadInput(f"--json and --report cannot both be written to {json_path}")
    if str(page_path) == STDOUT:
        raise BadInput("--report needs a file: a page is nothing to read on stdout")
    if str(json_path) == STDOUT and sys.stdout is None:
        raise BadInput("--json - has nowhere to go: stdout is closed")
    files = [
        (option, path)
        for option, path in (("--json", json_path), ("--report", page_path))
        if path is not None and str(path) != STDOUT
    ]
    for option, path in files:
        over = next((one for one in read if _same(path, one)), None)
        if over is not None:
            raise BadInput(f"{option} {path} would be written over {over}, which is read: name another file")
        if keep is not None and _same(path, keep):
            raise BadInput(f"{option} and --keep cannot both be {path}")
    if keep is not None:  # before files are tried: they may be in it, and one may be where it needs a folder
        _make(keep)
    for option, path in files:
        if path.is_dir():
            raise BadInput(f"{option} {path} cannot be written: it is a folder")
        if not path.parent.is_dir():
            raise BadInput(f"{path} cannot be written: there is no folder {path.parent}")
        _try_to_write(path)


def _make(keep: Path) -> None:
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--keep {keep} cannot be a folder: {error}") from error


def _same(one: Path, other: Path) -> bool:
    """Whether they are one file, however they are spelt or linked."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _try_to_write(path: Path) -> None:
    try:
        if path.exists():
            if not os.access(path, os.W_OK):
                raise PermissionError(EACCES, os.strerror(EACCES))  # not opened: of a pipe that would take what comes
        else:
            path.touch()
            path.unlink()
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error
