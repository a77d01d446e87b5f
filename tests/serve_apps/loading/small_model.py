"""A small model as an engine would have it: fused and split parameters, a tied head, one that no checkpoint has.

Not vLLM's, but of the same kind: ``load_weights`` maps the checkpoint's names to parameters that hold several of them,
narrowed to one tensor-parallel rank.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ebbtide.storage.device.device_queue import queue_for
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.memory.arena_pool import Arenas
from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.safetensors.file_layout import filling, from_buffers, plan_container
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.flat.identity import EngineFacts
from ebbtide_serve.loading.flat.layout import spec_of
from ebbtide_serve.loading.rank_load import CHECKPOINT
from ebbtide_serve.loading.reading.checkpoint import Checkpoint
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.reading.transfers import bytes_of
from tests.platform.storage.stores import CHUNK, POOL, store_at

WORDS, WIDTH = 96, 64
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class SmallModel(nn.Module):
    """See the module."""

    embed: Any
    head: Any
    qkv: Any
    out: Any
    norm: Any
    rope: torch.Tensor

    def __init__(self, tp: int = 1, rank: int = 0) -> None:
        super().__init__()
        self.tp, self.rank = tp, rank

        def parameter(*shape: int, fill: float = float("nan")) -> nn.Parameter:
            return nn.Parameter(torch.full(shape, fill, dtype=torch.bfloat16), requires_grad=False)

        self.embed = nn.Module()
        self.embed.weight = parameter(WORDS, WIDTH)
        self.head = self.embed  # tied: one module under two names
        self.qkv = nn.Module()
        self.qkv.weight = parameter(3 * WIDTH // tp, WIDTH)
        self.out = nn.Module()
        self.out.weight = nn.Parameter(parameter(WIDTH // tp, WIDTH).data.t(), requires_grad=False)
        self.norm = nn.Module()
        self.norm.weight = parameter(WIDTH)
        self.cache_scale = parameter(fill=-1.0)  # of no checkpoint
        self.none = parameter(0, WIDTH)
        self.register_buffer("rope", torch.arange(WIDTH, dtype=torch.float32), persistent=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Place tensors of a checkpoint; the names of the parameters that were filled."""
        loaded: set[str] = set()
        part = WIDTH // self.tp
        for name, data in weights:
            match name.removeprefix("model."):
                case "embed.weight" | "norm.weight" as same:
                    self.get_parameter(same).data.copy_(data)
                    loaded.add(same)
                case "out.weight":
                    self.out.weight.data.copy_(data.narrow(1, self.rank * part, part))
                    loaded.add("out.weight")
                case "q.weight" | "k.weight" | "v.weight" as one:
                    place = "qkv".index(one[0]) * part
                    self.qkv.weight.data[place : place + part].copy_(data.narrow(0, self.rank * part, part))
                    loaded.add("qkv.weight")
                case other:
                    raise KeyError(other)
        return loaded


def repack(model: nn.Module) -> None:
    """As vLLM's CPU build does right after loading: nothing of the parameters is left."""
    for parameter in model.parameters():
        parameter.data.fill_(7)
        parameter.data = torch.empty(0)


def checkpoint_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """A checkpoint of `SmallModel`: some 37 KB."""
    random = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(torch.bfloat16)

    return {
        "model.embed.weight": tensor(WORDS, WIDTH),
        "model.q.weight": tensor(WIDTH, WIDTH),
        "model.k.weight": tensor(WIDTH, WIDTH),
        "model.v.weight": tensor(WIDTH, WIDTH),
        "model.out.weight": tensor(WIDTH, WIDTH),
        "model.norm.weight": tensor(WIDTH),
    }


def publish_tensors(
    store: ObjectStore, files: Mapping[str, Mapping[str, torch.Tensor]], *, kind: Kind = Kind.MODEL, chunk: int = CHUNK
) -> ObjectId:
    """An object of safetensors files."""
    with store.publication(kind, {"model": "small"}, chunk_bytes=chunk) as work:
        for name, tensors in files.items():
            plan = plan_container([spec_of(key, value) for key, value in tensors.items()])
            buffers = {key: bytes_of(value).numpy().data for key, value in tensors.items()}
            work.add(work.staging.write(name, plan.file_bytes, filling(plan, from_buffers(buffers))))
        return work.publish([("small", "latest")])


def publish_small(store: ObjectStore, seed: int = 0) -> ObjectId:
    """`checkpoint_tensors` in two files."""
    items = list(checkpoint_tensors(seed).items())
    return publish_tensors(store, {SHARDS[0]: dict(items[:3]), SHARDS[1]: dict(items[3:])})


def reach(root: Path) -> ProcessStore:
    """A store without heartbeats, whose bandwidth nobody shares, read in small pieces."""
    host = StagedTransport(PosixTransport(POOL, threads=2), queue_for("cpu"))
    store = store_at(root)
    return ProcessStore(store, store, Arenas(), lambda device: host)


def load_small(store: ProcessStore, wanted: ObjectId, model: SmallModel) -> tuple[str, TransferReport]:
    """What an engine does for a load in checkpoint order."""
    with (
        store.store.open(wanted) as stored,
    ):
        checkpoint = Checkpoint(stored, torch.device("cpu"), store)
        model.load_weights(checkpoint.tensors(SHARDS))
        return CHECKPOINT, checkpoint.report


def facts(tp: int = 1, rank: int = 0, **other: Any) -> EngineFacts:
    """What the engine says of `SmallModel`."""
    told: dict[str, Any] = {"engine": "small 1", "dtype": "bf16", "device": "cpu"} | other
    return EngineFacts(tensor_parallel=tp, rank=rank, **told)


def right(tp: int = 1, rank: int = 0, seed: int = 0) -> SmallModel:
    """The model as it must be after any load."""
    model = SmallModel(tp, rank)
    model.load_weights(checkpoint_tensors(seed).items())
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters and buffers have the same bits."""
    mine, others = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (one, other))
    return mine.keys() == others.keys() and all(
        torch.equal(bytes_of(mine[name].data.contiguous()), bytes_of(others[name].data.contiguous())) for name in mine
    )
