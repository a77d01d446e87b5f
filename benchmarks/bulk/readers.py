"""Everything that loads the files into host memory here: ours, and what others use. Run in a process of its own.

``python -m benchmarks.bulk.readers NAME WEIGHTS.json`` prints one `Outcome`. Imports, and for those who have one the
memory that lives as long as the process, are there before the clock starts; everything else is inside. Every byte that
came is compared with what was stored, after the clock has stopped.
"""

import gc
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bulk.outcome import Outcome, measured
from benchmarks.bulk.weights import Weights
from ebbtide.storage.bandwidth.node_traffic import node_traffic
from ebbtide.storage.bandwidth.rate_scheduler import TrafficClass
from ebbtide.storage.memory.arena_pool import Arenas
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.safetensors.file_header import read_header
from ebbtide.storage.safetensors.torch_views import torch_views

Tensors = Mapping[str, torch.Tensor]
Load = Callable[[], Tensors]

OURS, OURS_UNHASHED, OURS_FRESH = "ebbtide", "ebbtide, not hashed", "ebbtide, fresh memory"
SAFETENSORS, FAST, RUNAI, KVIKIO = "safetensors", "fastsafetensors", "runai streamer", "kvikio"
# What it is given matters little: 1 to 16 threads with 1 to 16 MiB came to 2.94 to 3.26 GB/s (docs/measured.md, "What
# the design rests on"). 16 MiB are what ours asks for at once.
KVIKIO_THREADS, KVIKIO_TASK_BYTES = 4, 16 << 20
_modes: dict[str, int] = {}
_kept: list[Any] = []  # what lends out the memory of its tensors


def ours(weights: Weights, *, verify: bool = True, fresh: bool = False) -> Load:
    """The store's own reader; into memory that the process has already, or fresh, as a new replica's is on a CPU."""
    root = Path(weights.store)
    transport = PosixTransport(process_pool(), traffic=node_traffic(root, TrafficClass.SERVE_LOAD))
    store = ObjectStore.at(root, transport, who="benchmark")
    arenas = Arenas()
    sizes = {path.name: path.stat().st_size for path in weights.paths}
    ready = {} if fresh else {name: arenas.lend(size) for name, size in sizes.items()}

    def load() -> Tensors:
        tensors: dict[str, torch.Tensor] = {}
        with store.open(ObjectId(weights.object)) as stored:
            for name, size in sizes.items():
                into = ready[name] if ready else np.empty(size, dtype=np.uint8).data
                report = stored.read_file(name, into=into, verify=verify)
                for mode, count in report.bytes_by_mode.items():
                    _modes[mode.value] = _modes.get(mode.value, 0) + count
                tensors |= torch_views(stored.header(name), torch.frombuffer(into, dtype=torch.uint8))
        return tensors

    return load


def safetensors(weights: Weights) -> Load:
    """``load_file`` maps the files; a byte of each page is touched, or nothing would be read at all."""
    load_file = import_module("safetensors.torch").load_file

    def load() -> Tensors:
        tensors: dict[str, torch.Tensor] = {}
        for path in weights.paths:
            tensors |= load_file(path)
        for tensor in tensors.values():
            tensor.view(-1).view(torch.uint8)[::4096].sum().item()
        return tensors

    return load


def fastsafetensors(weights: Weights) -> Load:
    """Without GDS, to host memory; past the page cache unless the files are in it."""
    open_all = import_module("fastsafetensors").fastsafe_open

    def load() -> Tensors:
        file = open_all([str(path) for path in weights.paths], device="cpu", nogds=True)
        opened = file.__enter__()
        _kept.append((file, opened))
        return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118  it is no mapping

    return load


def runai(weights: Weights) -> Load:
    """Run:ai's streamer as it comes; its tensors are borrowed, and are kept borrowed."""
    streamer = import_module("runai_model_streamer").SafetensorsStreamer

    def load() -> Tensors:
        made = streamer()
        _kept.append(made)
        made.__enter__()
        made.stream_files([str(path) for path in weights.paths])
        return dict(made.get_tensors())

    return load


def kvikio(weights: Weights, *, direct: bool = True) -> Load:
    """kvikio's host path into memory that was touched before: whole files, no tensors."""
    module, defaults = import_module("kvikio"), import_module("kvikio.defaults")
    defaults.set({"num_threads": KVIKIO_THREADS, "task_size": KVIKIO_TASK_BYTES, "auto_direct_io_read": direct})
    arenas = Arenas()
    ready = [(path, arenas.lend(path.stat().st_size)) for path in weights.paths]

    def load() -> Tensors:
        tensors: dict[str, torch.Tensor] = {}
        for path, memory in ready:
            with module.CuFile(path, "r") as file:
                if file.pread(np.frombuffer(memory, dtype=np.uint8)).get() != len(memory):
                    raise RuntimeError(f"kvikio read less than all of {path}")
        for path, memory in ready:
            tensors |= torch_views(read_header(path), torch.frombuffer(memory, dtype=torch.uint8))
        return tensors

    return load


READERS: dict[str, Callable[[Weights, bool], Load]] = {
    OURS: lambda weights, warm: ours(weights),
    OURS_UNHASHED: lambda weights, warm: ours(weights, verify=False),
    OURS_FRESH: lambda weights, warm: ours(weights, fresh=True),
    SAFETENSORS: lambda weights, warm: safetensors(weights),
    FAST: lambda weights, warm: fastsafetensors(weights),
    RUNAI: lambda weights, warm: runai(weights),
    KVIKIO: lambda weights, warm: kvikio(weights, direct=not warm),
}
"""Each contender by name; the flag says whether the page cache has the files."""

RETURN_TENSORS = (SAFETENSORS, FAST, RUNAI)


def main() -> None:
    """``NAME WEIGHTS.json cold|warm``."""
    name, place, state = sys.argv[1:]
    os.environ["FASTSAFETENSORS_ODIRECT"] = "0" if state == "warm" else "1"  # each time the faster way for it
    weights = Weights.read(Path(place))
    load = READERS[name](weights, state == "warm")
    gc.collect()
    tensors, figures = measured(load)
    wrong = weights.wrong(tensors.items())
    outcome = Outcome(name=name, size_bytes=weights.size_bytes, modes=_modes, wrong=wrong, **figures)  # type: ignore[arg-type]
    print(outcome.to_line(), flush=True)
    os._exit(0)  # what some of them do at the end takes longer than the load


if __name__ == "__main__":
    main()
