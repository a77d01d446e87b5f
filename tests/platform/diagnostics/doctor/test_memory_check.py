"""Host memory."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.memory_check import MemoryReading, judge_memory, read_memory
from tests.platform.diagnostics.machines import GIB, MEMINFO, MIB, Tree, machine

PLENTY = MemoryReading(available_bytes=64 * GIB, transparent="madvise")


def judged(reading: MemoryReading, pool_bytes: int = GIB) -> dict[str, Finding]:
    return {finding.id: finding for finding in judge_memory(reading, pool_bytes)}


def node(tmp_path: Path, **files: str) -> Tree:
    tree = Tree(tmp_path)
    tree.file("/proc/meminfo", MEMINFO.format(available=8 * MIB))  # in KiB: 8 GiB
    for name, content in files.items():
        tree.file(name, content)
    return tree


def test_the_machine_s_memory_binds_without_a_container(tmp_path: Path) -> None:
    reading = read_memory(machine(node(tmp_path)))
    assert (reading.available_bytes, reading.limited_by) == (8 * GIB, "machine")


@pytest.mark.parametrize(
    ("files", "room", "by"),
    [
        ({"/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/memory.current": "1"}, 8 * GIB, "machine"),
        ({"/sys/fs/cgroup/memory.max": f"{2 * GIB}", "/sys/fs/cgroup/memory.current": f"{GIB}"}, GIB, "cgroup"),
        ({"/sys/fs/cgroup/memory.max": f"{GIB}", "/sys/fs/cgroup/memory.current": f"{2 * GIB}"}, 0, "cgroup"),
        (
            {
                "/proc/self/cgroup": "1:cpu:/x\n0::/pods/one\n",
                "/sys/fs/cgroup/pods/memory.max": f"{3 * GIB}",
                "/sys/fs/cgroup/pods/memory.current": f"{GIB}",
                "/sys/fs/cgroup/pods/one/memory.max": f"{6 * GIB}",
                "/sys/fs/cgroup/pods/one/memory.current": f"{GIB}",
            },
            2 * GIB,
            "cgroup",
        ),
        (
            {
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 2}",
            },
            GIB // 2,
            "cgroup",
        ),
    ],
)
def test_a_container_s_limit_binds_where_it_is_lower(tmp_path: Path, files: dict[str, str], room: int, by: str) -> None:
    reading = read_memory(machine(node(tmp_path, **files)))
    assert (reading.available_bytes, reading.limited_by) == (room, by)


@pytest.mark.parametrize(
    ("state", "word"), [("always [madvise] never", "madvise"), ("always madvise [never]", "never")]
)
def test_huge_pages_are_read(tmp_path: Path, state: str, word: str) -> None:
    files = {
        "/sys/kernel/mm/transparent_hugepage/enabled": state,
        "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "512\n",
    }
    reading = read_memory(machine(node(tmp_path, **files)))
    assert (reading.transparent, reading.reserved_bytes) == (word, GIB)


@pytest.mark.parametrize(
    ("reading", "verdict", "remedy"),
    [
        (replace(PLENTY, transparent="always"), Verdict.OK, ""),
        (replace(PLENTY, transparent="never"), Verdict.LIMITED, "echo madvise"),
        (replace(PLENTY, transparent=None), Verdict.LIMITED, "boot a kernel"),
    ],
)
def test_small_pages_cost_speed(reading: MemoryReading, verdict: Verdict, remedy: str) -> None:
    finding = judged(reading)["memory.huge_pages"]
    assert finding.verdict is verdict and remedy in finding.remedy


def test_a_pool_that_does_not_fit_breaks_the_node() -> None:
    finding = judged(replace(PLENTY, available_bytes=GIB - 1))["memory.room"]
    assert finding.broken and "wants 1024 MiB" in finding.what
    assert not judged(replace(PLENTY, available_bytes=GIB))["memory.room"].broken
    assert judged(replace(PLENTY, available_bytes=None))["memory.room"].verdict is Verdict.UNKNOWN


def test_who_may_lock_without_limit_is_not_warned(tmp_path: Path) -> None:
    limited = replace(machine(node(tmp_path)), memlock_bytes=lambda: 65536)
    assert read_memory(limited).memlock_bytes == 65536
    Tree(tmp_path).file("/proc/self/status", "CapEff:\t000001ffffffffff\n")
    assert read_memory(limited).memlock_bytes is None
    assert judged(replace(PLENTY, memlock_bytes=65536))["memory.locked"].verdict is Verdict.LIMITED
    assert judged(replace(PLENTY, memlock_bytes=GIB))["memory.locked"].verdict is Verdict.OK
    assert judged(PLENTY)["memory.locked"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("code", "name"), [(errno.EFAULT, ""), (errno.EINVAL, ""), (errno.ENOSYS, "ENOSYS"), (errno.EPERM, "EPERM")]
)
def test_io_uring_is_told_and_never_a_fault(tmp_path: Path, code: int, name: str) -> None:
    reading = read_memory(replace(machine(node(tmp_path)), io_uring_errno=lambda: code))
    assert reading.io_uring == name
    finding = judged(reading)["memory.io_uring"]
    assert finding.verdict is Verdict.OK and "CRIU" in finding.what


def test_the_real_system_answers() -> None:
    from ebbtide.diagnostics.host.machine_reader import Machine

    reading = read_memory(Machine())
    assert reading.available_bytes is not None and reading.available_bytes > 0
