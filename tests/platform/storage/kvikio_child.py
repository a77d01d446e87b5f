"""The real kvikio over the stand-ins of ``cuda_stub``, in a process of its own: ``python kvikio_child.py FOLDER``.

Prints one JSON object: what came of each case.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ebbtide.storage.device.device_queue import HostQueue
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.kvikio_files import KvikioFiles
from ebbtide.storage.device.placements import Placement
from ebbtide.storage.errors import StorageError
from ebbtide.storage.integrity.chunk_verification import IndexedFile
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.platform.storage.cuda_stub import Stub
from tests.platform.storage.device_fakes import CHUNK, flip, indexed, until_true
from tests.platform.storage.stores import random_bytes

CONTENT = random_bytes(5 * CHUNK + 4099)
SETTINGS = GdsSettings(threads=2, request_bytes=CHUNK, register=True)
EINTR, EAGAIN, EIO, ESTALE, CUFILE = 4, 11, 5, 116, 5010


class Cases:
    """Each returns what came of it, in words and numbers."""

    def __init__(self, stub: Stub, folder: Path) -> None:
        self.stub, self.folder = stub, folder
        self.file = indexed(folder / "f", CONTENT)
        self.files = KvikioFiles()

    def read(self, *, through_host: bool = False, deadline_s: float = 60, file: IndexedFile | None = None) -> object:
        """Right bytes or one error, as text."""
        memory = torch.zeros(len(CONTENT), dtype=torch.uint8)
        files = KvikioFiles(through_host=True) if through_host else self.files
        transport = GdsTransport(files, HostQueue(), SETTINGS, stats=self.folder / "stats")
        source = file or self.file
        try:
            report = transport.read_device(source, [Placement(0, memory)], deadline_s=deadline_s)
        except StorageError as error:
            return f"{type(error).__name__}: {error}".replace(str(self.folder), "")
        return self.told(report, bytes(memory.numpy()) == CONTENT)

    def told(self, report: TransferReport, right: bool) -> object:
        modes = {mode.value: count for mode, count in report.bytes_by_mode.items()}
        return {"right": right, "modes": modes, "retries": report.retries, "registered": self.stub.get("registered")}

    def plain(self) -> object:
        return self.read()

    def through_host_memory(self) -> object:
        before = self.stub.get("reads")
        found = self.read(through_host=True)
        assert self.stub.get("reads") == before, "cuFile must not have been asked"
        return found

    def short(self) -> object:
        self.stub.set(short=8192, times=3)
        return self.read()

    def short_and_odd(self) -> object:
        self.stub.set(short=4097, times=3)
        return self.read()

    def nothing_comes(self) -> object:
        self.stub.set(short=0, times=100)
        return self.read()

    def interrupted(self) -> object:
        self.stub.set(error=EINTR, short=-1)
        return self.read()

    def again(self) -> object:
        self.stub.set(error=EAGAIN)
        return self.read()

    def io_error_once(self) -> object:
        self.stub.set(error=EIO)
        return self.read()

    def io_error_always(self) -> object:
        self.stub.set(error=EIO, times=100)
        return self.read()

    def stale(self) -> object:
        self.stub.set(error=ESTALE, times=100)
        return self.read()

    def driver_error(self) -> object:
        self.stub.set(error=CUFILE, times=100)
        return self.read()

    def refused_at_open(self) -> object:
        self.stub.set(refuse_handle=1, times=0, error=0)
        found = self.read()
        self.stub.set(refuse_handle=0, times=0)
        return found

    def flipped_bit(self) -> object:
        flip(self.file.path, CHUNK + 5)
        found = self.read()
        flip(self.file.path, CHUNK + 5)
        return found

    def truncated(self) -> object:
        copy = indexed(self.folder / "g", CONTENT)
        os.truncate(copy.path, CHUNK + 5)
        return [self.read(file=copy), self.read(file=copy, through_host=True)]

    def not_there(self) -> object:
        missing = IndexedFile(self.folder / "none", "none", self.file.index)
        return self.read(file=missing)

    def hang(self) -> object:
        self.stub.set(hang=1, error=0)
        began = time.monotonic()
        found = self.read(deadline_s=1)
        took_s = time.monotonic() - began
        self.stub.set(hang=0, times=0)
        return [found, took_s < 20, until_true(lambda: self.stub.get("registered") == 0)]


def main(folder: Path) -> None:
    """Run all cases."""
    cases = Cases(Stub(folder), folder)
    names = [name for name in vars(Cases) if name not in ("__init__", "read", "told") and name[0] != "_"]
    found: dict[str, object] = {}
    for name in names:
        case: Callable[[], object] = getattr(cases, name)
        found[name] = case()
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
