"""Which filesystem a directory lies on, and on which device, from ``/proc/self/mountinfo`` and ``/sys``.

Why not `os.stat`: it may hang where the server of a network filesystem is gone, and the table of mounts never does.

Not guaranteed: links in the directory's path are followed only if the caller did so.

Source: proc_pid_mountinfo(5).
"""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from ebbtide.diagnostics.host.machine_reader import Machine


class Kind(Enum):
    """Families of filesystems that are judged alike."""

    NFS = "nfs"
    LUSTRE = "lustre"
    PARALLEL = "parallel"  # GPFS, WekaFS, BeeGFS, CephFS, 3FS: shared by nodes, with a client of their own
    FUSE = "fuse"
    LOCAL = "local"  # of this node alone
    MEMORY = "memory"
    OVERLAY = "overlay"
    HOST = "host"  # 9p, virtiofs: a directory of the machine that runs this one
    OTHER = "other"


_KINDS = {
    Kind.NFS: ("nfs", "nfs4"),
    Kind.LUSTRE: ("lustre",),
    Kind.PARALLEL: ("gpfs", "wekafs", "beegfs", "ceph", "scatefs", "fuse.hf3fs", "fuse.ceph", "fuse.glusterfs"),
    Kind.LOCAL: ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "vfat", "exfat"),
    Kind.MEMORY: ("tmpfs", "ramfs", "hugetlbfs"),
    Kind.OVERLAY: ("overlay", "aufs"),
    Kind.HOST: ("9p", "virtiofs", "vboxsf"),
}
SHARED = {Kind.NFS, Kind.LUSTRE, Kind.PARALLEL}  # seen by other nodes too; of FUSE nobody can tell


@dataclass(frozen=True, slots=True)
class Device:
    """The block device under a local filesystem.

    Attributes:
        name: such as ``nvme0n1``; of the whole disk.
        kind: ``nvme`` (local), ``nvme-of``, ``raid0``, ``raid`` (other levels), ``mapped`` (LVM, encryption),
            ``virtual`` (of a virtual machine), ``disk``.
    """

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table of mounts.

    Attributes:
        point: where it is mounted.
        type: the filesystem's type.
        source: device, export or nothing.
        options: of mount and filesystem, by name; None for those without a value.
        device: under a local filesystem; None otherwise, or if unknown.
    """

    point: str
    type: str
    source: str
    options: dict[str, str | None]
    device: Device | None = None

    @property
    def kind(self) -> Kind:
        """Its family."""
        known = next((kind for kind, types in _KINDS.items() if self.type in types), None)
        if known is not None:
            return known
        return Kind.FUSE if self.type.startswith("fuse") else Kind.OTHER

    @property
    def over_rdma(self) -> bool:
        """Whether it is known to move its data by RDMA."""
        if self.kind is Kind.NFS:
            return self.options.get("proto") == "rdma"
        return self.kind is Kind.LUSTRE and "@o2ib" in self.source


def read_mount(machine: Machine, directory: PurePosixPath | None) -> Mount | None:
    """The mount that ``directory`` (absolute) lies in; None without a directory, or if nothing tells."""
    table = machine.text("/proc/self/mountinfo")
    found = find_mount(table or "", directory) if directory is not None else None
    if found is None:
        return None
    mount, number = found
    device = _device(machine, number) if mount.kind is Kind.LOCAL else None
    return Mount(mount.point, mount.type, mount.source, mount.options, device)


def find_mount(table: str, directory: PurePosixPath) -> tuple[Mount, str] | None:
    """The mount with the longest point above ``directory``, of equal ones the last, and its ``major:minor``."""
    best: tuple[Mount, str] | None = None
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        if not directory.is_relative_to(point) or (best is not None and len(point) < len(best[0].point)):
            continue
        options = _options(fields[5]) | _options(rest[2] if len(rest) > 2 else "")
        best = Mount(point, rest[0], _unescaped(rest[1]), options), fields[2]
    return best


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _options(text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for option in filter(None, text.split(",")):
        name, equals, value = option.partition("=")
        found[name] = value if equals else None
    return found


def _device(machine: Machine, number: str) -> Device | None:
    path = machine.resolved(f"/sys/dev/block/{number}")
    if not machine.exists(path):
        return None
    parts = PurePosixPath(path)
    disk = parts.parent.name if machine.exists(f"{path}/partition") else parts.name
    place = f"/sys/class/block/{disk}"
    if disk.startswith("md"):
        return Device(disk, "raid0" if machine.text(f"{place}/md/level") == "raid0" else "raid")
    if disk.startswith("dm-"):
        return Device(disk, "mapped")
    if disk.startswith("nvme"):
        controller = re.match(r"nvme\d+", disk)
        assert controller is not None
        transport = machine.text(f"/sys/class/nvme/{controller[0]}/transport") or "pcie"
        return Device(disk, "nvme" if transport == "pcie" else "nvme-of")
    return Device(disk, "virtual" if disk.startswith(("vd", "xvd")) else "disk")
