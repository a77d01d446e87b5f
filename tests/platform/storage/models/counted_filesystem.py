"""A filesystem for fsspec over local files that writes down what is read of it, and misbehaves if told to."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]

Misbehave = Callable[[str, int, bytes], bytes]  # file's name, offset, what was read: what is given instead


class CountedFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """``counted:///absolute/path``; not async, so one read at a time in each process."""

    protocol = "counted"
    cachable = False
    log: Path | None = None
    pause_s = 0.0
    stamps = True
    misbehave: Misbehave | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("counted://").strip("/")

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """See fsspec."""
        folder = self._strip_protocol(path)
        names = [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
        return [self.info(name) for name in names] if detail else names

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """See fsspec."""
        found = os.stat(self._strip_protocol(path))
        kind = "directory" if os.path.isdir(self._strip_protocol(path)) else "file"
        entry = {"name": self._strip_protocol(path), "size": found.st_size, "type": kind}
        return entry | ({"mtime": found.st_mtime_ns} if self.stamps else {})

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """See fsspec; appends what is read to the log."""
        first = start or 0
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(first)
            content = file.read() if end is None else file.read(end - first)
        name = os.path.basename(path)
        if self.log is not None:
            line = json.dumps({"pid": os.getpid(), "file": name, "start": first, "bytes": len(content)}) + "\n"
            with open(self.log, "ab", buffering=0) as log:
                log.write(line.encode())
        if self.pause_s:
            time.sleep(self.pause_s)
        return content if self.misbehave is None else type(self).misbehave(name, first, content)  # type: ignore[misc]


def register() -> None:
    """Make fsspec know it."""
    fsspec.register_implementation("counted", CountedFileSystem, clobber=True)


def reads(log: Path) -> list[dict[str, Any]]:
    """What was read, in order."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def tensor_bytes_read(log: Path, source: Path) -> dict[str, int]:
    """How many bytes of tensors were read of each shard; those of headers do not count."""
    headers = {
        path.name: 8 + int.from_bytes(path.open("rb").read(8), "little") for path in source.glob("*.safetensors")
    }
    found = dict.fromkeys(headers, 0)
    for one in reads(log):
        if one["file"] in headers and one["start"] >= headers[one["file"]]:
            found[one["file"]] += one["bytes"]
    return found
