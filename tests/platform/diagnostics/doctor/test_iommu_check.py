"""IOMMU, ACS and VFIO."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.diagnostics.doctor.findings import Verdict
from ebbtide.diagnostics.doctor.gpu_check import GpuReading
from ebbtide.diagnostics.doctor.iommu_check import IommuReading, judge_iommu, read_iommu, redirects
from ebbtide.diagnostics.host.machine_reader import Uname
from tests.examples import examples
from tests.platform.diagnostics.machines import BRIDGE, DRIVE, GPU, NIC, Tree, machine

WITH_GPU = GpuReading(models=("NVIDIA H200",))


def space(control: int, *, size: int = 4096, after: int = 0x140) -> bytes:
    """A PCI configuration space with advanced error reporting first and ACS after it."""
    data = bytearray(max(size, after + 8))
    struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | after << 20)
    struct.pack_into("<IHH", data, after, 0x000D | 1 << 16, 0x1F, control)
    return bytes(data[:size])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (space(0x1D), True),
        (space(0x04), True),
        (space(0x01), False),  # source validation alone redirects nothing
        (space(0x00), False),
        (space(0x1D, size=256), False),  # no extended capabilities
        (space(0x1D, size=0x144), False),  # cut off in the middle
        (bytes(4096), False),
        (b"\xff" * 4096, False),  # the device does not answer
        (b"", False),
    ],
)
def test_acs_is_read_from_the_configuration_space(data: bytes, expected: bool) -> None:
    assert redirects(data) is expected


def test_capabilities_that_point_in_a_circle_end() -> None:
    data = bytearray(4096)
    struct.pack_into("<I", data, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)
    assert redirects(bytes(data)) is False


@settings(deadline=None, max_examples=examples(60))
@given(st.binary(min_size=0x100, max_size=0x200))
def test_no_space_breaks_the_reader(data: bytes) -> None:
    redirects(data)


def tree_with(tmp_path: Path, cmdline: str, *, unit: bool = True, domain: str = "") -> Tree:
    tree = Tree(tmp_path)
    tree.file("/proc/cmdline", cmdline)
    if unit:
        tree.directory("/sys/class/iommu/dmar0")
    tree.pci(GPU, "0x10de", "0x030200", "nvidia", domain=domain)
    tree.pci(DRIVE, "0x144d", "0x010802", "nvme", domain=domain)
    tree.pci(BRIDGE, "0x1000", "0x060400", "pcieport", domain="DMA")
    return tree


@pytest.mark.parametrize(
    ("cmdline", "unit", "domain", "verdict"),
    [
        ("", False, "", Verdict.OK),
        ("iommu=pt", True, "", Verdict.OK),
        ("intel_iommu=off", True, "", Verdict.OK),
        ("intel_iommu=on", True, "", Verdict.LIMITED),
        ("", True, "", Verdict.LIMITED),
        ("", True, "identity", Verdict.OK),
        ("", True, "DMA-FQ", Verdict.LIMITED),
        ("iommu=pt", True, "DMA", Verdict.LIMITED),  # what the groups say is what is so
    ],
)
def test_whether_addresses_are_translated(
    tmp_path: Path, cmdline: str, unit: bool, domain: str, verdict: Verdict
) -> None:
    reading = read_iommu(machine(tree_with(tmp_path, cmdline, unit=unit, domain=domain)))
    state = judge_iommu(reading, WITH_GPU)[0]
    assert (state.id, state.verdict) == ("iommu.state", verdict)


def test_on_arm_it_may_translate(tmp_path: Path) -> None:
    node = replace(machine(tree_with(tmp_path, "")), uname=lambda: Uname("6.8.0", "aarch64"))
    assert judge_iommu(read_iommu(node), WITH_GPU)[0].verdict is Verdict.OK


def test_a_virtual_machine_cannot_see_its_host_s() -> None:
    finding = judge_iommu(IommuReading(virtual=True), WITH_GPU)[0]
    assert finding.what == "no IOMMU is in the way (this is a virtual machine: its host may have one)"


def test_bridges_are_read_from_their_configuration_or_from_nvidia_fs(tmp_path: Path) -> None:
    tree = tree_with(tmp_path, "")
    place = f"/sys/bus/pci/devices/{BRIDGE}/config"
    assert judge_iommu(read_iommu(machine(tree)), WITH_GPU)[1].verdict is Verdict.UNKNOWN
    tree.file(place, space(0x1D)[:64])  # what others than root may read
    finding = judge_iommu(read_iommu(machine(tree)), WITH_GPU)[1]
    assert (finding.id, finding.verdict) == ("iommu.acs", Verdict.UNKNOWN) and "as root" in finding.remedy
    tree.file(place, space(0x1D))
    finding = judge_iommu(read_iommu(machine(tree)), WITH_GPU)[1]
    assert finding.verdict is Verdict.LIMITED and finding.values == {"bridges": [BRIDGE]}
    tree.file("/proc/driver/nvidia-fs/bridges", "")
    assert judge_iommu(read_iommu(machine(tree)), WITH_GPU)[1].verdict is Verdict.OK


def test_devices_of_vfio_are_named_also_without_a_gpu(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.pci(NIC, "0x15b3", "0x020000", "vfio-pci")
    tree.pci("0000:19:00.0", "0x1af4", "0xff0000", "vfio-pci")
    (finding,) = judge_iommu(read_iommu(machine(tree)), GpuReading())
    assert finding.what == "bound to vfio-pci: 0000:18:00.0 (network card), 0000:19:00.0 (another device)"
    assert judge_iommu(IommuReading(), GpuReading()) == []
