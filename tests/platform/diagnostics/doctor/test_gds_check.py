"""The pieces of GPUDirect Storage, and what each one's absence is called."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gds_check import GdsReading, driver_under, judge_gds, parse_stats, read_gds
from ebbtide.diagnostics.doctor.gpu_check import Flavour, GpuReading
from ebbtide.diagnostics.host.mount import Device, Mount
from ebbtide.storage.device.gds_probe import GdsVerdict
from ebbtide.storage.transport.transfer_report import Mode
from tests.platform.diagnostics.machines import STATS, Tree, machine

H200 = GpuReading(models=("NVIDIA H200",), version="580.95.05", flavour=Flavour.OPEN)
NFS = Mount("/shared", "nfs", "server:/x", {"proto": "rdma"})


def found(reading: GdsReading, mount: Mount | None = NFS, gpu: GpuReading = H200) -> dict[str, Finding]:
    return {finding.id: finding for finding in judge_gds(reading, gpu, mount)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STATS.format(state="Enabled"), "118 of 120 direct reads went well since it was loaded"),
        (STATS.format(state="Disabled"), "its counters are off"),
        ("IO stats: Enabled, peer IO stats: Disabled\nsomething new\n", "its counters are on"),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_counters_are_put_into_words(text: str, words: str) -> None:
    assert parse_stats(text) == words


@pytest.mark.parametrize(
    ("mount", "driver"),
    [
        (NFS, "rpcrdma"),
        (Mount("/", "lustre", "", {}), "lnet"),
        (Mount("/", "ext4", "", {}, Device("nvme0n1", "nvme")), "nvme"),
        (Mount("/", "xfs", "", {}, Device("nvme0n1", "nvme-of")), "nvme_rdma"),
        (Mount("/", "ext4", "", {}, Device("vda", "virtual")), None),
        (Mount("/", "ext4", "", {}), None),
        (Mount("/", "btrfs", "", {}, Device("nvme0n1", "nvme")), None),
        (Mount("/", "tmpfs", "", {}), None),
        (Mount("/", "overlay", "", {}), None),
    ],
)
def test_each_filesystem_has_its_driver_or_is_never_served(mount: Mount, driver: str | None) -> None:
    assert driver_under(mount) == driver


def test_without_a_gpu_nothing_is_said() -> None:
    assert found(GdsReading(), gpu=GpuReading()) == {}


def test_a_driver_that_has_not_registered_is_named() -> None:
    reading = GdsReading(module_loaded=True, version="2.26", drivers=("nvme",))
    finding = found(reading)["gds.nvidia_fs"]
    assert finding.verdict is Verdict.LIMITED
    assert "rpcrdma, the driver under this directory (nfs), has not registered" in finding.what
    assert "MLNX_OFED" in finding.remedy
    assert found(reading, None)["gds.nvidia_fs"].verdict is Verdict.OK


def test_with_the_proprietary_module_loading_nvidia_fs_is_the_second_step() -> None:
    gpu = GpuReading(models=("NVIDIA H200",), flavour=Flavour.PROPRIETARY)
    assert found(GdsReading(), gpu=gpu)["gds.nvidia_fs"].remedy.endswith("once the driver runs its open kernel module")


@pytest.mark.parametrize(
    ("probe", "verdict", "word"),
    [
        (None, Verdict.UNKNOWN, "install kvikio"),
        (GdsVerdict(True, Mode.GDS, "it went"), Verdict.OK, ""),
        (GdsVerdict(False, Mode.COMPAT, "no RDMA device"), Verdict.LIMITED, "one of them is the reason"),
        (GdsVerdict(False, None, "the probe hung at 'open'"), Verdict.MISSING, "leaves cuFile alone"),
        (GdsVerdict(False, None, "no libcuda"), Verdict.MISSING, "one of them is the reason"),
    ],
)
def test_the_probe_has_the_last_word(probe: GdsVerdict | None, verdict: Verdict, word: str) -> None:
    finding = found(GdsReading(probe=probe))["gds.probe"]
    assert finding.verdict is verdict and word in finding.remedy
    assert not finding.broken, "files are then loaded through host memory"


def test_settings_that_matter_are_read(tmp_path: Path) -> None:
    node = machine(Tree(tmp_path))
    config = {"properties": {"allow_compat_mode": False}}
    reading = read_gds(node, config, directory=None, probe_s=1.0)
    assert (reading.compat_allowed, reading.compat_forced, reading.udev_readable) == (False, False, False)
    assert (reading.libcufile, reading.kvikio, reading.probe) == (None, False, None)


def test_forcing_copies_by_the_environment_is_found() -> None:
    assert found(GdsReading(compat_forced=True))["gds.forced"].remedy == "unset CUFILE_FORCE_COMPAT_MODE"


def test_a_library_on_the_library_path_is_found_first(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.file("/usr/lib64/libcufile.so.0")
    tree.file("/mine/libcufile.so.0.1")
    node = machine(tree)
    assert read_gds(node, {}, directory=None, probe_s=0).libcufile == "/usr/lib64/libcufile.so.0"
    mine = replace(node, environ={"LD_LIBRARY_PATH": f":{tmp_path}/mine"})
    assert read_gds(mine, {}, directory=None, probe_s=0).libcufile == f"{tmp_path}/mine/libcufile.so.0.1"
