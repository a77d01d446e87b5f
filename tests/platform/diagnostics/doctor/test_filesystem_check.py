"""What is said about a directory's filesystem."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.filesystem_check import judge_filesystem
from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.diagnostics.host.mount import Mount
from tests.platform.diagnostics.machines import GIB, WORKING

HERE = Path("/shared/pool")
NFS = Mount("/shared", "nfs4", "server:/pool", {"proto": "rdma", "hard": None, "rsize": "1048576", "wsize": "1048576"})


def judged(reading: FilesystemReading = WORKING, mount: Mount | None = NFS) -> dict[str, Finding]:
    return {finding.id: finding for finding in judge_filesystem(HERE, mount, reading)}


def test_a_shared_filesystem_that_does_all_is_in_order() -> None:
    found = judged()
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert found["fs.type"].what == "nfs4 at /shared from server:/pool"
    assert found["fs.space"].what == "536.9 of 1073.7 GB free (a quota does not show here: quota -s)"


@pytest.mark.parametrize(
    ("type_", "verdict", "why"),
    [
        ("ext4", Verdict.LIMITED, "only this node can load from it"),
        ("tmpfs", Verdict.LIMITED, "empty after a reboot"),
        ("overlay", Verdict.LIMITED, "gone with the container"),
        ("virtiofs", Verdict.LIMITED, "goes through the machine that runs this one"),
        ("fuse.sshfs", Verdict.UNKNOWN, "through FUSE each byte"),
        ("something", Verdict.UNKNOWN, "all nodes of a pool need one directory"),
        ("lustre", Verdict.OK, ""),
        ("gpfs", Verdict.OK, ""),
    ],
)
def test_who_sees_the_files(type_: str, verdict: Verdict, why: str) -> None:
    finding = judged(mount=Mount("/shared", type_, "x", {}))["fs.type"]
    assert finding.verdict is verdict and why in finding.why and not finding.broken


def test_an_unknown_mount_is_said() -> None:
    assert judged(mount=None)["fs.type"].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("Permission denied (EACCES)", "give this user write access"),
        ("No space left on device (ENOSPC)", "make room"),
        ("Disk quota exceeded (EDQUOT)", "raise this user's quota"),
        ("Stale file handle (ESTALE)", "mount it again"),
        ("no answer within 10 s: the filesystem hangs", "look at the storage server"),
        ("Input/output error (EIO)", "look at dmesg"),
    ],
)
def test_a_directory_that_cannot_be_used_is_broken(error: str, remedy: str) -> None:
    found = judged(FilesystemReading(error=error))
    assert set(found) == {"fs.type", "fs.use"}
    assert found["fs.use"].broken and error in found["fs.use"].what and remedy in found["fs.use"].remedy


def test_a_read_only_mount_is_broken_whatever_the_probe_says() -> None:
    found = judged(mount=replace(NFS, options={"ro": None}))
    assert found["fs.use"].broken and found["fs.use"].remedy == "mount -o remount,rw /shared"


def test_steps_that_failed_are_broken_each_by_name() -> None:
    finding = judged(replace(WORKING, failures=("rename: X (EIO)", "sync of the directory: Y (EIO)")))["fs.use"]
    assert finding.broken and finding.what == "rename: X (EIO); sync of the directory: Y (EIO)"


@pytest.mark.parametrize(
    ("reading", "verdict", "what"),
    [
        (WORKING, Verdict.OK, "multiples of 512 bytes; statx states 512 for memory, 512 for offsets"),
        (replace(WORKING, alignment=4096, stated=None), Verdict.OK, "multiples of 4096 bytes"),
        (replace(WORKING, alignment=65536), Verdict.LIMITED, "multiples of 65536 bytes"),
        (
            replace(WORKING, direct_error="open: Invalid argument (EINVAL)"),
            Verdict.LIMITED,
            "O_DIRECT is refused: open",
        ),
    ],
)
def test_direct_io(reading: FilesystemReading, verdict: Verdict, what: str) -> None:
    finding = judged(reading)["fs.direct"]
    assert finding.verdict is verdict and what in finding.what and not finding.broken


@pytest.mark.parametrize(
    ("reading", "verdict"),
    [
        (WORKING, Verdict.OK),
        (replace(WORKING, free_bytes=10 * GIB), Verdict.LIMITED),
        (replace(WORKING, free_files=9_999), Verdict.LIMITED),
        (replace(WORKING, free_files=None), Verdict.OK),
    ],
)
def test_room(reading: FilesystemReading, verdict: Verdict) -> None:
    assert judged(reading)["fs.space"].verdict is verdict


def test_space_that_cannot_be_reserved_is_said() -> None:
    assert "space cannot be reserved" in judged(replace(WORKING, reserves=False))["fs.space"].what


@pytest.mark.parametrize(
    ("mount", "hint"),
    [
        (Mount("/shared", "lustre", "a@tcp:/fs", {}), "lfs quota -u $USER /shared"),
        (Mount("/shared", "xfs", "/dev/sda", {"noquota": None}), "no quota is on"),
        (Mount("/shared", "xfs", "/dev/sda", {"prjquota": None}), "quota -s"),
        (None, "a quota would not show here"),
    ],
)
def test_a_quota_is_hinted_at(mount: Mount | None, hint: str) -> None:
    assert hint in judged(mount=mount)["fs.space"].what


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"proto": "rdma", "hard": None}, set()),
        ({"proto": "tcp"}, {"fs.nfs_connections"}),
        ({"proto": "tcp", "nconnect": "16"}, set()),
        ({}, {"fs.nfs_connections"}),
        ({"proto": "rdma", "soft": None}, {"fs.nfs_soft"}),
        ({"proto": "rdma", "rsize": "65536"}, {"fs.nfs_requests"}),
        ({"proto": "rdma", "rsize": "many", "wsize": None}, set()),
    ],
)
def test_options_of_nfs(options: dict[str, str | None], ids: set[str]) -> None:
    found = judged(mount=replace(NFS, options=options))
    assert {identity for identity in found if identity.startswith("fs.nfs")} == ids
    assert all(found[identity].verdict is Verdict.LIMITED for identity in ids)
