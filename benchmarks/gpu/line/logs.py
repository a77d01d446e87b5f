"""Logs of a run: their ends for a phase that failed, lines that name the mode taken, and all of them in one archive."""

import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

SUFFIXES = (".log", ".out", ".err", ".txt", ".json", ".jsonl", ".yaml")
TELLING = ("worker", "replica", "arbiter", "serve", "helper", "driver", "train", "rank", "gateway", "agent", "session")
LOGS_SHOWN, LINES_SHOWN, SHOWN_BYTES = 6, 25, 2500
FILE_BYTES, ARCHIVE_BYTES = 6 << 20, 60 << 20  # of what goes into the archive: some 6 MB, packed
TROUBLE = re.compile(r"Traceback|Error|error:|FAILED")
MODE = re.compile(r"ebbtide mode: ([\w -]+) = (.+)")


def files(folders: Iterable[Path], suffixes: Sequence[str] = SUFFIXES) -> Iterator[Path]:
    """All logs below, but no content of the store and no links."""
    seen: set[Path] = set()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix not in suffixes or "/store/objects/" in str(path) or path in seen:
                continue
            seen.add(path)
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and path.stat().st_size:
                    yield path


def tails(folders: Iterable[Path]) -> dict[str, str]:
    """The ends of the logs that a failure may be told by: those that end in trouble, then those written last."""
    found: list[tuple[bool, float, Path]] = []
    for path in files(folders, (".log", ".out", ".err")):
        if any(word in path.name.lower() for word in TELLING):
            with suppress(OSError):
                found.append((TROUBLE.search(_end(path)) is not None, path.stat().st_mtime, path))
    return {str(path): _end(path) for _, _, path in sorted(found)[-LOGS_SHOWN:]}


def _end(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
    except OSError as error:
        return repr(error)
    return "\n".join(lines)[-SHOWN_BYTES:]


def modes(folders: Iterable[Path]) -> dict[str, list[str]]:
    """What the processes said of the modes that they took, by place, each once, in the order of the logs."""
    found: dict[str, list[str]] = {}
    for path in files(folders, (".log", ".out", ".err")):
        with suppress(OSError):
            for place, mode in MODE.findall(path.read_text(errors="replace")):
                known = found.setdefault(place.strip(), [])
                if mode.strip() not in known:
                    known.append(mode.strip())
    return found


def archive(folders: Iterable[Path], path: Path) -> int:
    """Pack all logs, as far as they fit; gives how many."""
    count, total = 0, 0
    with tarfile.open(path, "w:gz", compresslevel=3) as packed:
        for one in files(folders):
            with suppress(OSError, tarfile.TarError):
                size = one.stat().st_size
                if size <= FILE_BYTES and total + size <= ARCHIVE_BYTES:
                    packed.add(one, arcname=str(one).lstrip("/"), recursive=False)
                    count, total = count + 1, total + size
    return count
