"""Reading log files on the node where they lie, in bounded pieces: a small Ray actor per node, alive while `logs` is.

Ray writes what a process prints into its session's log folder on that node, and the dashboard's API could serve it;
but a joined cluster may have no dashboard, and an actor needs nothing. It reads below that folder only, and only
files that :func:`matching` gives.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIECE_BYTES = 256 << 10  # at once, through Ray: a few thousand lines
FILES_MAX = 40  # per selector, the newest ones


@dataclass(frozen=True, slots=True)
class Selector:
    """Which files belong to something: those of a process (what a Ray worker prints), or those of a name."""

    label: str  # for people
    pid: int | None = None
    pattern: str = ""  # a regular expression over the path below the log folder


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file on one node."""

    label: str
    path: str  # below the log folder
    size: int
    changed_s: float


def matching(folder: Path, selectors: Iterable[Selector]) -> list[LogFile]:
    """The files in ``folder`` that the selectors name, oldest first; empty ones are left out."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    found: dict[str, LogFile] = {}
    for selector in selectors:
        pattern = re.compile(selector.pattern or rf"(?:.*/)?(?:worker|io_worker)-.*-{selector.pid}\.(?:out|err)")
        files = [_file(folder, name, selector.label) for name in names if pattern.fullmatch(name)]
        files = sorted((file for file in files if file.size), key=lambda one: one.changed_s)
        for one in files[-FILES_MAX:]:
            found.setdefault(one.path, one)
    return sorted(found.values(), key=lambda one: one.changed_s)


def _file(folder: Path, name: str, label: str) -> LogFile:
    try:
        stat = (folder / name).stat()
    except OSError:  # gone meanwhile
        return LogFile(label, name, 0, 0.0)
    return LogFile(label, name, stat.st_size, stat.st_mtime)


def read_piece(folder: Path, name: str, offset: int, limit: int = PIECE_BYTES) -> bytes:
    """At most ``limit`` bytes from ``offset`` on; b"" at the end, or when the file is gone.

    Raises:
        ValueError: the path leads out of the folder.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{name} is no file of the log folder")
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(min(limit, PIECE_BYTES))
    except OSError:
        return b""


def tail_start(folder: Path, name: str, lines: int) -> int:
    """The offset at which the last ``lines`` lines begin, looked for in the last ``PIECE_BYTES``."""
    try:
        size = os.stat(folder / name).st_size
    except OSError:
        return 0
    first = max(0, size - PIECE_BYTES)
    piece = read_piece(folder, name, first)
    ends = [place for place, byte in enumerate(piece) if byte == 0x0A and place < len(piece) - 1]
    return first + ends[-lines] + 1 if 0 < lines <= len(ends) else first


class LogReader:
    """The actor's class; see :func:`start_reader`."""

    def __init__(self) -> None:
        import ray  # noqa: PLC0415 - half a second, for which help and completion of `logs` would wait

        context = ray.get_runtime_context()
        self._folder = Path(context.get_temp_dir()) / context.get_session_name() / "logs"

    def find(self, selectors: Sequence[Selector]) -> list[LogFile]:
        """See :func:`matching`."""
        return matching(self._folder, selectors)

    def tail_start(self, name: str, lines: int) -> int:
        """See :func:`tail_start`."""
        return tail_start(self._folder, name, lines)

    def read(self, name: str, offset: int) -> bytes:
        """See :func:`read_piece`."""
        return read_piece(self._folder, name, offset)


def start_reader(node: str) -> Any:
    """The handle of a reader on ``node`` (Ray's id) that ends with this process; returns at once."""
    import ray  # noqa: PLC0415
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    return (
        ray.remote(LogReader)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False))
        .remote()
    )
