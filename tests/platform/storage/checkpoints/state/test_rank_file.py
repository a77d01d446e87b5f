"""One rank's file: what any tool sees in it, what cannot be in it, and how few requests it takes."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.checkpoints.manager.open_checkpoint import OpenCheckpoint
from ebbtide.storage.checkpoints.state.boxes import Box
from ebbtide.storage.checkpoints.state.rank_entry import RankEntry
from ebbtide.storage.checkpoints.state.rank_file import Shard, write_shards
from ebbtide.storage.errors import NoRoom, Refused
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_calls import SystemCalls
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.builders.checkpoints import every_type, odd_tensors
from tests.platform.storage.checkpoints.runs import PIECE, at, make_run, same


def write(run: RunCheckpoints, shards: list[Shard], rank: int = 0) -> tuple[RankEntry, Path]:
    saving = run.saving(1, 1)
    saving.begin(0)
    return write_shards(saving.staging, rank, shards), run.paths.work(saving.id) / f"rank{rank}.safetensors"


def test_every_type_comes_back_to_the_bit(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(every_type(), epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened:
        assert same(opened.read_state(), every_type())
    found = safetensors.torch.load_file(run.paths.checkpoint(at("e1/step-1")) / "rank0.safetensors")
    assert found.keys() == every_type().keys()
    assert same(found, {name: every_type()[name] for name in found})


def test_a_tensor_that_was_saved_can_still_be_parked(tmp_path: Path) -> None:
    tensors = {"whole": torch.arange(12.0), "part": torch.arange(12.0)[3:6]}
    make_run(tmp_path).save(tensors, epoch=1, step=1)
    assert all(tensor.untyped_storage().resizable() for tensor in tensors.values())


def test_tensors_of_every_shape_and_stride_come_back(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save(odd_tensors(), epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened:
        found = opened.read_state()
    assert list(found) == list(odd_tensors())
    for name, tensor in odd_tensors().items():
        assert found[name].shape == tensor.shape and found[name].tolist() == tensor.tolist(), name
        assert found[name].untyped_storage().resizable(), "it can be parked"
    with safe_open(run.paths.checkpoint(at("e1/step-1")) / "rank0.safetensors", "pt") as file:
        assert len(file.keys()) == len(odd_tensors())


def test_one_memory_is_written_once(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    weight = torch.randn(100, 50)
    state = {"embedding": weight, "head": weight, "view": weight[:], "other": weight[1:], "copy": weight.clone()}
    run.save(state, epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened:
        assert same(opened.read_state(), state)
        assert len({part.at for tensor in opened.index.tensors.values() for part in tensor.parts}) == 3
        assert opened.size_bytes < 3.5 * weight.nbytes


def test_shards_are_named_as_in_the_state_and_say_where_they_belong(tmp_path: Path) -> None:
    full = torch.randn(6, 4)
    shards = [
        Shard("w", full[2:4], (6, 4), (2, 0)),
        Shard("two", full[:2, :2], (6, 4), (0, 0)),
        Shard("two", full[4:, 2:], (6, 4), (4, 2)),
    ]
    entry, path = write(make_run(tmp_path), shards)
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {"w", "two[0:2,0:2]", "two[4:6,2:4]"}
        assert same(file.get_tensor("two[4:6,2:4]"), full[4:, 2:].contiguous())
        info = json.loads(file.metadata()["DCP_SHARDING_INFO"])
        assert info["w"] == {"saved_offsets": [2, 0]}
    assert [(piece.name, Box(piece.offsets, piece.sizes)) for piece in entry.pieces] == [
        ("w", Box((2, 0), (2, 4))),
        ("two", Box((0, 0), (2, 2))),
        ("two", Box((4, 2), (2, 2))),
    ]


def test_names_that_would_be_the_same_in_the_file_stay_apart(tmp_path: Path) -> None:
    full = torch.randn(4, 2)
    shards = [
        Shard.of_all("w[0:2,0:2]", torch.ones(1)),
        Shard("w", full[:2], (4, 2), (0, 0)),
        Shard("w", full[2:], (4, 2), (2, 0)),
    ]
    entry, path = write(make_run(tmp_path), shards)
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {"w[0:2,0:2]", "w[0:2,0:2]~", "w[2:4,0:2]"}
    assert len({piece.at for piece in entry.pieces}) == 3


class Requests:
    """What was asked of the operating system."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def transport(self, pieces: int = 4) -> PosixTransport:
        real = SystemCalls()

        def counted(name: str) -> Any:
            def call(*arguments: Any) -> Any:
                self.counts[name] += 1
                return getattr(real, name)(*arguments)

            return call

        names = ("open", "pwritev", "preadv", "fsync", "fallocate")
        calls = replace(real, **{name: counted(name) for name in names})
        return PosixTransport(BufferPool(pieces, 1 << 20), threads=2, calls=calls)


def test_ten_thousand_tensors_take_a_few_requests(tmp_path: Path) -> None:
    requests = Requests()
    run = make_run(tmp_path, transport=requests.transport())
    state = {f"layer.{number}.bias": torch.full((5,), float(number)) for number in range(10_000)}
    run.save(state, epoch=1, step=1)
    assert requests.counts["pwritev"] < 20 and requests.counts["open"] < 10
    requests.counts.clear()
    found = run.read_newest(OpenCheckpoint.read_state)
    assert found is not None and same(found.value, state)
    assert requests.counts["preadv"] < 20


def test_a_tensor_that_is_larger_than_all_buffers_goes_through_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)  # 4 buffers of 16 KiB
    state = {"huge": torch.randn(1000, 1000), "strided": torch.randn(500, 1000).t()}
    assert state["huge"].nbytes > 50 * 4 * PIECE // 4
    run.save(state, epoch=1, step=1)
    with run.open(at("e1/step-1")) as opened:
        assert same(opened.read_state(), state)


def test_a_rank_without_shards_has_no_file(tmp_path: Path) -> None:
    entry, path = write(make_run(tmp_path), [])
    assert entry == RankEntry(0) and not path.exists()


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.eye(3).to_sparse(), "not dense"),
        (torch.empty(3, device="meta"), "meta device"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ],
)
@pytest.mark.proves("a tensor that no file can hold is refused")
def test_what_cannot_be_stored_is_refused_by_name(tmp_path: Path, tensor: torch.Tensor, what: str) -> None:
    run = make_run(tmp_path)
    with pytest.raises(Refused, match=f"'model.x'.*{what}"):
        run.save({"model": {"x": tensor}}, epoch=1, step=1)
    assert run.newest() is None and not list(run.paths.directory.rglob(".tmp*"))


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save({"x": torch.ones(3)}, epoch=1, step=1)
    for path in run.paths.directory.rglob("*"):
        assert os.stat(path).st_mode & 0o077 == 0, path


def test_no_room_for_the_file_leaves_nothing(tmp_path: Path) -> None:
    class Full(PosixTransport):
        def write(self, *arguments: Any, **more: Any) -> Any:
            raise NoRoom("the filesystem is full")

    run = make_run(tmp_path, transport=Full(BufferPool(2, PIECE)))
    with pytest.raises(NoRoom):
        run.save({"x": torch.ones(3)}, epoch=1, step=1)
    assert not list(run.paths.directory.rglob(".tmp*"))
