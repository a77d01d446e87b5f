"""Which mount a directory lies in, and what is under it."""

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.diagnostics.host.mount import Device, Kind, Mount, find_mount, read_mount
from tests.examples import examples
from tests.platform.diagnostics.machines import Tree, machine

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
40 27 0:40 / /data rw - autofs systemd-1 rw
41 40 0:41 / /data rw,noatime shared:7 master:2 - nfs4 server:/x rw,vers=4.2,proto=tcp,rsize=1048576
42 41 0:42 / /data/my\040pool rw - lustre 10.0.0.1@o2ib,10.0.0.2@o2ib:/fs ro,flock
43 27 0:43 / /database rw - tmpfs none
broken line
44 27 0:44 / - - -
"""


@pytest.mark.parametrize(
    ("directory", "point", "type_"),
    [
        ("/", "/", "ext4"),
        ("/home/a", "/", "ext4"),
        ("/data", "/data", "nfs4"),  # the last of two on one point is on top
        ("/data/my pool/x", "/data/my pool", "lustre"),
        ("/data/my", "/data", "nfs4"),
        ("/database/x", "/database", "tmpfs"),  # not below /data, though its name begins like it
    ],
)
def test_the_nearest_mount_above_wins(directory: str, point: str, type_: str) -> None:
    found = find_mount(TABLE, PurePosixPath(directory))
    assert found is not None and (found[0].point, found[0].type) == (point, type_)


def test_options_of_mount_and_filesystem_are_one() -> None:
    found = find_mount(TABLE, PurePosixPath("/data"))
    assert found is not None
    assert found[0].options == {
        "rw": None,
        "noatime": None,
        "vers": "4.2",
        "proto": "tcp",
        "rsize": "1048576",
    }
    lustre = find_mount(TABLE, PurePosixPath("/data/my pool"))
    assert lustre is not None and lustre[0].over_rdma and "ro" in lustre[0].options


@pytest.mark.parametrize("table", ["", "nothing\n", "1 2 3:4 / /elsewhere rw - ext4 /dev/sda rw\n"])
def test_a_table_without_it_gives_nothing(table: str) -> None:
    assert find_mount(table, PurePosixPath("/data")) is None


@settings(deadline=None, max_examples=examples(60))
@given(st.text(max_size=200), st.text(alphabet="/ab.\\0 -", max_size=20))
def test_no_table_breaks_the_reader(table: str, directory: str) -> None:
    find_mount(table, PurePosixPath("/" + directory))


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("nfs", Kind.NFS),
        ("lustre", Kind.LUSTRE),
        ("wekafs", Kind.PARALLEL),
        ("fuse.hf3fs", Kind.PARALLEL),
        ("fuse.gcsfuse", Kind.FUSE),
        ("fuseblk", Kind.FUSE),
        ("xfs", Kind.LOCAL),
        ("tmpfs", Kind.MEMORY),
        ("overlay", Kind.OVERLAY),
        ("virtiofs", Kind.HOST),
        ("newfs", Kind.OTHER),
    ],
)
def test_types_have_families(type_: str, kind: Kind) -> None:
    assert Mount("/", type_, "", {}).kind is kind


def on_block_device(tree: Tree, path: str, *, partition: bool = False) -> Device | None:
    tree.directory(path)
    if partition:
        tree.file(f"{path}/partition", "1\n")
    tree.link("/sys/dev/block/259:1", path)
    tree.file("/proc/self/mountinfo", "61 27 259:1 / / rw - ext4 /dev/x rw\n")
    mount = read_mount(machine(tree), PurePosixPath("/shared"))
    assert mount is not None
    return mount.device


def test_devices_are_told_apart(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "nvme")
    tree.file("/sys/class/nvme/nvme3/transport", "rdma\n")
    place = "/sys/devices/x/nvme3n1"
    assert on_block_device(tree, f"{place}/nvme3n1p2", partition=True) == Device("nvme3n1", "nvme-of")
    assert on_block_device(Tree(tmp_path / "local"), "/sys/devices/x/nvme0n1") == Device("nvme0n1", "nvme")
    tree = Tree(tmp_path / "raid")
    tree.file("/sys/class/block/md0/md/level", "raid0\n")
    assert on_block_device(tree, "/sys/devices/virtual/block/md0") == Device("md0", "raid0")
    tree = Tree(tmp_path / "mirror")
    tree.file("/sys/class/block/md0/md/level", "raid1\n")
    assert on_block_device(tree, "/sys/devices/virtual/block/md0") == Device("md0", "raid")
    assert on_block_device(Tree(tmp_path / "lvm"), "/sys/devices/virtual/block/dm-2") == Device("dm-2", "mapped")
    assert on_block_device(Tree(tmp_path / "sata"), "/sys/devices/x/sda") == Device("sda", "disk")
    assert on_block_device(Tree(tmp_path / "vm"), "/sys/devices/x/vda") == Device("vda", "virtual")


def test_a_device_that_sysfs_does_not_know_is_left_out(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.file("/proc/self/mountinfo", "61 27 0:99 / / rw - zfs pool/data rw\n")
    mount = read_mount(machine(tree), PurePosixPath("/shared"))
    assert mount is not None and mount.device is None
