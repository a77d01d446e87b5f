"""Stores for tests: small chunks, real files, and leases that need no heartbeat."""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors

from ebbtide.storage.errors import NotPublished
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.object_leases import Lease, Leases
from ebbtide.storage.maintenance.garbage_collection import collect, survey
from ebbtide.storage.maintenance.garbage_plan import Grace, plan
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import FileEntry, Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.staging import Staging
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.safetensors.file_layout import TensorSpec, filling, from_buffers, plan_container
from ebbtide.storage.transport.transport import Transport

CHUNK = 64 << 10
POOL = BufferPool(4, CHUNK)
KEY = {"model": "org/model", "dtype": "bfloat16"}
ROOMY = Budget(keep_free_bytes=0)


class HeldForEver:
    """A lease that nobody can take."""

    def check(self) -> None: ...

    def confirm(self) -> None: ...


class LocalLeases:
    """Leases within one process, without files."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def hold(self, subject: str, *, comes_back: bool = False) -> Iterator[Lease]:
        with self._changed:
            self._held[subject] += 1
        try:
            yield HeldForEver()
        finally:
            with self._changed:
                self._held[subject] -= 1

    def living(self) -> frozenset[str]:
        with self._changed:
            return frozenset(+self._held)

    def present(self) -> frozenset[str]:
        return self.living()


def store_at(
    root: Path, *, transport: Transport | None = None, disk: Disk | None = None, leases: Leases | None = None
) -> ObjectStore:
    """A store with leases of its own, that takes all there is."""
    transport = transport or PosixTransport(POOL, threads=2)
    return ObjectStore.at(root, transport, leases=leases or LocalLeases(), disk=disk, budget=ROOMY)


def within(store: ObjectStore, budget: Budget) -> ObjectStore:
    """The same store, that may take only so much."""
    return ObjectStore(replace(store.ports, budget=budget))


def stock_tensors(content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """What the reference implementation reads: type, shape and bytes by name; it raises for what it refuses."""
    found = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    return {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in found}


def model_is_right(store: ObjectStore, *, seed: int = 0, tag: str = "latest") -> bool:
    """Whether the model can be read by its ref and is what `publish_model` published; False: it is not there."""
    try:
        found = store.open_ref("org/model", tag)
    except NotPublished:
        return False
    with found:
        arrays = found.read_arrays("model.safetensors")
        assert arrays.keys() == tensors(seed).keys()
        for name, array in tensors(seed).items():
            np.testing.assert_array_equal(arrays[name], array)
        assert found.read_bytes("config.json") == b'{"layers": 1}'
    return True


NO_GRACE = Grace(object_s=-1, work_s=-1, trash_s=-1, quarantine_s=-1, temporary_s=-1)


def collect_all(store: ObjectStore) -> None:
    """Two rounds of the collector that grant nothing any time."""
    for _ in range(2):
        result = collect(store.ports, plan(survey(store.ports), NO_GRACE), NO_GRACE)
        assert not result.failed


def leftovers(store: ObjectStore) -> list[Path]:
    """What is in the store beside objects, refs and its mark."""
    paths = store.paths
    found = [
        path for place in (paths.incoming, paths.trash, paths.quarantine, paths.leases) for path in place.iterdir()
    ]
    return found + [path for path in paths.root.rglob("*.tmp")]


def each(*acts: Callable[[Path], object]) -> Callable[[Path], None]:
    """All of these, one after the other."""

    def act(path: Path) -> None:
        for one in acts:
            one(path)

    return act


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change bytes in the middle of a file, as faults do."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def quick_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where syncing costs nothing; a kill loses nothing that was written, synced or not."""
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm, prefix="ebbtide-test-") as directory:
        yield Path(directory)


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Some 300 KiB: several chunks of `CHUNK`, whole pages and odd sizes."""
    rng = np.random.default_rng(seed)
    return {
        "norm": rng.standard_normal(97).astype(np.float32),
        "layer.weight": rng.standard_normal((128, 512)).astype(np.float32),
        "bias": rng.integers(0, 255, 5, dtype=np.uint8),
        "empty": np.empty((0, 4), dtype=np.float32),
    }


_NAMES = {"float32": "F32", "uint8": "U8"}


def stage_tensors(staging: Staging, name: str, arrays: Mapping[str, np.ndarray]) -> FileEntry:
    """A safetensors file of ours with these arrays."""
    plan = plan_container(
        [TensorSpec(key, _NAMES[value.dtype.name], value.shape) for key, value in arrays.items()], {"format": "pt"}
    )
    buffers = {key: value.reshape(-1).view(np.uint8).data for key, value in arrays.items()}
    return staging.write(name, plan.file_bytes, filling(plan, from_buffers(buffers)))


def publish_model(
    store: ObjectStore, *, seed: int = 0, tag: str | None = "latest", key: Mapping[str, str] = KEY
) -> ObjectId:
    """A model of two files; the id."""
    with store.publication(Kind.MODEL, key, chunk_bytes=CHUNK) as work:
        work.add(stage_tensors(work.staging, "model.safetensors", tensors(seed)))
        work.add(work.staging.write_bytes("config.json", b'{"layers": 1}'))
        return work.publish([("org/model", tag)] if tag else [])
