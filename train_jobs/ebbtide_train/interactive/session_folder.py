"""A session's folder on the shared directory: ``<shared_dir>/train/<name>/session``, readable for its owner only.

::

    record.json    what became of it so far (``session_record``); replaced by rename, on the disk before it counts
    spec.json      the command with its environment, for the leader
    keeper.json    its supervisor, the process that keeps it now
    leader.json    the first process of its tree
    exit.json      how its command ended
    standing.json  for `ebbtide sessions`
    output.log     what its processes print
    keeper.log     what its supervisor and watchdog print
    touch          its owner touches this file to keep it, or to have it back
    images/<n>/    complete if it has COMMIT; the highest one is the newest

The paths are part of an image: a session can be revived only where its folder has the same path.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "session"
COMMIT = "COMMIT"


class SessionFolder:
    """The files of one session."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir.resolve() / FOLDER  # a helper follows no links that others might turn
        self.output = self.folder / "output.log"
        self.keeper_log = self.folder / "keeper.log"
        self.touch = self.folder / "touch"

    def make(self) -> None:
        """Make what is missing.

        Raises:
            OSError: the shared directory refuses.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.folder / "images").mkdir(exist_ok=True, mode=0o700)
        self.folder.chmod(0o700)  # an image holds all that its processes had in memory
        if not self.touch.exists():
            self.touch.touch(mode=0o600)

    def image(self, number: int) -> Path:
        """The folder of image ``number``, from 1; it need not be there."""
        return self.folder / "images" / f"{number:04d}"

    def is_complete(self, number: int) -> bool:
        """Whether that image can be revived."""
        return number > 0 and (self.image(number) / COMMIT).exists()

    def image_bytes(self, number: int) -> int:
        """What the image takes on the shared directory; 0 if it is not there."""
        try:
            return sum(path.stat().st_size for path in self.image(number).rglob("*") if path.is_file())
        except OSError:
            return 0

    def numbers(self) -> list[int]:
        """All images that are there, whole or not, oldest first."""
        try:
            return sorted(int(entry.name) for entry in os.scandir(self.folder / "images") if entry.name.isdigit())
        except FileNotFoundError:
            return []

    def touched_s(self) -> float:
        """When its owner touched it last, seconds since 1970; 0.0 if nobody can say."""
        try:
            return self.touch.stat().st_mtime
        except OSError:
            return 0.0

    def read(self, name: str) -> dict[str, Any] | None:
        """``<name>.json``; None if it is not there.

        Raises:
            ValueError: it is damaged.
            OSError: the shared directory does not answer.
        """
        path = self.folder / f"{name}.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); remove the folder to begin the session anew") from error
        if not isinstance(found, dict):
            raise ValueError(f"{path} is damaged; remove the folder to begin the session anew")
        return found

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Replace ``<name>.json``; when this returns it is on the disk, if ``durable``.

        Raises:
            OSError: it could not be written; the old one stays.
        """
        path = self.folder / f"{name}.json"
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, path)
        if durable:
            _sync_folder(self.folder)

    def remove(self, name: str) -> None:
        """Remove ``<name>.json``; nothing happens if it is not there."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def discard(self, number: int) -> None:
        """Remove an image: its COMMIT first, so that what is left of it can never be revived.

        Raises:
            OSError: it cannot be removed.
        """
        (self.image(number) / COMMIT).unlink(missing_ok=True)
        if self.image(number).exists():
            shutil.rmtree(self.image(number))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
