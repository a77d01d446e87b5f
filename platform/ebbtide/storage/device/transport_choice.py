"""Which way files take to a device: the fastest that was seen to work, and why not a faster one.

In this order: cuFile (``gds_transport``), past the page cache through page-locked host memory (``staged``), through the
page cache (``buffered``; the POSIX transport takes that by itself for files that are resident, and where O_DIRECT is
refused, so as a choice it is for whoever asks for it). Whether cuFile works is tried once for each directory in the
life of a process, in a process of its own (``gds_probe``).

A file that cuFile fails to bring is read in the next way, with one line in the log; after a few failures, or one that
hangs, cuFile is not tried again. Wrong bytes and a file that is not there are no reason to try another way: both ways
look a second time past all caches before they say so.

Not guaranteed: that the choice is the fastest for every file and every load of the storage; measure (``doctor``).
"""

import dataclasses
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import torch

from ebbtide.storage.bandwidth.traffic import Traffic
from ebbtide.storage.device.device_queue import DeviceQueue, pinned_pool, queue_for
from ebbtide.storage.device.device_transport import DeviceTransport, Source
from ebbtide.storage.device.gds_probe import GdsVerdict, probe_gds
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.kvikio_files import KvikioFiles
from ebbtide.storage.device.placements import Placement
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.errors import FileTruncated, Refused, TransferFailed, TransferTimeout
from ebbtide.storage.memory.buffer_pool import DEFAULT_COUNT, BufferPool
from ebbtide.storage.posix.posix_calls import SystemCalls
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide.system.modes import Place, took

logger = logging.getLogger(__name__)

# The probe imports kvikio (2 s from cold caches) and opens a driver (1 s and more); doctor waits as long.
PROBE_DEADLINE_S = 20.0
# Files in a row: one may be a bad moment, three are a way that does not work.
MOST_FAILURES = 3
# What a file's absence looks like; another way would find the same.
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})


class Way(Enum):
    """How files go to a device."""

    GDS = "gds"
    STAGED = "staged"
    BUFFERED = "buffered"


@dataclass(frozen=True, slots=True)
class Choice:
    """A way and its reason.

    Attributes:
        way: that was chosen.
        why: why this one, or why none that is faster; in words.
    """

    way: Way
    why: str


class GdsWay(DeviceTransport, Protocol):
    """A transport that can say beforehand what it cannot do."""

    def why_not(self, source: Source, *, verify: bool = True) -> str:
        """Why this file cannot be read in this way, in words; empty if it can."""


Probe = Callable[[Path], GdsVerdict]

_verdicts: dict[tuple[int, str], GdsVerdict] = {}  # by process id and directory
_pools: dict[tuple[int, str], tuple[BufferPool, str]] = {}  # by process id and type of device
_probing, _making = threading.Lock(), threading.Lock()


def probe_directory(directory: Path) -> GdsVerdict:
    """Whether cuFile works in a directory; tried once in the life of this process, and remembered."""
    with _probing:
        key = os.getpid(), os.path.abspath(directory)
        if key not in _verdicts:
            _verdicts[key] = probe_gds(PROBE_DEADLINE_S, directory=directory)
        return _verdicts[key]


def choose(
    directory: Path, device: torch.device | str, *, override: Way | None = None, probe: Probe = probe_directory
) -> Choice:
    """The way that files below ``directory`` shall take to ``device``.

    Args:
        directory: of the store; the probe writes a small file there and removes it.
        device: ``cpu`` or ``cuda``.
        override: take this one.
        probe: whether cuFile works there.

    Raises:
        Refused: cuFile was asked for, and cannot be used at all: calling it here might hang this process for ever.
    """
    if override is not None and override is not Way.GDS:
        return Choice(override, f"{override.value} was asked for")
    if torch.device(device).type != "cuda":
        if override is Way.GDS:
            raise Refused(f"gds was asked for, but the device is {device}: cuFile reaches GPUs only")
        return Choice(Way.STAGED, f"the device is {device}: cuFile reaches GPUs only")
    verdict = probe(directory)
    if override is Way.GDS:
        if verdict.mode is None:  # guard: cuFile that would hang is refused even when asked for
            raise Refused(f"gds was asked for, but cuFile cannot be used here: {verdict.why}")
        return Choice(Way.GDS, f"gds was asked for; the probe says: {verdict.why}")
    if verdict.works:  # guard: cuFile is not chosen where it was not seen to work
        return Choice(Way.GDS, verdict.why)
    return Choice(Way.STAGED, f"no direct way from storage to the GPU: {verdict.why}")


class ChosenTransport:
    """The chosen way, and the next one where it fails; see `DeviceTransport`.

    Attributes:
        choice: what was chosen, and why.
    """

    def __init__(self, choice: Choice, staged: DeviceTransport, gds: GdsWay | None = None) -> None:
        """Made by `device_transport`; ``gds`` must be there if it was chosen."""
        assert gds is not None or choice.way is not Way.GDS
        self.choice = choice
        self._staged, self._gds = staged, gds
        self._failures = 0
        self._given_up = ""

    @property
    def device(self) -> torch.device:
        """Whose memory it serves."""
        return self._staged.device

    def read_device(
        self, source: Source, placements: Iterable[Placement], *, verify: bool = True, deadline_s: float
    ) -> TransferReport:
        """See `DeviceTransport.read_device`; the first half of the deadline is for cuFile, where that is tried."""
        wanted, began = list(placements), time.monotonic()
        gds, why_not = self._gds, self._given_up
        if gds is None:
            return self._staged.read_device(source, wanted, verify=verify, deadline_s=deadline_s)
        why_not = why_not or gds.why_not(source, verify=verify)
        retries = 0
        if not why_not:
            try:
                report = gds.read_device(
                    source,
                    wanted,
                    verify=verify,
                    deadline_s=deadline_s / 2,  # guard: a way that hangs gets half of the time
                )
                self._failures = 0  # guard: a success between failures counts
                return report
            except TransferFailed as error:
                # guard: what another way would find too is told at once
                if isinstance(error, FileTruncated) or error.errno in _NOT_THERE:
                    raise
                why_not, retries = self._note(error), 1
        left_s = deadline_s - (time.monotonic() - began)
        report = self._staged.read_device(source, wanted, verify=verify, deadline_s=left_s)
        reasons = "; ".join(filter(None, (why_not, report.why_not_better)))
        seconds, retries = time.monotonic() - began, report.retries + retries
        return dataclasses.replace(report, seconds=seconds, retries=retries, why_not_better=reasons)

    def _note(self, error: TransferFailed) -> str:
        why_not = f"cuFile failed: {error}"
        self._failures += 1
        if (
            isinstance(error, TransferTimeout)  # guard: one hang of cuFile is enough
            or self._failures >= MOST_FAILURES  # guard: some failures of cuFile in a row are enough
        ):
            self._given_up = f"cuFile was given up: {error}"
            logger.warning("%s; all files are read through host memory from now on", self._given_up)
        else:
            logger.warning("%s; this file is read through host memory", why_not)
        return why_not


def device_transport(
    directory: Path,
    device: torch.device | str,
    *,
    override: Way | None = None,
    threads: int | None = None,
    traffic: Traffic | None = None,
    gds: GdsSettings | None = None,
    probe: Probe = probe_directory,
) -> ChosenTransport:
    """A transport to ``device`` for the files below ``directory``, by the best way there is.

    The page-locked buffers are the process's and are made once; the rest goes with the transport.

    Args:
        directory: of the store.
        device: ``cpu`` or ``cuda``, with or without an index.
        override: the way to take; None chooses.
        threads: of each transfer through host memory; see `PosixTransport`.
        traffic: the class that its transfers are in.
        gds: settings of cuFile.
        probe: whether cuFile works there.

    Raises:
        Refused: the way that was asked for cannot be taken.
    """
    choice = choose(directory, device, override=override, probe=probe)
    queue, direct = queue_for(device), None
    if choice.way is Way.GDS:
        try:
            direct = GdsTransport(KvikioFiles(), queue, gds, traffic=traffic)
        except Refused as error:
            if override is Way.GDS:
                raise
            choice = Choice(Way.STAGED, f"the probe says that cuFile works, but {error}")
    pool, why_not_pinned = _pool_for(queue)
    why = why_not_pinned if choice.way is Way.GDS else "; ".join(filter(None, (choice.why, why_not_pinned)))
    calls = SystemCalls(resident_share=_all_of_it) if choice.way is Way.BUFFERED else SystemCalls()
    host = PosixTransport(pool, threads=threads, calls=calls, traffic=traffic)
    logger.info("files below %s go to %s by %s: %s", directory, queue.device, choice.way.value, choice.why)
    reasons = "; ".join(filter(None, (choice.why, why_not_pinned)))
    took(Place.STORAGE, f"{choice.way.value} to {queue.device.type} ({reasons})")
    return ChosenTransport(choice, StagedTransport(host, queue, why_not_better=why), direct)


def _pool_for(queue: DeviceQueue) -> tuple[BufferPool, str]:
    key = os.getpid(), queue.device.type
    with _making:
        if key not in _pools:
            _pools[key] = pinned_pool() if queue.device.type == "cuda" else (BufferPool(DEFAULT_COUNT), "")
        return _pools[key]


def _all_of_it(_fd: int, _offset: int, _size_bytes: int) -> float:
    return 1.0


def _forget_the_parents_locks() -> None:
    global _probing, _making
    _probing, _making = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_forget_the_parents_locks)
