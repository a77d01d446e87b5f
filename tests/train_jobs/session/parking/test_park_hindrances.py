"""What keeps a process from parking in place is told by name, with the way that holds; what parks gives memory back."""

import itertools
import multiprocessing
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from ebbtide.client.messages import DesiredState, Lease, RankPhase, RankReport, SlotRef
from ebbtide.snapshot.errors import NotEvictable
from ebbtide.snapshot.eviction.tensor_eviction import plan
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.storage.checkpoints.manager.two_phase_save import Saving
from ebbtide.storage.errors import NoRoom
from ebbtide.system.process_memory import anonymous_bytes
from ebbtide_train.session.checkpoints import durability as durability_module
from ebbtide_train.session.coordination.gate import Away, ScriptedGate
from ebbtide_train.session.parking.host_region import LentRegion
from ebbtide_train.session.parking.park_hindrances import _by_fork, obstacle
from ebbtide_train.verification.control_run import GangPlan, run_rank
from tests.builders.training import once_durable
from tests.train_jobs import gangs, lent

pytestmark = pytest.mark.timeout(150)
CPU = torch.device("cpu")


@pytest.mark.proves("a process with forked children does not park in place")
def test_workers_of_a_loader_that_were_forked_are_named() -> None:
    model = nn.Linear(1, 1)
    assert obstacle(model, CPU) == ""
    loader = DataLoader(TensorDataset(torch.zeros(8)), num_workers=1, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    [worker] = multiprocessing.active_children()
    assert f"[{worker.pid}]" in obstacle(model, CPU) and "in_place: false" in obstacle(model, CPU)
    del batches
    gangs.wait_until(lambda: obstacle(model, CPU) == "", what="the loader's worker to end")


@pytest.mark.proves(
    "children that were spawned hold none of their parent's memory", "the default way to make children counts"
)
@pytest.mark.parametrize(
    ("method", "default", "forked"),
    [
        ("fork", "spawn", True),
        ("spawn", "fork", False),
        (None, "fork", True),
        (None, "spawn", False),
        (None, None, True),
    ],
)
def test_only_a_fork_has_the_memory_of_its_parent(
    monkeypatch: pytest.MonkeyPatch, method: str | None, default: str | None, forked: bool
) -> None:
    child = multiprocessing.Process()
    monkeypatch.setattr(child, "_start_method", method, raising=False)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: default)
    assert _by_fork(child) is forked


def _sharded(folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=0, world_size=1)
    model = nn.Sequential(nn.Linear(4, 4))
    fully_shard(model)
    try:
        plan(model.named_parameters())
    except NotEvictable as error:
        (folder / "said").write_text(f"{obstacle(model, CPU)}\n{error}")
    dist.destroy_process_group()


@pytest.mark.proves("a model that is sharded does not park")
def test_a_model_that_fsdp_has_sharded_is_named_and_so_are_its_tensors(tmp_path: Path) -> None:
    """In a process of its own: it needs a process group."""
    gangs.in_process(_sharded, tmp_path)
    model, tensor = (tmp_path / "said").read_text().splitlines()
    assert "the model is sharded by FSDP" in model and "in_place: false" in model
    assert "0.weight is a DTensor" in tensor and "stop and restart" in tensor


@pytest.mark.proves("a process with captured graphs does not park in place")
def test_a_captured_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """None can be captured without a GPU; an object of that class stands for one."""

    class Captured:
        pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Captured)
    model, gpu = nn.Linear(1, 1), torch.device("cuda", 0)
    assert obstacle(model, gpu) == ""
    graph = Captured()
    assert "a CUDA graph is captured" in obstacle(model, gpu)
    del graph


def test_nvls_is_named_where_nccl_was_used_on_a_gpu_and_nowhere_else() -> None:
    model, gpu, on = nn.Linear(1, 1), torch.device("cuda", 0), {"NCCL_NVLS_ENABLE": "1"}
    assert "NVLS" in obstacle(model, gpu, on) and "leave NCCL_NVLS_ENABLE at 0" in obstacle(model, gpu, on)
    assert [obstacle(model, gpu, told) for told in (None, {"NCCL_NVLS_ENABLE": "0"})] == ["", ""]
    assert obstacle(model, CPU, on) == ""


def _exists(path: Path, report: RankReport) -> bool:
    return path.exists()


def _noting_memory(plan: GangPlan, rank: int, wants: Mapping[int, DesiredState | Away]) -> None:
    report = gangs.NotingGate.report

    def noting(self: gangs.NotingGate, said: RankReport) -> None:
        if said.phase is RankPhase.RUNNING and said.step in (3, 4):
            (Path(plan.run_dir) / f"memory-{said.step}").write_text(str(anonymous_bytes()))
        report(self, said)

    gangs.NotingGate.report = noting  # type: ignore[method-assign,assignment]
    lent.rank_main(plan, rank, wants)


def test_memory_falls_by_what_is_tracked_and_comes_back(tmp_path: Path) -> None:
    """The process's own, not the region's, which is the node's. A first park touches the buffers of the spill."""
    width = 1024
    plan = gangs.plan_of(tmp_path / "job", world=1, steps=5, width=width)
    tracked = 3 * 4 * (50 * width + 6 * (width * width + width))  # parameters and two moments, of four bytes each
    until = partial(_exists, tmp_path / "go")
    ranks = gangs.start(plan, {1: Away(until=once_durable), 3: Away(until=until)}, _noting_memory)
    try:
        gangs.wait_until(lambda: "parked step=3 durable=3" in "".join(gangs.reports(plan)), what="it to park")
        parked = anonymous_bytes(ranks[0].pid)
        (tmp_path / "go").touch()
    finally:
        gangs.join(ranks)
    before, after = (int((tmp_path / "job" / f"memory-{step}").read_text()) for step in (3, 4))
    assert before - parked >= 0.9 * tracked, (before, parked, tracked)
    assert after - parked >= 0.9 * tracked, (after, parked, tracked)


def test_a_full_disk_keeps_what_is_parked_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spill is tried again; the region counts until then, and no longer."""
    reserve, tries = Saving._reserve, itertools.count()
    seen: list[tuple[int, RegionState]] = []
    folder = lent.folder_of(tmp_path / "job")

    def full(self: Saving, size_bytes: int) -> None:
        if self.id.step == 2 and next(tries) < 3:
            raise NoRoom("No space left on device")
        reserve(self, size_bytes)

    class Looking(ScriptedGate):
        def report(self, report: RankReport) -> None:
            super().report(report)
            if report.phase is RankPhase.PARKED or report.step in (3, 4):
                [left] = lent.FolderLeft(folder).look("") or ()
                seen.append((report.durable_step, left.region.state))

    monkeypatch.setattr(Saving, "_reserve", full)
    monkeypatch.setattr(durability_module, "_AGAIN_S", 0.01)
    lease = Lease("job", 7, (SlotRef("here", 0),))
    gate = Looking({2: Away(until=once_durable)}, lease=lease)
    plan = gangs.plan_of(tmp_path / "job", world=1, epoch=7, steps=4)
    memory = LentRegion(lent.FolderLender(folder), RegionKey("control", 7, 0))
    try:
        run_rank(plan, 0, gate, memory=memory)
    finally:
        torch.use_deterministic_algorithms(False)
    assert any("No space left on device" in report.commit_error for report in gate.reports)
    assert {state for durable, state in seen if durable < 2} == {RegionState.FULL}
    assert (2, RegionState.FULL) in seen, "it is published, and not all ranks run again"
    assert (2, RegionState.EMPTY) in seen, "they do"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_rank_reports_what_it_tracks_as_soon_as_the_optimizer_has_its_state(tmp_path: Path, in_place: bool) -> None:
    gate = ScriptedGate({}, lease=Lease("job", 7, (SlotRef("here", 0),)))
    try:
        run_rank(gangs.plan_of(tmp_path / "job", world=1, epoch=7, steps=2, options={"in_place": in_place}), 0, gate)
    finally:
        torch.use_deterministic_algorithms(False)
    parameters, count = 4 * (50 * 32 + 6 * (32 * 32 + 32)), 13  # tied weights once
    tracked = 3 * parameters + 4 * count + 4  # two moments, a number of steps for each, and a buffer
    running = [report for report in gate.reports if report.phase is RankPhase.RUNNING]
    assert [report.tracked_bytes for report in running] == [0, *[tracked] * (len(running) - 1)]
    assert not any(report.in_place_hindered for report in gate.reports), "a choice of the job is no hindrance"
