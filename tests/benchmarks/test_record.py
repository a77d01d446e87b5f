"""With what and where a part was measured: the commit of its sources, the processor, the disk."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.record import Began, Book, Measured, disk, facts, with_part
from evidence.provenance import ITS_RESULTS, as_measured, commit, processor

BOOK = Book("x", "make x", "benchmarks.x")
MOUNTS = """1 0 254:1 / / rw,relatime - ext4 /dev/vda1 rw,discard
2 1 0:9 / /mnt/nfs rw shared:1 - nfs4 secret-host:/export rw,addr=10.0.0.7
3 1 254:2 / /mnt/bare rw - xfs /dev/vda2
"""


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """A repository with sources and a result."""

    def call(*words: str) -> str:
        named = ("-c", "user.name=t", "-c", "user.email=t@t")
        done = subprocess.run(["git", *named, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    call("init", "-q")
    (tmp_path / ITS_RESULTS).mkdir(parents=True)
    (tmp_path / ITS_RESULTS / "x.json").write_text("{}")
    (tmp_path / "benchmarks" / "source.py").write_text("one")
    call("add", ".")
    call("commit", "-q", "-m", "one")
    return call


def test_a_result_that_a_part_before_has_changed_makes_no_tree_dirty(git: Callable[..., str], tmp_path: Path) -> None:
    where, head = tmp_path / "benchmarks", git("rev-parse", "--short=12", "HEAD")
    (tmp_path / ITS_RESULTS / "x.json").write_text("{1}")
    assert commit(where) == head
    (where / "source.py").write_text("two")
    assert commit(where) == f"{head}-dirty"
    (where / "source.py").write_text("one")
    (tmp_path / "elsewhere.py").write_text("not looked for in the folder alone")
    git("add", "elsewhere.py")
    assert commit(where) == f"{head}-dirty"


@pytest.mark.parametrize(
    "loaded, now, told",
    [
        ("a", "a", "a"),
        ("a", "b", "a-dirty"),
        ("a", "a-dirty", "a-dirty"),
        ("a-dirty", "a", "a-dirty"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_a_tree_that_changed_while_it_was_measured_is_dirty(loaded: str, now: str, told: str) -> None:
    assert as_measured(loaded, now) == told


def test_a_part_tells_the_commit_that_was_loaded(tmp_path: Path) -> None:
    found = facts(BOOK, "a", tmp_path, Began.now("0" * 12), quick=False)
    assert found["commit"] == "0" * 12 + "-dirty", "this repository is at another one by now"
    assert "model name" not in found["hardware"] and "CPU cores, " in found["hardware"]
    assert found["disk"]


def test_a_part_names_the_versions_that_only_it_has() -> None:
    measured = Measured(versions={"fio": "fio-3.33"})
    found = with_part(BOOK, None, "a", measured, {"versions": {"torch": "2"}}, {"a": {}})
    assert found["parts"]["a"]["versions"] == {"torch": "2", "fio": "fio-3.33"}


def test_the_processor_is_named_by_its_model_where_there_is_one() -> None:
    assert processor("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: AMD EPYC\n").startswith("AMD EPYC (")
    assert processor("processor : 0\n") and ":" not in processor("processor : 0\n")


def test_the_disk_is_named_with_its_driver_and_a_network_not_at_all(tmp_path: Path) -> None:
    devices = tmp_path / "dev"
    for name, of, sectors in (("vda1", "vda", 2_000_000), ("vda2", "vda", 4_000_000)):
        (tmp_path / of / name).mkdir(parents=True)
        (tmp_path / of / name / "size").write_text(f"{sectors}\n")
    (tmp_path / "drivers" / "virtio_blk").mkdir(parents=True)
    (tmp_path / "vda" / "device").mkdir()
    (tmp_path / "vda" / "device" / "driver").symlink_to(tmp_path / "drivers" / "virtio_blk")
    devices.mkdir()
    (devices / "254:1").symlink_to(tmp_path / "vda" / "vda1")
    (devices / "254:2").symlink_to(tmp_path / "vda" / "vda2")
    assert disk(Path("/home"), MOUNTS, devices) == "ext4 on vda1 (virtio_blk, 1 GB), rw,discard"
    assert disk(Path("/mnt/bare"), MOUNTS, devices).startswith("xfs on vda2 (virtio_blk, 2 GB)")
    assert disk(Path("/mnt/nfs/dir"), MOUNTS, devices) == "nfs4 on no block device"
