"""Checkpoints of a run."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.state.about_json import About
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.rank_file import Shard, shard_bytes, write_shards
from ebbtide.storage.checkpoints.state.state_tree import Json
from ebbtide.storage.safetensors.torch_views import DTYPE_NAMES


def every_type() -> dict[str, torch.Tensor]:
    raw = torch.arange(64, dtype=torch.uint8)
    return {str(dtype).removeprefix("torch."): raw.view(dtype) for dtype in DTYPE_NAMES if dtype is not torch.bool} | {
        "bool": torch.tensor([True, False])
    }


def odd_tensors() -> dict[str, Any]:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "empty inside": torch.empty(3, 0, 2, dtype=torch.bfloat16),
        "one": torch.tensor([7], dtype=torch.uint8),
        "one of a row": torch.arange(16.0).reshape(1, 16)[:, 3],
        "one expanded": torch.tensor(5.0).expand(1),
        "one of a stride": torch.arange(8)[::8],
        "one as a matrix": torch.arange(6.0).reshape(1, 6).t()[3:4],
        "transposed": base.t(),
        "strided": base[::2, 1::2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "flipped": base.flip(0),
        "slice": base[1:3],
        "parameter": nn.Parameter(torch.ones(2, 2)),
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "__metadata__": torch.zeros(1),
        'a name with spaces, ünïcode and "quotes"': torch.zeros(1),
    }


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def commit_sharded(checkpoints: RunCheckpoints, step: int, ranks: list[list[Shard]]) -> None:
    """As a gang does it, in one process."""
    saving = checkpoints.saving(1, step)
    saving.begin(sum(map(shard_bytes, ranks)))
    entries = [write_shards(saving.staging, rank, shards) for rank, shards in enumerate(ranks)]
    tree: Json = {name: {"$tensor": name} for name in {shard.name for shards in ranks for shard in shards}}
    saving.commit([RankEntry.from_json(entry.to_json()) for entry in entries], tree, About(len(ranks), {}))


def cut(name: str, tensor: torch.Tensor, along: int, cuts: list[int]) -> list[Shard]:
    shards = []
    for first, last in pairwise([0, *cuts, tensor.shape[along]]):
        offsets = tuple(first if d == along else 0 for d in range(tensor.dim()))
        shards.append(Shard(name, tensor.narrow(along, first, last - first), tuple(tensor.shape), offsets))
    return shards
