"""Whole nodes: what each is told, subject by subject, and the sentence at the end."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.bandwidth_check import BandwidthReading
from ebbtide.diagnostics.doctor.doctor_report import DoctorOptions, Report, examine
from ebbtide.diagnostics.doctor.findings import Verdict
from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from tests.platform.diagnostics import machines
from tests.platform.diagnostics.machines import GIB, SHARED, WORKING, Tree, machine

OK_MEMORY = {"memory.room": "ok", "memory.huge_pages": "ok", "memory.locked": "ok", "memory.io_uring": "ok"}
OK_FS = {"fs.type": "ok", "fs.use": "ok", "fs.direct": "ok", "fs.space": "ok"}


def never(_directory: Path, _size_bytes: int) -> BandwidthReading:
    raise AssertionError("nothing may be measured")


def look(node: Machine, wishes: DoctorOptions | None = None) -> Report:
    return examine(node, wishes or DoctorOptions(Path(SHARED)), measure=never)


def verdicts(report: Report) -> dict[str, str]:
    assert len({finding.id for finding in report.findings}) == len(report.findings)
    return {finding.id: finding.verdict.value for finding in report.findings}


def said(report: Report, identity: str) -> str:
    (finding,) = (finding for finding in report.findings if finding.id == identity)
    return f"{finding.what} | {finding.why} | {finding.remedy}"


def test_a_machine_without_a_gpu_hears_of_host_memory_alone(tmp_path: Path) -> None:
    report = look(machines.bare_cpu(tmp_path))
    assert verdicts(report) == {
        "gpu.devices": "missing",
        "rdma.cards": "ok",
        **OK_MEMORY,
        **OK_FS,
        "fs.type": "limited",
    }
    assert report.can_serve and report.path.mode is Mode.DIRECT
    assert report.path.sentence == (
        "Files in /shared/pool go past the page cache to host memory (O_DIRECT). "
        "Nothing that was looked at holds it back."
    )
    assert said(report, "fs.type").startswith(
        "ext4 at / on vda (virtual), of this node alone | only this node can load"
    )


def test_a_node_where_all_is_right_loads_straight_to_the_gpu(tmp_path: Path) -> None:
    report = look(machines.h200_with_nvidia_fs(tmp_path))
    found = verdicts(report)
    assert found.pop("p2pdma") == "missing", "it serves no NFS, and need not"
    assert set(found.values()) == {"ok"}
    assert set(found) == {
        *("gpu.devices", "gpu.driver", "gpu.nvml"),
        *("gds.nvidia_fs", "gds.libcufile", "gds.kvikio", "gds.probe"),
        *("iommu.state", "iommu.acs", "rdma.cards", "rdma.addresses"),
        *OK_MEMORY,
        *OK_FS,
    }
    assert report.path.mode is Mode.GDS
    assert report.path.sentence.startswith("Files in /shared/pool go straight to the GPU (cuFile, DMA).")
    assert "118 of 120 direct reads went well" in said(report, "gds.nvidia_fs")
    assert "rpcrdma" in said(report, "gds.nvidia_fs")
    assert "mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR) Ethernet (10.0.9.7)" in said(report, "rdma.cards")
    assert "driver 580.95.05 with the open kernel module" in said(report, "gpu.driver")
    assert "BAR1: 262144 MiB" in said(report, "gpu.nvml")


def test_a_local_drive_that_p2pdma_could_serve_lacks_one_setting(tmp_path: Path) -> None:
    report = look(machines.p2pdma_capable(tmp_path))
    found = verdicts(report)
    assert (found["p2pdma"], found["gds.nvidia_fs"], found["gds.probe"]) == ("limited", "missing", "missing")
    text = said(report, "p2pdma")
    assert text.startswith("P2PDMA is possible, and not set up: cufile.json does not ask for it |")
    assert '"use_pci_p2pdma": true' in text
    assert "xfs at /shared on nvme0n1 (nvme)" in said(report, "fs.type")
    assert report.path.mode is Mode.DIRECT and "(O_DIRECT), then to the GPU" in report.path.sentence
    assert "modprobe nvidia-fs" in report.path.sentence and "(gds.nvidia_fs)" in report.path.sentence


def test_with_that_setting_nothing_is_left_to_say(tmp_path: Path) -> None:
    node = machines.p2pdma_capable(tmp_path)
    Tree(tmp_path).file("/etc/cufile.json", '{"properties": {"use_pci_p2pdma": true}}')
    assert verdicts(look(node))["p2pdma"] == "ok"


def test_a_card_that_belongs_to_vfio_is_named_and_so_is_the_way_back(tmp_path: Path) -> None:
    report = look(machines.vfio_bound_nic(tmp_path))
    found = verdicts(report)
    assert found["iommu.vfio"] == found["iommu.state"] == found["gds.probe"] == "limited"
    assert found["rdma.cards"] == "missing"
    assert "bound to vfio-pci: 0000:18:00.0 (network card)" in said(report, "iommu.vfio")
    assert "echo 0000:18:00.0 > /sys/bus/pci/drivers/vfio-pci/unbind" in said(report, "iommu.vfio")
    assert "iommu=pt" in said(report, "iommu.state")
    assert "no RDMA network card is visible | nfs at /shared moves its data by RDMA" in said(report, "rdma.cards")
    assert report.can_serve and report.path.mode is Mode.DIRECT


def test_the_proprietary_module_is_the_first_thing_to_change(tmp_path: Path) -> None:
    report = look(machines.proprietary_module(tmp_path))
    found = verdicts(report)
    assert found["gpu.driver"] == "limited" and found["p2pdma"] == found["gds.nvidia_fs"] == "missing"
    assert found["gds.probe"] == "unknown", "without kvikio nothing was tried"
    assert "driver 550.127.05 with the proprietary kernel module" in said(report, "gpu.driver")
    assert "Faster would be: install the open kernel module" in report.path.sentence


def test_a_container_hears_what_its_host_must_give_it(tmp_path: Path) -> None:
    report = look(machines.container_without_udev(tmp_path), DoctorOptions(Path(SHARED), pool_bytes=GIB))
    found = verdicts(report)
    assert (found["gds.udev"], found["fs.type"], found["memory.locked"]) == ("missing", "limited", "limited")
    assert "mount /run/udev of the host" in said(report, "gds.udev")
    assert "the container's own layer" in said(report, "fs.type")
    assert "serves no overlay" in said(report, "gds.nvidia_fs")
    assert "2048 MiB available within the container's limit; the buffer pool wants 1024 MiB" in said(
        report, "memory.room"
    )
    assert "--ulimit memlock=-1" in said(report, "memory.locked")
    assert "site-packages/nvidia/cu13/lib/libcufile.so.0" in said(report, "gds.libcufile")


def test_addresses_from_before_the_boot_are_named_with_the_command_that_mends_them(tmp_path: Path) -> None:
    report = look(machines.nfs_with_stale_addresses(tmp_path))
    found = verdicts(report)
    assert found["rdma.addresses"] == found["rdma.cards"] == "limited"
    text = said(report, "rdma.addresses")
    assert "properties.rdma_dev_addr_list names 10.0.9.8; this node has 10.0.9.7, 10.0.10.7" in text
    assert "ebbtide doctor --write-cufile-json PATH" in text
    assert "without a link: mlx5_2/1" in said(report, "rdma.cards")


@pytest.mark.parametrize(
    ("reading", "what"),
    [
        (FilesystemReading(error="Permission denied (EACCES)"), "cannot be used: Permission denied (EACCES)"),
        (FilesystemReading(error="no answer within 10 s: the filesystem hangs"), "the filesystem hangs"),
        (FilesystemReading(failures=("rename: Operation not permitted (EPERM)",), free_bytes=GIB), "rename: Operation"),
    ],
)
def test_a_directory_that_cannot_be_used_is_the_first_thing_said(
    tmp_path: Path, reading: FilesystemReading, what: str
) -> None:
    node = machine(machines.common(tmp_path), filesystem=reading)
    report = look(node, DoctorOptions(Path(SHARED), probe_bytes=1 << 20))
    assert not report.can_serve and report.path.mode is None
    assert report.path.sentence.startswith("This node cannot serve: ") and what in report.path.sentence
    assert report.as_json()["can_serve"] is False


def test_without_a_directory_the_node_alone_is_looked_at(tmp_path: Path) -> None:
    report = look(machines.h200_with_nvidia_fs(tmp_path), DoctorOptions())
    assert verdicts(report)["fs.type"] == "unknown"
    assert report.can_serve and report.path.mode is None and "No directory was named" in report.path.sentence


def measured(gbps: float) -> Callable[[Path, int], BandwidthReading]:
    def measure(directory: Path, size_bytes: int) -> BandwidthReading:
        assert directory == Path(SHARED)
        write, read = (TransferReport({Mode.DIRECT: size_bytes}, size_bytes / rate / 1e9) for rate in (1.0, gbps))
        return BandwidthReading(write, read)

    return measure


@pytest.mark.parametrize(("expected", "verdict"), [(None, "ok"), (2.0, "ok"), (3.5, "limited")])
def test_speed_is_held_against_what_is_expected(tmp_path: Path, expected: float | None, verdict: str) -> None:
    wishes = DoctorOptions(Path(SHARED), probe_bytes=GIB, expect_gbps=expected)
    report = examine(machines.bare_cpu(tmp_path), wishes, measure=measured(3.0))
    assert verdicts(report)["bandwidth.read"] == verdict
    assert report.can_serve, "slow is not broken"
    assert "3.00 GB/s read (1.07 GB in 0.36 s, posix direct)" in said(report, "bandwidth.read")
    assert "a cache of the server" in said(report, "bandwidth.read")
    assert ("bandwidth.read" in report.path.sentence) is (verdict == "limited")


def test_nothing_is_measured_where_it_would_fill_the_filesystem(tmp_path: Path) -> None:
    small = FilesystemReading(alignment=512, free_bytes=GIB, total_bytes=2 * GIB)
    node = machine(machines.common(tmp_path), filesystem=small)
    report = look(node, DoctorOptions(Path(SHARED), probe_bytes=GIB))
    assert verdicts(report)["bandwidth.probe"] == "unknown"
    assert "more than half of the 1.07 GB that are free" in said(report, "bandwidth.probe")


@pytest.mark.parametrize(
    "node",
    [
        machines.bare_cpu,
        machines.h200_with_nvidia_fs,
        machines.p2pdma_capable,
        machines.vfio_bound_nic,
        machines.proprietary_module,
        machines.container_without_udev,
        machines.nfs_with_stale_addresses,
    ],
)
def test_every_node_gets_whole_findings_and_one_sentence(node: Callable[[Path], Machine], tmp_path: Path) -> None:
    report = look(node(tmp_path))
    assert report.path.sentence.endswith(".") and "\n" not in report.path.sentence
    for finding in report.findings:
        assert "\n" not in finding.what + finding.why + finding.remedy
        assert "  " not in finding.what + finding.why + finding.remedy, finding
        assert "None" not in finding.what + finding.why + finding.remedy, finding
        assert finding.verdict is Verdict.OK or (finding.why and finding.remedy)


def test_an_empty_machine_is_no_error(tmp_path: Path) -> None:
    report = look(machine(Tree(tmp_path), filesystem=WORKING))
    found = verdicts(report)
    assert found["memory.room"] == found["fs.type"] == "unknown"
    assert found["memory.huge_pages"] == "limited"
