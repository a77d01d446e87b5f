"""A model's weights in files, and in device memory as they must arrive.

The bytes are made on the device, written to the files from there, and kept: what a loader returns is compared with
them bit by bit, by nothing that has to do with loading. Shapes are those of Llama 3 8B, as many layers as fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ebbtide.storage.integrity.chunk_hash import ContentHash
from ebbtide.storage.integrity.chunk_index import Hashing, IndexBuilder
from ebbtide.storage.integrity.chunk_verification import IndexedFile
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.safetensors.file_header import Header, read_header
from ebbtide.storage.safetensors.file_layout import TensorSpec, filling, from_buffers, plan_container

WRITE_DEADLINE_S = 240.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes of a Llama."""

    hidden: int = 4096
    key_value: int = 1024
    feed_forward: int = 14336

    def layer(self, number: int) -> dict[str, tuple[int, ...]]:
        """The tensors of one layer."""
        h, kv, ff, at = self.hidden, self.key_value, self.feed_forward, f"model.layers.{number}."
        return {
            f"{at}self_attn.q_proj.weight": (h, h),
            f"{at}self_attn.k_proj.weight": (kv, h),
            f"{at}self_attn.v_proj.weight": (kv, h),
            f"{at}self_attn.o_proj.weight": (h, h),
            f"{at}mlp.gate_proj.weight": (ff, h),
            f"{at}mlp.up_proj.weight": (ff, h),
            f"{at}mlp.down_proj.weight": (h, ff),
            f"{at}input_layernorm.weight": (h,),
            f"{at}post_attention_layernorm.weight": (h,),
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """What was made.

    Attributes:
        files: with the hashes of their chunks.
        headers: of the files, by path.
        reference: the bytes of each tensor, on the device.
    """

    files: tuple[IndexedFile, ...]
    headers: Mapping[Path, Header]
    reference: Mapping[str, torch.Tensor]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def paths(self) -> list[Path]:
        """Of the files."""
        return [file.path for file in self.files]

    def wrong(self, loaded: Mapping[str, torch.Tensor]) -> str:
        """What is wrong with what a loader returned, in words; empty if every bit is right."""
        if loaded.keys() != self.reference.keys():
            return f"{len(loaded)} tensors came, {len(self.reference)} were stored"
        for name, expected in self.reference.items():
            tensor = loaded[name]
            if tensor.device != expected.device or tensor.dtype != torch.bfloat16:
                return f"{name} came as {tensor.dtype} on {tensor.device}"
            if not torch.equal(tensor.contiguous().reshape(-1).view(torch.uint8), expected):
                return f"{name} has other bytes than were stored"
        return ""


def make_weights(
    directory: Path,
    size_bytes: int,
    device: torch.device,
    *,
    shapes: Shapes | None = None,
    layers_per_file: int = 5,
    say: Callable[[str], None] = print,
) -> Weights:
    """Write as many layers as make up ``size_bytes``, at least one, durably and hashed."""
    shapes = shapes or Shapes()
    layer_bytes = 2 * sum(torch.Size(shape).numel() for shape in shapes.layer(0).values())
    layers = max(1, round(size_bytes / layer_bytes))
    transport = PosixTransport(BufferPool(8), threads=4)
    random = torch.Generator(device).manual_seed(0)
    reference: dict[str, torch.Tensor] = {}
    files: list[IndexedFile] = []
    for first in range(0, layers, layers_per_file):
        wanted: dict[str, tuple[int, ...]] = {}
        for number in range(first, min(first + layers_per_file, layers)):
            wanted |= shapes.layer(number)
        path = directory / f"model-{first // layers_per_file:05}.safetensors"
        files.append(_write(path, wanted, reference, transport, random))
        say(f"wrote {path.name}: {files[-1].size_bytes / 1e9:.2f} GB")
    return Weights(tuple(files), {file.path: read_header(file.path) for file in files}, reference)


def _write(
    path: Path,
    wanted: Mapping[str, tuple[int, ...]],
    reference: dict[str, torch.Tensor],
    transport: PosixTransport,
    random: torch.Generator,
) -> IndexedFile:
    plan = plan_container([TensorSpec(name, "BF16", shape) for name, shape in wanted.items()], {"format": "pt"})
    buffers: dict[str, memoryview] = {}
    for name, shape in wanted.items():
        count = 2 * torch.Size(shape).numel()
        data = torch.randint(0, 256, (count,), dtype=torch.uint8, device=random.device, generator=random)
        reference[name] = data
        buffers[name] = data.cpu().numpy().data
    builder = IndexBuilder(path.name, plan.file_bytes, Hashing(bytes(16), content_kind=ContentHash.XXH3_128))
    fill = filling(plan, from_buffers(buffers))

    def fill_and_hash(offset: int, memory: memoryview) -> None:
        fill(offset, memory)
        builder.add(offset, memory)

    transport.write(path, plan.file_bytes, fill_and_hash, deadline_s=WRITE_DEADLINE_S)
    return IndexedFile(path, path.name, builder.build())
