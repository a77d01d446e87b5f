"""What a rank holds on a slot of a GPU; an object stands for the GPU, since there is none here."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ebbtide.snapshot.eviction.host_memory import OwnMemory
from ebbtide.snapshot.eviction.page_lock import PageLock
from ebbtide.snapshot.eviction.tensor_eviction import plan
from ebbtide.snapshot.nccl import DEFAULTS
from ebbtide_train.session.coordination.file_barrier import file_barrier
from ebbtide_train.session.coordination.gate import SilentGate
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.coordination.rendezvous import folder_of
from ebbtide_train.session.current import activate
from ebbtide_train.session.errors import GangBroken
from ebbtide_train.session.parking import occupancy as occupancy_module
from ebbtide_train.session.parking.device_context import NothingStays
from ebbtide_train.session.parking.host_state import HostState
from ebbtide_train.session.parking.occupancy import NoLock, Occupancy
from ebbtide_train.session.session import TrainingSession
from ebbtide_train.session.state.train_state import TrainState
from ebbtide_train.session.step_log import gang_lines
from tests.train_jobs import gangs, tiny

GPU = torch.device("cuda", 0)


class Context(NothingStays):
    """Can be taken off, and says whether it is."""

    def __init__(self) -> None:
        self.occupies = True

    def freeze(self) -> None:
        self.occupies = False

    def thaw(self) -> None:
        self.occupies = True


class Pages:
    """Notes what is done with them."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def lock(self, memory: torch.Tensor) -> None:
        self.said.append("lock")

    def unlock(self) -> None:
        self.said.append("unlock")

    def leave(self) -> None:
        self.said.append("leave")


def occupancy_of(run_dir: Path, *, rank: int = 0, world: int = 1) -> tuple[Occupancy, Pages]:
    """With something parked in host memory, and its group gone."""
    settings = gangs.plan_of(run_dir, world=world, epoch=7).settings(rank)
    occupancy, pages = Occupancy(settings, lambda lease, rank: NoLock(), OwnMemory(), Context()), Pages()
    occupancy.host = HostState(OwnMemory(), pages=pages)
    planned = plan([("t", torch.arange(100.0))])
    assert occupancy.host.lend(planned.size_bytes) == ""
    occupancy.host.copy(planned, None, b"", step=1)
    folder_of(settings).mkdir(parents=True, exist_ok=True)
    return occupancy, pages


def vacate(occupancy: Occupancy) -> None:
    occupancy.vacate(None)  # type: ignore[arg-type] # nothing is wrapped


def tracked() -> TrainState:
    model = torch.nn.Linear(2, 2)
    return TrainState(model, torch.optim.SGD(model.parameters()), None, {})


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """None of its variables is set, and what a test leaves is taken back."""
    for name in DEFAULTS:
        monkeypatch.setenv(name, "as it was")
        monkeypatch.delenv(name)
    return monkeypatch


def test_no_rank_is_frozen_while_another_has_its_group_still(tmp_path: Path) -> None:
    first, second = (occupancy_of(tmp_path, rank=rank, world=2)[0] for rank in (0, 1))
    folder = folder_of(gangs.plan_of(tmp_path, world=2, epoch=7).settings(0))
    going = threading.Thread(target=vacate, args=(first,))
    going.start()
    gangs.wait_until((folder / "off-7-0-0").exists, what="the first rank to let go")
    assert first.context.occupies
    vacate(second)
    going.join(30)
    assert not first.context.occupies and not second.context.occupies


def test_a_rank_whose_peer_hangs_in_its_group_is_not_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        occupancy_module, "file_barrier", lambda *given, **named: file_barrier(*given, **named, wait_s=0.0)
    )
    alone, _ = occupancy_of(tmp_path, world=2)
    with pytest.raises(GangBroken, match=r"ranks \[1\]"):
        vacate(alone)
    assert alone.context.occupies


def test_a_frozen_rank_that_leaves_for_good_makes_no_call_to_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a call would wait for ever: neither its page-lock is given up, nor torch's cache."""
    monkeypatch.setattr(occupancy_module, "discard", lambda _left: pytest.fail("all has left already"))
    occupancy, pages = occupancy_of(tmp_path)
    vacate(occupancy)
    occupancy.leave(None, tracked(), drop_state=True)
    assert pages.said == ["lock", "leave"]


def test_a_rank_that_leaves_while_it_runs_gives_its_page_lock_up(tmp_path: Path) -> None:
    occupancy, pages = occupancy_of(tmp_path)
    occupancy.leave(None, tracked(), drop_state=True)
    assert pages.said == ["lock", "unlock"]


def test_one_that_is_back_from_the_gpu_may_call_cuda_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    occupancy, pages = occupancy_of(tmp_path)
    vacate(occupancy)
    occupancy.come_back(None, gangs.plan_of(tmp_path, world=1, epoch=8).settings(0).lease)  # type: ignore[arg-type]
    occupancy.leave(None, tracked(), drop_state=True)
    assert pages.said == ["lock", "unlock"]


@pytest.mark.parametrize(("device", "locks"), [(GPU, True), (torch.device("cpu"), False)])
def test_host_memory_is_page_locked_where_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, locks: bool
) -> None:
    monkeypatch.setattr(occupancy_module, "_device", lambda _wish: device)
    settings = gangs.plan_of(tmp_path, world=1).settings(0)
    found = Occupancy(settings, lambda lease, rank: NoLock(), OwnMemory())
    assert isinstance(found.host._pages, PageLock) is locks


def test_the_rehearsal_has_page_locked_memory_and_gives_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages()
    monkeypatch.setattr(occupancy_module, "PageLock", lambda: pages)
    monkeypatch.setattr(occupancy_module, "_device", lambda _wish: GPU)
    context = Context()
    monkeypatch.setattr(context, "rehearse", lambda: pages.said.append("rehearse"))
    session = TrainingSession(gangs.plan_of(tmp_path, world=1).settings(0), SilentGate(), context=context)
    try:
        session.open()
        assert pages.said == ["lock", "rehearse", "unlock"]
        session.close(returned=False)
    finally:
        torch.use_deterministic_algorithms(False)


# ---- NCCL


@pytest.fixture
def on_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingSession]:
    """One rank of two, on what it takes for a GPU; it meets nobody."""
    settings = gangs.plan_of(tmp_path, world=2, epoch=7).settings(0)
    session = TrainingSession(settings, SilentGate(), context=Context())
    session._member.occupancy.device = GPU
    monkeypatch.setattr(Group, "meet", lambda **_how: SimpleNamespace(destroy=lambda: None))
    try:
        yield session
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_gang_on_gpus_pins_how_it_sums_and_keeps_nvls_off(on_gpu: TrainingSession, nccl: pytest.MonkeyPatch) -> None:
    on_gpu.open()
    occupancy = on_gpu._member.occupancy
    occupancy.form_group(7)
    assert occupancy.nccl == DEFAULTS and occupancy.hindrance(tracked()) == ""
    on_gpu.close(returned=False)


def test_what_an_author_has_set_stays_and_nvls_keeps_the_gang_from_being_frozen(
    on_gpu: TrainingSession, nccl: pytest.MonkeyPatch
) -> None:
    nccl.setenv("NCCL_NVLS_ENABLE", "1")
    nccl.setenv("NCCL_ALGO", "NVLS")
    on_gpu.open()
    occupancy = on_gpu._member.occupancy
    occupancy.form_group(7)
    assert occupancy.nccl == {"NCCL_NVLS_ENABLE": "1", "NCCL_ALGO": "NVLS", "NCCL_PROTO": "Simple"}
    assert "NCCL_NVLS_ENABLE=1" in occupancy.hindrance(tracked()) and "in_place: false" in occupancy.hindrance(
        tracked()
    )
    nccl.setenv("NCCL_NVLS_ENABLE", "0")
    occupancy.form_group(8)
    assert "NCCL_NVLS_ENABLE=1" in occupancy.hindrance(tracked()), "NCCL has looked once and does not look again"
    on_gpu.close(returned=False)


@pytest.mark.parametrize(
    ("device", "options"),
    [(torch.device("cpu"), {}), (GPU, {"in_place": False, "deterministic": False})],
)
def test_where_nothing_depends_on_it_nccl_chooses_by_itself(
    tmp_path: Path, nccl: pytest.MonkeyPatch, device: torch.device, options: dict[str, Any]
) -> None:
    session = TrainingSession(gangs.plan_of(tmp_path, world=2, options=options).settings(0), SilentGate())
    session._member.occupancy.device = device
    try:
        session.open()
        assert not [name for name in DEFAULTS if name in os.environ]
        session.close(returned=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_start_of_a_gang_is_recorded_with_the_settings_of_its_sums(tmp_path: Path) -> None:
    for epoch, nccl in ((7, None), (8, {"NCCL_ALGO": "Tree"})):
        plan = gangs.plan_of(tmp_path, world=1, epoch=epoch, steps=1)
        session = TrainingSession(plan.settings(0), SilentGate())
        session._member.occupancy.nccl = nccl
        try:
            with activate(session):
                tiny.train({"steps": epoch - 6})
        finally:
            torch.use_deterministic_algorithms(False)
    assert [line.nccl for line in gang_lines(tmp_path)] == [{}, {"NCCL_ALGO": "Tree"}]
