"""Where the store of models is, how it is opened, and how its errors become ours.

The store lies in ``store`` below the pool's shared directory. That is named by hand, read from a pool file, or taken
from the record of the pool that was brought up last; no Ray and no arbiter is needed.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ebbtide.cli.terminal.errors import BadInput, CommandFailed
from ebbtide.client.cluster_record import NoPool, load_cluster
from ebbtide.config.loading.pool_file_loader import load
from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide.storage.bandwidth.node_traffic import node_traffic
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.errors import NotPublished, Refused, StorageError
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.refs import Refs
from ebbtide.storage.objects.store_limits import Limits, limits_of
from ebbtide.storage.objects.store_paths import StorePaths
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.storage.transport.transport import Consume, Fill, Range, Transport

CommandT = TypeVar("CommandT", bound=Callable[..., object])

ANSWER_S = 10.0  # a directory answers in milliseconds; a filesystem that needs this long hangs
COMPLETION_S = 0.3  # a shell waits for us at every TAB
RESERVED = "train/"  # names of checkpoints: no models


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How the user named the store; at most one of them."""

    shared_dir: Path | None
    pool: str | None
    pool_file: Path | None

    def root(self) -> Path:
        """The store's directory.

        Raises:
            BadInput: nothing is named and no pool is on record, or too much is named.
        """
        if sum(one is not None for one in (self.shared_dir, self.pool, self.pool_file)) > 1:
            raise BadInput("name the store once: by --shared-dir, --pool or --pool-file")
        if self.shared_dir is not None:
            return self.shared_dir.absolute() / "store"
        if self.pool_file is not None:
            shared_dir = load(self.pool_file).pool.shared_dir
            if shared_dir is None:
                raise BadInput(f"{self.pool_file} names no shared_dir: name the directory with --shared-dir")
            return Path(shared_dir) / "store"
        try:
            return Path(load_cluster(self.pool).shared_dir) / "store"
        except NoPool as error:
            raise BadInput(f"{error}; or name its directory with --shared-dir") from error

    def limits(self) -> Limits:
        """Those of the file that was named; else those in force. Reads the shared directory."""
        if self.pool_file is not None:
            return Limits.of(load(self.pool_file).pool.storage)
        return limits_of(self.root().parent)


def store_options(command: CommandT) -> CommandT:
    """Adds the options that name the store; the command gets them as ``where``, a `StoreOptions`."""

    @click.option("--pool", default=None, help="Name of the pool; default: the one brought up last.")
    @click.option("--pool-file", type=click.Path(path_type=Path, dir_okay=False), help="Take the pool of this file.")
    @click.option(
        "--shared-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="The pool's shared directory, when no record of the pool is at hand.",
    )
    @functools.wraps(command)
    def with_options(
        *args: Any, shared_dir: Path | None, pool: str | None, pool_file: Path | None, **kwargs: Any
    ) -> object:
        return command(*args, where=StoreOptions(shared_dir, pool, pool_file), **kwargs)

    return with_options  # type: ignore[return-value]


def open_store(where: StoreOptions, *, make: bool = False, kind: TrafficClass = TrafficClass.SCRUB) -> ObjectStore:
    """Open the store.

    Args:
        where: as the user named it.
        make: make it if there is none; only for what brings something in.
        kind: what its bytes are moved for; by default nobody waits for them.

    Raises:
        BadInput: there is none, or it cannot be used.
        CommandFailed: its filesystem hangs or fails.
    """
    root = where.root()

    def look() -> ObjectStore:
        if not root.parent.is_dir():
            raise BadInput(f"there is no directory {root.parent}")
        if not make and not StorePaths(root).marker.exists():
            raise BadInput(f"no models are in {root.parent} yet; bring one in: ebbtide models import SOURCE")
        limits = where.limits()
        return ObjectStore.at(root, FirstUse(root, kind, limits.bytes_per_s), budget=limits.models)

    try:
        with as_command_error():
            return within(ANSWER_S, look)
    except NoAnswer:
        why = f"the shared directory does not answer within {ANSWER_S:g} s ({root.parent}); is its filesystem hung?"
        raise CommandFailed(why) from None
    except OSError as error:
        raise CommandFailed(f"{root}: {error.strerror or error}") from error


@contextmanager
def as_command_error() -> Iterator[None]:
    """What goes wrong with the store, as the error of a command."""
    try:
        yield
    except (Refused, NotPublished) as error:
        raise BadInput(str(error)) from error
    except StorageError as error:
        raise CommandFailed(str(error)) from error


class FirstUse:
    """A transport that is made when the first byte is moved: its buffers take a moment, and most commands need none."""

    def __init__(self, root: Path, kind: TrafficClass, bytes_per_s: int | None) -> None:
        """``root``: on the filesystem that it moves bytes of, in the class ``kind``; for the rest `node_traffic`."""
        self._class = root, kind, bytes_per_s
        self._lock = threading.Lock()
        self._transport: Transport | None = None

    def _made(self) -> Transport:
        with self._lock:
            if self._transport is None:
                self._transport = PosixTransport(process_pool(), traffic=node_traffic(*self._class))
            return self._transport

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        """See `Transport.read`."""
        return self._made().read(path, ranges, consume, into=into, deadline_s=deadline_s)

    def write(
        self, path: Path, size_bytes: int, fill: Fill, *, ranges: Iterable[Range] | None = None, deadline_s: float
    ) -> TransferReport:
        """See `Transport.write`."""
        return self._made().write(path, size_bytes, fill, ranges=ranges, deadline_s=deadline_s)


def complete_models(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names with tags, and names alone where the tag may be left out; nothing, and no error, if that takes long."""
    found: list[str] = []
    found_all = threading.Event()

    def look() -> None:
        named = ctx.params
        with suppress(click.ClickException, StorageError, OSError, ValueError):
            where = StoreOptions(named.get("shared_dir"), named.get("pool"), named.get("pool_file"))
            for name, tag in Refs(StorePaths(where.root()), Disk()).pairs():
                if not name.startswith(RESERVED):
                    found.extend([name, f"{name}:{tag}"] if tag == "latest" else [f"{name}:{tag}"])
        found_all.set()

    threading.Thread(target=look, daemon=True).start()
    found_all.wait(COMPLETION_S)
    return [CompletionItem(name) for name in list(found) if name.startswith(incomplete)]
