"""What of a split tensor is read by whom, and which splits are refused by name before anything is trained."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ebbtide.storage.checkpoints.state.boxes import Box
from ebbtide.storage.checkpoints.state.tensor_index import Part, StoredTensor
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore
from ebbtide_train.session.coordination.gate import SilentGate
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.state.tensor_shards import _wanted
from tests.train_jobs import gangs, tiny_sharded

pytestmark = pytest.mark.timeout(120)


def cuts(rows: int, ranks: int) -> list[tuple[int, int]]:
    """First row and number of rows for each rank, as ``torch.chunk`` cuts; the last ones may get nothing."""
    size = -(-rows // ranks)
    return [(min(rank * size, rows), max(0, min(size, rows - rank * size))) for rank in range(ranks)]


@given(rows=st.integers(1, 9), columns=st.integers(1, 4), writers=st.integers(1, 5), readers=st.integers(1, 5))
def test_every_rank_reads_its_own_rows_whoever_wrote_them(rows: int, columns: int, writers: int, readers: int) -> None:
    whole = torch.arange(rows * columns).view(rows, columns)
    parts = tuple(Part(Box((at, 0), (n, columns)), "file", 0, 8) for at, n in cuts(rows, writers) if n)
    stored = StoredTensor("w", "I64", (rows, columns), parts)
    for at, count in cuts(rows, readers):
        local = torch.full((count, columns), -1)
        for one in _wanted(stored, Box((at, 0), (count, columns)), local):
            of_part = whole[one.part.box.offsets[0] :][: one.part.box.sizes[0]]
            one.target.copy_(of_part[one.box.offsets[0] :][: one.box.sizes[0]])
        assert torch.equal(local, whole[at : at + count])


def _over_another_group(session: TrainingSession, folder: Path) -> nn.Module:
    dist.init_process_group("gloo", init_method=f"file://{folder}/own", rank=0, world_size=1)
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def _over_two_dimensions(session: TrainingSession, folder: Path) -> nn.Module:
    session.mesh()
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "parts")))
    return model


def _not_by_fsdp(session: TrainingSession, folder: Path) -> nn.Module:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), session.mesh(), [Shard(0)]))
    return model


def _by_the_first_fsdp(session: TrainingSession, folder: Path) -> nn.Module:
    session.mesh()
    return FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))


def _after_prepare(session: TrainingSession, folder: Path) -> nn.Module:
    model = nn.Linear(4, 4)
    session.prepare(model, torch.optim.AdamW(model.parameters()))
    session.mesh()
    return model


SPLITS: dict[str, tuple[Callable[[TrainingSession, Path], nn.Module], str]] = {
    "another": (_over_another_group, "mesh=session.mesh()"),
    "dimensions": (_over_two_dimensions, "is split over a mesh of (1, 1), and the gang has 1 ranks in a row"),
    "not fsdp": (_not_by_fsdp, "shard it by fully_shard"),
    "fsdp1": (_by_the_first_fsdp, "is in a FullyShardedDataParallel (FSDP1)"),
    "late": (_after_prepare, "shard the model first"),
}


def _refused(folder: Path) -> None:
    for name, (split, why) in SPLITS.items():
        plan = gangs.plan_of(folder / name, world=1)
        with activate(TrainingSession(plan.settings(0), SilentGate())) as session:
            with pytest.raises(SessionMisuse) as told:
                model = split(session, folder)
                session.prepare(model, torch.optim.AdamW(model.parameters()))
            assert why in str(told.value), name
        if dist.is_initialized():
            dist.destroy_process_group()


def test_a_split_that_cannot_be_kept_is_refused_by_name(tmp_path: Path) -> None:
    """In a process of its own: it needs process groups."""
    gangs.in_process(_refused, tmp_path)


def test_a_gang_of_one_may_split_too_and_its_checkpoint_has_everything_whole(tmp_path: Path) -> None:
    plan = gangs.plan_of(
        tmp_path / "job",
        world=1,
        steps=2,
        train="tests.train_jobs.tiny_sharded:train",
        global_batch=tiny_sharded.GLOBAL_BATCH,
        split_alone=True,
    )
    gangs.run(plan)
    store = CheckpointStore(tmp_path / "job")
    newest = store.newest()
    assert newest is not None and newest.step == 2
    ref = store.ref(newest)
    assert ref is not None
    state = store.load(ref)
    model, _, _ = tiny_sharded.build(None)
    model.load_state_dict(state["model"])  # type: ignore[arg-type]
    assert not any(isinstance(value, DTensor) for value in state["model"].values())  # type: ignore[attr-defined]
    moments = state["optimizer"]["state"]  # type: ignore[index]
    assert set(moments) == {name for name, _ in model.named_parameters()}
    assert all(moments[name]["exp_avg"].shape == one.shape for name, one in model.named_parameters())
