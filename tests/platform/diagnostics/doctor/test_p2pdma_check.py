"""P2PDMA: each condition missed by itself is named with its own remedy."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gpu_check import Flavour, GpuReading
from ebbtide.diagnostics.doctor.p2pdma_check import P2pdmaReading, judge_p2pdma, read_p2pdma
from ebbtide.diagnostics.host.mount import Device, Mount
from tests.platform.diagnostics.machines import Tree, machine

KEYS = "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"
GPU = GpuReading(models=("NVIDIA H200",), version="570.86", flavour=Flavour.OPEN, registry=KEYS)
READY = P2pdmaReading("6.8.0-45-generic", "x86_64", compiled=True, asked_for=True, multipath=False)
LOCAL = Mount("/shared", "xfs", "/dev/nvme0n1", {}, Device("nvme0n1", "nvme"))


def judged(reading: P2pdmaReading = READY, gpu: GpuReading = GPU, mount: Mount | None = LOCAL) -> Finding:
    (finding,) = judge_p2pdma(reading, gpu, mount)
    return finding


def test_all_conditions_together_are_in_order() -> None:
    assert judged().verdict is Verdict.OK
    assert judged().what.endswith("boot with nokaslr (a known issue)")
    assert judged(replace(READY, kaslr=False)).what.endswith("with local NVMe drives")
    assert judged(mount=None).verdict is Verdict.OK
    assert judge_p2pdma(READY, GpuReading(), LOCAL) == []


@pytest.mark.parametrize(
    ("reading", "gpu", "what"),
    [
        (replace(READY, kernel="5.15.0-100-generic"), GPU, "kernel 5.15.0-100-generic is older than 6.2"),
        (replace(READY, kernel="6.1.99"), GPU, "is older than 6.2"),
        (replace(READY, compiled=False), GPU, "without CONFIG_PCI_P2PDMA"),
        (READY, replace(GPU, flavour=Flavour.PROPRIETARY), "proprietary"),
        (READY, replace(GPU, version="560.35"), "driver 560.35 is older than 565"),
        (READY, replace(GPU, models=("NVIDIA GH200 480GB",)), "Grace is not supported"),
        (READY, replace(GPU, models=("NVIDIA GeForce RTX 5090",)), "is not among the supported GPUs"),
        (READY, replace(GPU, models=("NVIDIA L400",)), "is not among the supported GPUs"),
    ],
)
def test_what_rules_it_out(reading: P2pdmaReading, gpu: GpuReading, what: str) -> None:
    finding = judged(reading, gpu)
    assert finding.verdict is Verdict.MISSING and what in finding.what and not finding.broken


@pytest.mark.parametrize(
    ("mount", "what"),
    [
        (replace(LOCAL, device=Device("md0", "raid0")), "md0 is a RAID0"),
        (replace(LOCAL, device=Device("nvme1n1", "nvme-of")), "nvme1n1 is an NVMe drive over a fabric"),
        (replace(LOCAL, device=Device("dm-0", "mapped")), "a mapped device"),
        (replace(LOCAL, device=Device("vda", "virtual")), "vda is no NVMe drive"),
        (replace(LOCAL, type="nfs", device=None), "it is nfs"),
    ],
)
def test_what_it_does_not_serve(mount: Mount, what: str) -> None:
    finding = judged(mount=mount)
    assert finding.verdict is Verdict.MISSING and what in finding.what
    assert "RAID0, NVMe over fabrics and Grace are not supported" in finding.why


@pytest.mark.parametrize(
    ("reading", "gpu", "what", "remedy"),
    [
        (replace(READY, asked_for=False), GPU, "cufile.json does not ask for it", "use_pci_p2pdma"),
        (replace(READY, multipath=True), GPU, "multipath on", "nvme_core multipath=N"),
        (
            READY,
            replace(GPU, registry="RMForceStaticBar1=1"),
            "without RmForceDisableIomapWC=1",
            "NVreg_RegistryDwords",
        ),
    ],
)
def test_what_is_left_to_set(reading: P2pdmaReading, gpu: GpuReading, what: str, remedy: str) -> None:
    finding = judged(reading, gpu)
    assert finding.verdict is Verdict.LIMITED and what in finding.what and remedy in finding.remedy


def test_on_arm_no_registry_key_and_no_multipath_is_asked_for() -> None:
    arm = replace(READY, architecture="aarch64", multipath=True)
    assert judged(arm, replace(GPU, registry="")).verdict is Verdict.OK


def test_a_kernel_that_does_not_tell_is_not_judged() -> None:
    assert judged(replace(READY, compiled=None)).verdict is Verdict.UNKNOWN


def test_the_kernel_s_configuration_is_looked_for_in_four_places(tmp_path: Path) -> None:
    kernel = "6.8.0-45-generic"
    for number, (path, content) in enumerate(
        {
            "/proc/config.gz": gzip.compress(b"CONFIG_PCI_P2PDMA=y\n"),
            f"/boot/config-{kernel}": b"CONFIG_X=y\nCONFIG_PCI_P2PDMA=y\n",
            f"/lib/modules/{kernel}/config": b"CONFIG_PCI_P2PDMA=y\n",
            "/proc/kallsyms": b"0000000000000000 d p2pdma_pgmap_ops\n",
        }.items()
    ):
        tree = Tree(tmp_path / str(number))
        tree.file(path, content)
        assert read_p2pdma(machine(tree), {}).compiled is True, path
    tree = Tree(tmp_path / "without")
    tree.file("/proc/config.gz", gzip.compress(b"# CONFIG_PCI_P2PDMA is not set\n"))
    assert read_p2pdma(machine(tree), {}).compiled is False
    tree.file("/proc/config.gz", b"no gzip")
    assert read_p2pdma(machine(tree), {}).compiled is None


@pytest.mark.parametrize(
    ("variable", "setting", "asked"), [("", True, True), ("false", True, False), ("1", False, True)]
)
def test_the_environment_overrules_the_settings_file(tmp_path: Path, variable: str, setting: bool, asked: bool) -> None:
    node = replace(machine(Tree(tmp_path)), environ={"CUFILE_USE_PCIP2PDMA": variable})
    assert read_p2pdma(node, {"properties": {"use_pci_p2pdma": setting}}).asked_for is asked
