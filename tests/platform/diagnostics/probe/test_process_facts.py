"""What a workload's processes show: made-up ones in a tree of files, and this very process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.fact import Fact
from ebbtide.diagnostics.probe.process_facts import process_facts, read_tree
from ebbtide.snapshot.tiers import Means
from tests.builders.helper import Processes
from tests.platform.diagnostics import machines


@pytest.fixture
def proc(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def facts(
    proc: Processes, *pids: int, gpus: int = 1, world: int = 2, told: dict[str, str] | None = None
) -> dict[str, Fact]:
    trees = [read_tree(machines.machine(proc), pid) for pid in pids]
    return {one.id: one for one in process_facts(trees, gpus=gpus, world=world, told=told)}


def test_a_tree_is_read_with_all_that_descends_from_it(proc: Processes) -> None:
    for pid, parent in [(10, 1), (11, 10), (12, 11), (13, 1), (14, 10)]:
        proc.process(pid, parent, name="a) name (with 7 8 9 brackets")
    found = read_tree(machines.machine(proc), 10)
    assert [process.pid for process in found] == [10, 11, 14, 12]
    assert {process.started for process in found} == {4711}
    assert {process.own_bytes for process in found} == {1024 * 1024}
    assert read_tree(machines.machine(proc), 99) == ()


def test_memory_is_that_of_all_processes(proc: Processes) -> None:
    proc.process(10, 1)
    proc.process(11, 10)
    assert facts(proc, 10)["process.memory"].value == 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("environ", "world", "gpus", "blocked"),
    [
        ("NCCL_NVLS_ENABLE=0", 2, 1, False),
        ("NCCL_NVLS_ENABLE=1", 2, 1, True),
        ("NCCL_NVLS_ENABLE=2", 2, 1, True),
        ("A=1", 2, 1, True),
        ("A=1", 1, 1, None),
        ("A=1", 2, 0, None),
    ],
)
def test_nvls_must_be_off_where_nccl_is_used(
    proc: Processes, environ: str, world: int, gpus: int, blocked: bool | None
) -> None:
    proc.process(10, 1, environ=environ)
    nvls = facts(proc, 10, world=world, gpus=gpus).get("nccl.nvls")
    assert (None if nvls is None else bool(nvls.hinders)) is blocked
    if blocked:
        assert nvls is not None and nvls.remedy == "set NCCL_NVLS_ENABLE=0 in the job's environment"
        assert nvls.where == "/proc/10/environ"


def test_one_rank_with_nvls_is_enough(proc: Processes) -> None:
    proc.process(10, 1, environ="NCCL_NVLS_ENABLE=0")
    proc.process(20, 1, environ="A=1")
    assert facts(proc, 10, 20)["nccl.nvls"].where == "/proc/20/environ"


@pytest.mark.parametrize(("environ", "blocked"), [("A=1", False), ("NCCL_NVLS_ENABLE=1", True)])
def test_what_ranks_set_by_themselves_counts_unless_they_were_started_with_something_else(
    proc: Processes, environ: str, blocked: bool
) -> None:
    proc.process(10, 1, environ=environ)
    nvls = facts(proc, 10, told={"NCCL_NVLS_ENABLE": "0"})["nccl.nvls"]
    assert bool(nvls.hinders) is blocked and ("default" in nvls.where) is not blocked


def test_a_process_of_another_user_is_said_to_be_one(proc: Processes) -> None:
    proc.process(10, 1, environ=None)
    foreign = facts(proc, 10, gpus=0)["process.foreign"]
    assert foreign.hinders == {Means.DRIVER, Means.CRIU} and foreign.where == "/proc/10/environ"


def test_managed_memory_that_is_asked_for_cannot_be_frozen_and_what_may_use_it_is_told(proc: Processes) -> None:
    proc.process(10, 1)
    assert "gpu.managed" not in facts(proc, 10)
    proc.file("/proc/10/maps", "7f00-7f10 r-xp 0 0:1 7  /venv/bitsandbytes/libbitsandbytes_cuda128.so\n")
    may = facts(proc, 10)["gpu.managed"]
    assert not may.hinders and "libbitsandbytes_cuda128.so" in may.what
    proc.process(11, 10, environ="TF_FORCE_UNIFIED_MEMORY=1")
    assert facts(proc, 10)["gpu.managed"].hinders == {Means.DRIVER}


def test_gpu_memory_that_a_ranks_processes_may_share_is_not_freed(proc: Processes) -> None:
    for pid, parent in [(10, 1), (11, 10)]:
        proc.process(pid, parent)
        proc.opens(pid, 3, "/dev/nvidiactl")
    proc.opens(10, 4, "/dev/nvidia0")
    assert "gpu.ipc" not in facts(proc, 10)
    proc.opens(11, 4, "/dev/nvidia0")
    assert facts(proc, 10)["gpu.ipc"].hinders == {Means.DRIVER}


def test_this_process_can_be_read() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"MARK": "x"})
    try:
        found = {process.pid: process for process in read_tree(Machine(), os.getpid())}
        assert found[os.getpid()].own_bytes > 1 << 20
        assert found[child.pid].parent == os.getpid()
    finally:
        child.communicate(b"\n")
