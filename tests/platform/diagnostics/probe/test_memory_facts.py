"""How much host memory parked state may take: the least of all that bounds it."""

from pathlib import Path

import pytest

from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.probe.memory_facts import memory_facts
from ebbtide.snapshot.tiers import Means
from tests.platform.diagnostics import machines

GIB = 1 << 30
TOTAL, AVAILABLE = 100 * GIB, 60 * GIB


@pytest.fixture
def tree(tmp_path: Path) -> machines.Tree:
    tree = machines.Tree(tmp_path)
    tree.file("/proc/meminfo", f"MemTotal: {TOTAL >> 10} kB\nMemAvailable: {AVAILABLE >> 10} kB\n")
    tree.directory("/dev/shm")
    return tree


def raylet(tree: machines.Tree, pid: int, *, store: int, environ: bytes = b"A=1\0") -> None:
    tree.file(f"/proc/{pid}/comm", "raylet\n")
    tree.file(f"/proc/{pid}/cmdline", f"raylet\0--object_store_memory={store}\0--x=1\0")
    tree.file(f"/proc/{pid}/environ", environ)


def left(tree: machines.Tree, shm: int = 1000 * GIB) -> int | None:
    return memory_facts(machines.machine(tree), room=lambda _folder: shm)[0]


def test_what_the_machine_has_bounds_it(tree: machines.Tree) -> None:
    assert left(tree) == AVAILABLE


def test_so_does_the_containers_limit(tree: machines.Tree) -> None:
    tree.file("/proc/self/cgroup", "0::/pod\n")
    tree.file("/sys/fs/cgroup/pod/memory.max", f"{20 * GIB}\n")
    tree.file("/sys/fs/cgroup/pod/memory.current", f"{5 * GIB}\n")
    assert left(tree) == 15 * GIB


def test_so_does_shared_memory(tree: machines.Tree) -> None:
    assert left(tree, shm=3 * GIB) == 3 * GIB


def test_so_do_rays_threshold_and_all_object_stores_of_the_machine(tree: machines.Tree) -> None:
    raylet(tree, 100, store=10 * GIB)
    assert left(tree) == int(0.95 * TOTAL) - (TOTAL - AVAILABLE) - 10 * GIB
    raylet(tree, 200, store=5 * GIB, environ=b"X=2\0RAY_memory_usage_threshold=0.8\0")
    assert left(tree) == int(0.8 * TOTAL) - (TOTAL - AVAILABLE) - 15 * GIB


@pytest.mark.parametrize("said", ["", "lots", "-1", "7"])
def test_a_threshold_that_is_none_is_rays_own(tree: machines.Tree, said: str) -> None:
    raylet(tree, 100, store=0, environ=f"RAY_memory_usage_threshold={said}\0".encode())
    assert left(tree) == int(0.95 * TOTAL) - (TOTAL - AVAILABLE)


def test_no_less_than_nothing(tree: machines.Tree) -> None:
    raylet(tree, 100, store=90 * GIB)
    assert left(tree) == 0


def test_memory_that_cannot_be_read_is_not_taken(tmp_path: Path) -> None:
    found, facts = memory_facts(machines.machine(machines.Tree(tmp_path)), room=lambda _folder: GIB)
    assert found is None
    assert Means.EVICT in next(fact for fact in facts if fact.id == "ram.available").hinders


def test_a_node_without_shared_memory_cannot_evict(tree: machines.Tree) -> None:
    def room(_folder: Path) -> int:
        raise FileNotFoundError(2, "No such file or directory")

    _, facts = memory_facts(machines.machine(tree), room=room)
    (shm,) = (fact for fact in facts if fact.id == "ram.shm")
    assert Means.EVICT in shm.hinders and "mount a tmpfs" in shm.remedy


def test_this_machine_can_be_read() -> None:
    found, facts = memory_facts(Machine())
    assert found is not None and found > 0
    assert facts[0].id == "ram.available"
