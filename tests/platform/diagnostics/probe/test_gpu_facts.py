"""What the driver and the modes of a node's GPUs allow."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.host.machine_reader import Machine, Uname
from ebbtide.diagnostics.probe.fact import Fact
from ebbtide.diagnostics.probe.gpu_facts import gpu_facts
from ebbtide.snapshot.driver.cuda.driver_defects import defect
from ebbtide.snapshot.driver.port import Capabilities
from ebbtide.snapshot.tiers import Means
from tests.platform.diagnostics import machines


def node(root: Path, version: str) -> machines.Tree:
    tree = machines.Tree(root)
    tree.gpu(version=version)
    return tree


def about(machine: Machine, said: Capabilities | None = None) -> dict[str, Fact]:
    return {fact.id: fact for fact in gpu_facts(machine, said)[1]}


def blocks(fact: Fact) -> bool:
    return Means.DRIVER in fact.hinders


def test_a_node_without_a_gpu_says_only_that(tmp_path: Path) -> None:
    count, facts = gpu_facts(machines.bare_cpu(tmp_path))
    assert count == 0 and [fact.id for fact in facts] == ["gpu.devices"] and not facts[0].hinders


@pytest.mark.parametrize(
    ("version", "holds"),
    [
        ("550.54.14", False),
        ("565.57.01", False),
        ("570.86.10", True),
        ("580.95.05", True),
        ("595.71.05", False),
        ("610.57.04", False),
    ],
)
def test_the_branch_of_the_driver_decides(tmp_path: Path, version: str, holds: bool) -> None:
    facts = about(machines.machine(node(tmp_path, version)))
    assert any(blocks(fact) for fact in facts.values()) is not holds
    assert facts["gpu.driver"].value == version and facts["gpu.driver"].where == "/proc/driver/nvidia/version"


def test_the_drivers_own_word_counts_more_than_its_number(tmp_path: Path) -> None:
    machine = machines.machine(node(tmp_path, "580.95.05"))
    refused = about(machine, Capabilities("CUDA 13.0", "this build leaves it out"))
    assert blocks(refused["gpu.driver"]) and "this build leaves it out" in refused["gpu.driver"].what
    assert not blocks(about(machine, Capabilities("CUDA 13.0"))["gpu.driver"])


def test_a_gpu_in_mig_mode_cannot_be_frozen(tmp_path: Path) -> None:
    tree = node(tmp_path, "580.95.05")
    tree.file("/proc/driver/nvidia/capabilities/gpu0/mig/config")
    assert "gpu.mig" not in about(machines.machine(tree))
    tree.file("/proc/driver/nvidia/capabilities/gpu0/mig/gi3/access")
    mig = about(machines.machine(tree))["gpu.mig"]
    assert blocks(mig) and mig.remedy == "switch MIG off: nvidia-smi -mig 0"


def test_clients_of_mps_cannot_be_frozen(tmp_path: Path) -> None:
    tree = node(tmp_path, "580.95.05")
    tree.file("/proc/77/comm", "nvidia-cuda-mps\n")
    assert blocks(about(machines.machine(tree))["gpu.mps"])


@pytest.mark.parametrize("version", ["595.71.05", "610.57.04"])
def test_a_driver_that_harms_what_it_freezes_is_told_of_once_and_with_what_mends_it(
    tmp_path: Path, version: str
) -> None:
    """The helper refuses it too, and then says the same."""
    machine = machines.machine(node(tmp_path, version))
    for said in (None, Capabilities("", defect(version)), Capabilities("CUDA 13.2")):
        blocking = {name: fact.remedy for name, fact in about(machine, said).items() if blocks(fact)}
        assert blocking == {"gpu.defect": "install a later driver"}


def test_aarch64_is_not_promised(tmp_path: Path) -> None:
    machine = replace(machines.machine(node(tmp_path, "580.95.05")), uname=lambda: Uname("6.8", "aarch64"))
    assert blocks(about(machine)["gpu.arch"])
