"""Everything that loads a model's files to a device here: ours in each of its ways, and what others use.

All return the named tensors, on the device and ready; all allocate the memory for them themselves. What is not
installed, or cannot run here, is told with its reason and measured by nobody.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

import torch

from benchmarks.gpu.weights import Weights
from ebbtide.storage.device.device_queue import DeviceQueue
from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.gds_probe import GdsVerdict
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.kvikio_files import KvikioFiles
from ebbtide.storage.device.placements import Placement
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.errors import StorageError
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.safetensors.torch_views import torch_views

DEADLINE_S = 120.0
OURS = "ebbtide"
FAST, PLAIN = "fastsafetensors", "safetensors"
NOT_INSTALLED = "not installed"
_THREADS = (4, 8)

Load = Callable[[Weights, bool], Mapping[str, torch.Tensor]]


@dataclass(slots=True)
class Loader:
    """One way to load.

    Attributes:
        name: for the rows.
        load: loads all files; the second argument says whether the page cache holds them.
        modes: how ours went, by bytes, for the notes.
    """

    name: str
    load: Load
    modes: dict[str, int] = field(default_factory=dict)


def loaders(queue: DeviceQueue, pool: BufferPool, verdict: GdsVerdict) -> tuple[list[Loader], dict[str, str]]:
    """All that can run here, and why others cannot, by name."""
    found = [_staged(queue, pool, threads, verify=True) for threads in _THREADS]
    found.append(_staged(queue, pool, _THREADS[0], verify=False))
    missing: dict[str, str] = {}
    for made in (
        _gds(queue, verdict, register=False),
        _gds(queue, verdict, register=True),
        _compat(queue),
        _fastsafetensors(queue.device, verdict, nogds=True),
        _fastsafetensors(queue.device, verdict, nogds=False),
        _safetensors(queue.device),
    ):
        if isinstance(made, Loader):
            found.append(made)
        else:
            missing |= made
    return found, missing


def _ours(name: str, transport: DeviceTransport, *, verify: bool = True) -> Loader:
    loader = Loader(name, lambda weights, warm: load(weights))

    def load(weights: Weights) -> Mapping[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for file in weights.files:
            memory = torch.empty(file.size_bytes, dtype=torch.uint8, device=transport.device)
            report = transport.read_device(file, [Placement(0, memory)], verify=verify, deadline_s=DEADLINE_S)
            tensors |= torch_views(weights.headers[file.path], memory)
            for mode, count in report.bytes_by_mode.items():
                loader.modes[mode.value] = loader.modes.get(mode.value, 0) + count
        return tensors

    return loader


def _staged(queue: DeviceQueue, pool: BufferPool, threads: int, *, verify: bool) -> Loader:
    transport = StagedTransport(PosixTransport(pool, threads=threads), queue)
    hashing = "hashed" if verify else "not hashed"
    return _ours(f"{OURS} page-locked posix, {threads} threads, {hashing}", transport, verify=verify)


def _gds(queue: DeviceQueue, verdict: GdsVerdict, *, register: bool) -> Loader | dict[str, str]:
    name = f"{OURS} gds{', registered' if register else ''}, hashed"
    if queue.device.type != "cuda" or not verdict.works:
        return {name: verdict.why}
    try:
        return _ours(name, GdsTransport(KvikioFiles(), queue, GdsSettings(register=register)))
    except StorageError as error:
        return {name: str(error)}


def _compat(queue: DeviceQueue) -> Loader | dict[str, str]:
    name = f"{OURS} kvikio through host memory, hashed"
    if queue.device.type != "cuda":
        return {name: "the device is no GPU"}
    try:
        import_module("kvikio")
    except (ImportError, OSError) as error:
        return {name: _why(error)}
    return _ours(name, GdsTransport(KvikioFiles(through_host=True), queue))


def _fastsafetensors(device: torch.device, verdict: GdsVerdict, *, nogds: bool) -> Loader | dict[str, str]:
    name = f"{FAST}{', nogds' if nogds else ', gds'}"
    try:
        module = import_module("fastsafetensors")
    except (ImportError, OSError) as error:
        return {name: _why(error)}
    if not nogds and not (device.type == "cuda" and verdict.works):
        return {name: verdict.why}

    def load(weights: Weights, warm: bool) -> Mapping[str, torch.Tensor]:
        # It reads past the page cache unless told otherwise; each time the faster way for it.
        os.environ["FASTSAFETENSORS_ODIRECT"] = "0" if warm else "1"
        paths = [str(path) for path in weights.paths]
        with module.fastsafe_open(paths, device=str(device), nogds=nogds) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  it is no mapping

    return Loader(name, load)


def _safetensors(device: torch.device) -> Loader | dict[str, str]:
    try:
        module = import_module("safetensors.torch")
    except (ImportError, OSError) as error:
        return {PLAIN: _why(error)}

    def load(weights: Weights, warm: bool) -> Mapping[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for path in weights.paths:
            tensors |= module.load_file(path, device=str(device))
        if device.type == "cpu":  # it maps the file; a tensor that nobody touched has not been loaded
            return {name: tensor.clone() for name, tensor in tensors.items()}
        return tensors

    return Loader(PLAIN, load)


def _why(error: Exception) -> str:
    return NOT_INSTALLED if isinstance(error, ModuleNotFoundError) else f"cannot be loaded: {error}"
