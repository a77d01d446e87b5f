"""Llama-shaped bf16 weights as an object of a store: plain safetensors files, which all contenders read."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash

from benchmarks.gpu.weights import Shapes
from ebbtide.storage.memory.buffer_pool import process_pool
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.safetensors.file_layout import TensorSpec, filling, from_buffers, plan_container

LAYERS_PER_FILE = 5  # 2.2 GB, as checkpoints are cut
BLOCK = 64 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """What was made: where, and what every tensor must be.

    Attributes:
        store: the root of the store.
        object: its id there.
        files: of the object, in order.
        digests: xxh3-64 of the bytes of each tensor, by name.
        size_bytes: of all tensors.
    """

    store: str
    object: str
    files: tuple[str, ...]
    digests: dict[str, str]
    size_bytes: int

    @property
    def paths(self) -> list[Path]:
        """Where the files lie."""
        return [Path(self.store) / "objects" / self.object / name for name in self.files]

    def save(self, path: Path) -> None:
        """For the processes of the contenders."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Weights":
        """The other way round."""
        found = json.loads(path.read_text())
        return cls(**{**found, "files": tuple(found["files"])})

    def wrong(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """What is wrong with what a loader returned; empty if every byte is right."""
        seen = set()
        for name, tensor in tensors:
            seen.add(name)
            if digest(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) != self.digests.get(name):
                return f"{name} has other bytes than were stored"
        return "" if seen == self.digests.keys() else f"{len(seen)} tensors came, {len(self.digests)} were stored"


def digest(data: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]") -> str:
    """Of the bytes of a tensor; nothing that a loader uses."""
    return xxhash.xxh3_64_hexdigest(data.data)


def make_weights(root: Path, size_bytes: int) -> Weights:
    """Publish as many layers of a Llama 3 8B as make up ``size_bytes``."""
    shapes = Shapes()
    layer_bytes = 2 * sum(int(np.prod(shape)) for shape in shapes.layer(0).values())
    layers = max(1, -(-size_bytes // layer_bytes))
    store = ObjectStore.at(root, PosixTransport(process_pool()), who="benchmark")
    random = np.random.default_rng(0)
    digests: dict[str, str] = {}
    names: list[str] = []
    with store.publication(Kind.MODEL, {"model": f"benchmark {layers} layers"}) as work:
        for first in range(0, layers, LAYERS_PER_FILE):
            wanted: dict[str, tuple[int, ...]] = {}
            for number in range(first, min(first + LAYERS_PER_FILE, layers)):
                wanted |= shapes.layer(number)
            buffers = {name: random_bytes(2 * int(np.prod(shape)), random) for name, shape in wanted.items()}
            digests |= {name: digest(data) for name, data in buffers.items()}
            plan = plan_container([TensorSpec(name, "BF16", shape) for name, shape in wanted.items()], {"format": "pt"})
            names.append(f"model-{first // LAYERS_PER_FILE + 1:05}.safetensors")
            views = {name: data.data for name, data in buffers.items()}
            work.add(work.staging.write(names[-1], plan.file_bytes, filling(plan, from_buffers(views))))
        target = work.publish([("benchmark", "latest")])
    return Weights(str(root), str(target), tuple(names), digests, layers * layer_bytes)


def random_bytes(count: int, random: np.random.Generator) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """So many; quickly: one random block again and again, each time turned otherwise."""
    block = np.frombuffer(random.bytes(min(count, BLOCK)), dtype=np.uint8)
    found = np.empty(count, dtype=np.uint8)
    for number, start in enumerate(range(0, count, BLOCK)):
        part = found[start : start + BLOCK]
        part[:] = np.roll(block, number)[: len(part)]
    return found
