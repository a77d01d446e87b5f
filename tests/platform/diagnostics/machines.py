"""Nodes of several kinds, each a tree of what /proc, /sys and /etc say there, in a temporary directory.

Texts are those of real nodes, shortened: the formats are what the readers must stand.
"""

import errno
import gzip
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.diagnostics.host.machine_reader import Machine, Uname
from ebbtide.diagnostics.host.nvml_reading import NvmlReading
from ebbtide.storage.device.gds_probe import GdsVerdict
from ebbtide.storage.transport.transfer_report import Mode

SHARED = "/shared/pool"
GPU, NIC, DRIVE, BRIDGE = "0000:17:00.0", "0000:18:00.0", "0000:02:00.0", "0000:15:01.0"
MIB, GIB = 1 << 20, 1 << 30

OPEN = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (dvs-builder@U22)
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
PROPRIETARY = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Oct  8 16:30:26 UTC 2024
GCC version:  gcc version 13.3.0
"""
GPU_INFORMATION = """Model: \t\t {model}
IRQ:   \t\t 120
GPU UUID: \t GPU-aaaa
Bus Location: \t {address}
"""
PARAMS = """ResmanDebugLevel: 4294967295
OpenRmEnableUnsupportedGpus: 1
RegistryDwords: "{registry}"
RegistryDwordsPerDevice: ""
"""
STATS = """GDS Version: 1.14.0.30
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.26.6)
Mellanox PeerDirect Supported: True
IO stats: {state}, peer IO stats: Disabled
Logging level: info

Active Shadow-Buffer (MiB): 0
Active Process: 0
Reads\t\t\t\t: n=120 ok=118 err=2 readMiB=1888 io_state_err=0
Writes\t\t\t\t: n=4 ok=4 err=0 writeMiB=64 io_state_err=0 pg-cache=0 pg-cache-fail=0 pg-cache-eio=0
"""
MEMINFO = "MemTotal:       1056000000 kB\nMemFree:        900000000 kB\nMemAvailable:   {available} kB\n"
MOUNTS = """22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
"""
WORKING = FilesystemReading(
    alignment=512, stated=(512, 512), free_bytes=500 * GIB, total_bytes=1000 * GIB, free_files=10**8
)


class Tree:
    """A root directory to fill."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, content: str | bytes = "") -> None:
        """Write a file, with what is above it."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, path: str, target: str) -> None:
        """Make a link to ``target``, absolute within the tree."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(self.root / target.lstrip("/"), place.parent))

    def directory(self, path: str) -> None:
        """Make a directory."""
        (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def pci(self, address: str, vendor: str, code: str, driver: str | None = None, *, domain: str = "") -> None:
        """A PCI device."""
        place = f"/sys/bus/pci/devices/{address}"
        self.file(f"{place}/vendor", f"{vendor}\n")
        self.file(f"{place}/class", f"{code}\n")
        if driver is not None:
            self.directory(f"/sys/bus/pci/drivers/{driver}")
            self.link(f"{place}/driver", f"/sys/bus/pci/drivers/{driver}")
        if domain:
            self.file(f"/sys/kernel/iommu_groups/{address}/type", f"{domain}\n")
            self.link(f"{place}/iommu_group", f"/sys/kernel/iommu_groups/{address}")

    def gpu(self, *, version: str, text: str = OPEN, model: str = "NVIDIA H200", registry: str = "") -> None:
        """One GPU with its driver."""
        self.file("/proc/driver/nvidia/version", text.format(version=version))
        self.file("/proc/driver/nvidia/params", PARAMS.format(registry=registry))
        self.file(f"/proc/driver/nvidia/gpus/{GPU}/information", GPU_INFORMATION.format(model=model, address=GPU))
        self.pci(GPU, "0x10de", "0x030200", "nvidia")

    def nvidia_fs(self, *drivers: str, state: str = "Disabled") -> None:
        """nvidia-fs, with the drivers that registered."""
        self.directory("/sys/module/nvidia_fs/parameters")
        self.file("/proc/driver/nvidia-fs/version", "version: 2.26\n")
        self.file("/proc/driver/nvidia-fs/stats", STATS.format(state=state))
        self.file("/proc/driver/nvidia-fs/modules", "".join(f"{name}: 1.0\n" for name in drivers))
        self.file("/proc/driver/nvidia-fs/bridges")

    def card(self, device: str, *, interface: str, gid: str = "", state: str = "4: ACTIVE", number: int = 1) -> None:
        """An RDMA card with one port."""
        place = f"/sys/class/infiniband/{device}"
        self.directory(f"{place}/device/net/{interface}")
        port = f"{place}/ports/{number}"
        self.file(f"{port}/state", f"{state}\n")
        self.file(f"{port}/rate", "400 Gb/sec (4X NDR)\n")
        self.file(f"{port}/link_layer", "Ethernet\n")
        self.file(f"{port}/gids/0", "fe80:0000:0000:0000:0a00:27ff:fe4e:66a1\n")
        self.file(f"{port}/gids/1", f"{gid or '0000:0000:0000:0000:0000:0000:0000:0000'}\n")

    def mounts(self, line: str = "") -> None:
        """The table of mounts, with one line more."""
        self.file("/proc/self/mountinfo", MOUNTS + line)


def machine(
    tree: Tree,
    *,
    filesystem: FilesystemReading = WORKING,
    kernel: str = "6.8.0-45-generic",
    kvikio: bool = False,
    probe: GdsVerdict | None = None,
    addresses: Mapping[str, tuple[str, ...]] | None = None,
    nvml: NvmlReading | None = None,
) -> Machine:
    """The tree's machine. A probe that must not run fails the test."""

    def probe_gds(_deadline_s: float, _directory: Path | None) -> GdsVerdict:
        assert probe is not None, "nothing here may ask cuFile"
        return probe

    importable: Callable[[str], bool] = lambda name: kvikio and name == "kvikio"  # noqa: E731
    return Machine(
        root=tree.root,
        environ={},
        site_packages=(tree.root / "site-packages",),
        uname=lambda: Uname(kernel, "x86_64"),
        addresses=lambda: addresses or {},
        memlock_bytes=lambda: None,
        io_uring_errno=lambda: errno.EFAULT,
        importable=importable,
        nvml=lambda: nvml or NvmlReading(error="the Python package nvidia-ml-py is not installed"),
        probe_gds=probe_gds,
        probe_filesystem=lambda _directory: filesystem,
    )


def common(root: Path) -> Tree:
    """What every node has."""
    tree = Tree(root)
    tree.mounts()
    tree.file("/proc/meminfo", MEMINFO.format(available=900_000_000))
    tree.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/vda ro\n")
    tree.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    tree.directory("/run/udev")
    return tree


def bare_cpu(root: Path) -> Machine:
    """A virtual machine without a GPU; the directory lies on its root filesystem."""
    tree = common(root)
    tree.directory("/sys/devices/pci0/virtio0/block/vda")
    tree.link("/sys/dev/block/254:0", "/sys/devices/pci0/virtio0/block/vda")
    return machine(tree)


def h200_with_nvidia_fs(root: Path) -> Machine:
    """All is as it should be, over NFS with RDMA."""
    tree = common(root)
    tree.gpu(version="580.95.05")
    tree.nvidia_fs("nvme", "rpcrdma", state="Enabled")
    tree.mounts(
        f"60 27 0:51 / /shared rw - nfs 10.0.9.1:/pool rw,vers=3,proto=rdma,nconnect=16,rsize={MIB},wsize={MIB}\n"
    )
    tree.card("mlx5_0", interface="ib0", gid="0000:0000:0000:0000:0000:ffff:0a00:0907")
    tree.file("/etc/cufile.json", '{"properties": {"rdma_dev_addr_list": ["10.0.9.7"]}} // per node\n')
    tree.file("/usr/local/cuda-12.9/targets/x86_64-linux/lib/libcufile.so.0")
    probe = GdsVerdict(True, Mode.GDS, "1048576 bytes went from the GPU to /shared/pool and back")
    nvml = NvmlReading(("NVIDIA H200",), "580.95.05", (256 * GIB,))
    return machine(tree, kvikio=True, probe=probe, addresses={"ib0": ("10.0.9.7",)}, nvml=nvml)


def p2pdma_capable(root: Path) -> Machine:
    """No nvidia-fs; the directory is xfs on a local NVMe drive, and nobody has switched P2PDMA on."""
    tree = common(root)
    tree.gpu(version="570.86.10", registry="RMForceStaticBar1=1;RmForceDisableIomapWC=1;")
    tree.file("/proc/config.gz", gzip.compress(b"CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n"))
    tree.file("/sys/module/nvme_core/parameters/multipath", "N\n")
    tree.file("/sys/class/nvme/nvme0/transport", "pcie\n")
    tree.file("/sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n")
    tree.link("/sys/dev/block/259:1", "/sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1")
    tree.mounts("61 27 259:1 / /shared rw - xfs /dev/nvme0n1p1 rw,noquota\n")
    tree.file("/etc/cufile.json", '{"properties": {"use_pci_p2pdma": false}}')
    tree.file("/usr/lib/x86_64-linux-gnu/libcufile.so.0")
    why = "RuntimeError: Unable to open GDS file driver: nvidia-fs driver is not loaded"
    return machine(tree, kvikio=True, probe=GdsVerdict(False, None, why))


def vfio_bound_nic(root: Path) -> Machine:
    """The card that should carry the storage traffic belongs to vfio-pci, and the IOMMU translates."""
    made = h200_with_nvidia_fs(root)
    tree = Tree(root)
    for place in sorted((root / "sys/class/infiniband").rglob("*"), reverse=True):
        place.rmdir() if place.is_dir() else place.unlink()
    tree.pci(NIC, "0x15b3", "0x020700", "vfio-pci", domain="DMA-FQ")
    tree.directory("/sys/class/iommu/dmar0")
    why = "the cuFile driver opens, but a direct transfer in /shared/pool fails: no RDMA device"
    return replace(made, addresses=dict, probe_gds=lambda _deadline_s, _directory: GdsVerdict(False, Mode.COMPAT, why))


def proprietary_module(root: Path) -> Machine:
    """An H100 whose driver runs the proprietary kernel module."""
    tree = common(root)
    tree.gpu(version="550.127.05", text=PROPRIETARY, model="NVIDIA H100 80GB HBM3")
    tree.file("/boot/config-6.8.0-45-generic", "CONFIG_PCI_P2PDMA=y\n")
    return machine(tree)


def container_without_udev(root: Path) -> Machine:
    """A container on a good node: no /run/udev, an overlay as directory, 4 GiB, 64 KiB to lock."""
    tree = common(root)
    (root / "run/udev").rmdir()
    tree.gpu(version="580.95.05")
    tree.nvidia_fs("nvme")
    tree.mounts("62 27 0:60 / /shared rw - overlay overlay rw,lowerdir=/a,upperdir=/b\n")
    tree.file("/proc/self/cgroup", "0::/\n")
    tree.file("/sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    tree.file("/sys/fs/cgroup/memory.current", f"{3 * GIB}\n")
    tree.file("/sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {1 * GIB}\n")
    tree.file("/proc/self/status", "Name:\tpython\nCapEff:\t00000000a80425fb\n")
    tree.file("/site-packages/nvidia/cu13/lib/libcufile.so.0")
    probe = GdsVerdict(False, None, "/run/udev cannot be read, and kvikio then does not use cuFile")
    return replace(machine(tree, kvikio=True, probe=probe), memlock_bytes=lambda: 65536)


def nfs_with_stale_addresses(root: Path) -> Machine:
    """Two cards have new addresses since the boot, and cufile.json still names the old ones."""
    made = h200_with_nvidia_fs(root)
    tree = Tree(root)
    tree.card("mlx5_1", interface="ib1", gid="0000:0000:0000:0000:0000:ffff:0a00:0a07")
    tree.card("mlx5_2", interface="ib2", state="1: DOWN")
    tree.file("/etc/cufile.json", '{"properties": {"rdma_dev_addr_list": ["10.0.9.7", "10.0.9.8", "mlx5_1"]}}')
    return made
