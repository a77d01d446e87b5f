"""Making what is lent: an agent that dies at it, many who ask at once, and memory that is not there."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebbtide.agent.host_memory import region_lender as hosting_module
from ebbtide.agent.host_memory.available_memory import available_bytes
from ebbtide.agent.host_memory.region_lender import RegionLender
from ebbtide.agent.host_memory.regions_folder import regions_folder
from ebbtide.snapshot.errors import HostMemoryShort
from ebbtide.snapshot.regions import pages
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import RegionKey, RegionState
from ebbtide.snapshot.regions.region_view import look

PAGE = 4096
A0 = RegionKey("a", 1, 0)


@pytest.fixture
def hosting(tmp_path: Path) -> RegionLender:
    made = RegionLender(tmp_path / "u" / "pool" / "machine")
    made.set_budget(10 * PAGE)
    return made


EDGES_OF_MAKING = ((os, "ftruncate"), (pages, "_populate"), (os, "pwrite"), (os, "rename"))


@pytest.mark.parametrize(("place", "edge"), EDGES_OF_MAKING)
def test_an_agent_killed_while_it_makes_a_region_leaves_nothing_that_counts(
    hosting: RegionLender, tmp_path: Path, place: object, edge: str
) -> None:
    hosting.lend(A0, PAGE)
    child = os.fork()
    if child == 0:
        setattr(place, edge, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        hosting.lend(A0, 2 * PAGE)  # in place of the one that is too small
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    again = RegionLender(tmp_path / "u" / "pool" / "machine")
    again.set_budget(2 * PAGE)
    assert again.regions() == []
    again.sweep(["a"])
    assert list((tmp_path / "u/pool/machine").iterdir()) == [], "its memory is given back"
    assert look(again.lend(A0, 2 * PAGE)).state is RegionState.EMPTY


def test_memory_that_the_node_has_not_is_not_lent(tmp_path: Path) -> None:
    hosting = RegionLender(tmp_path / "u" / "pool" / "machine", available=lambda: 2 * PAGE)
    hosting.set_budget(10 * PAGE)
    hosting.lend(A0, 2 * PAGE)
    with pytest.raises(HostMemoryShort, match=r"needs 12288 bytes.*8192 bytes left.*lower pool\.host_memory_per_node"):
        hosting.lend(RegionKey("b", 1, 0), 3 * PAGE)


class SlowMaking:
    """Regions are made when they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.let = threading.Semaphore(0), threading.Event()
        monkeypatch.setattr(hosting_module, "create_region", self._create)

    def _create(self, folder: Path, key: RegionKey, size_bytes: int) -> Path:
        (folder / f"{key.job}.{key.lease_epoch}.{key.rank}.making").write_bytes(b"being made")
        self.begun.release()
        assert self.let.wait(10)
        return create_region(folder, key, size_bytes)


def test_who_waits_for_memory_keeps_nobody_waiting_and_is_counted(
    hosting: RegionLender, monkeypatch: pytest.MonkeyPatch
) -> None:
    making = SlowMaking(monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(hosting.lend, A0, 6 * PAGE) for _ in range(2)]
        assert making.begun.acquire(timeout=10)
        assert hosting.sweep(["a"]) == [] and hosting.settle("a", 0) == [] and hosting.regions() == []
        with pytest.raises(HostMemoryShort, match=r"24576 are lent \(a\.1\.0\.region\)"):
            hosting.lend(RegionKey("b", 1, 0), 5 * PAGE)
        second = pool.submit(hosting.lend, RegionKey("b", 1, 0), 4 * PAGE)
        assert making.begun.acquire(timeout=10)
        folder = next(path for path in (hosting._folder).iterdir()).parent
        assert len(list(folder.glob("*.making"))) == 2, "the sweep has left them alone"
        making.let.set()
        assert first[0].result(10) == first[1].result(10) == folder / "a.1.0.region"
        assert second.result(10) == folder / "b.1.0.region"


def test_what_is_promised_to_one_is_not_lent_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    making = SlowMaking(monkeypatch)
    hosting = RegionLender(tmp_path / "u" / "pool" / "machine", available=lambda: 6 * PAGE)
    hosting.set_budget(20 * PAGE)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(hosting.lend, A0, 4 * PAGE)
        assert making.begun.acquire(timeout=10)
        with pytest.raises(HostMemoryShort, match="24576 bytes left that nobody uses, 16384 of them promised"):
            hosting.lend(RegionKey("b", 1, 0), 3 * PAGE)
        making.let.set()
        first.result(10)


def test_what_could_not_be_made_is_not_lent(hosting: RegionLender, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Path:
        raise HostMemoryShort("no room")

    with monkeypatch.context() as patch:
        patch.setattr(hosting_module, "create_region", full)
        with pytest.raises(HostMemoryShort, match="no room"):
            hosting.lend(A0, 10 * PAGE)
    hosting.lend(RegionKey("b", 1, 0), 5 * PAGE)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(hosting.lend, A0, 5 * PAGE).result(10).exists(), "it may ask again"


def test_the_budget_holds_whoever_asks_at_once(tmp_path: Path) -> None:
    hosting = RegionLender(tmp_path / "u" / "pool" / "machine")
    hosting.set_budget(10 * PAGE)

    def ask(rank: int) -> int:
        try:
            return look(hosting.lend(RegionKey("a", 1, rank), (1 + rank % 3) * PAGE)).size_bytes
        except HostMemoryShort:
            return 0

    with ThreadPoolExecutor(8) as pool:
        lent = sum(pool.map(ask, range(24)))
    assert 7 * PAGE < lent <= 10 * PAGE and lent == sum(view.size_bytes for view in hosting.regions())


@pytest.mark.proves(
    "a container's limit counts",
    "a group without a limit limits nothing",
    "cached files are no use of memory",
    "no less than nothing is left",
    "only limits of the container's own groups count",
    "what cannot be read is not known",
    "what the machine has left counts",
)
def test_what_the_machine_or_the_container_has_left_is_the_least_of_all_bounds(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (groups / "outer" / "inner").mkdir(parents=True)
    for name in ("memory.max", "memory.current"):
        (tmp_path / name).write_text("1\n")  # of no group: it is above all of them
    assert available_bytes(proc=proc, cgroups=groups) is None
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    assert available_bytes(proc=proc, cgroups=groups) == 50 * 1024
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (groups / "outer" / "inner" / "memory.max").write_text("max\n")
    (groups / "outer" / "inner" / "memory.current").write_text("1\n")
    assert available_bytes(proc=proc, cgroups=groups) == 50 * 1024
    (groups / "outer" / "memory.max").write_text("30000\n")
    (groups / "outer" / "memory.current").write_text("20000\n")
    (groups / "outer" / "memory.stat").write_text("anon 1\ninactive_file 5000\n")
    assert available_bytes(proc=proc, cgroups=groups) == 15000
    (groups / "outer" / "memory.max").write_text("10000\n")  # it was made less, or is passed for a moment
    assert available_bytes(proc=proc, cgroups=groups) == 0


def test_machines_and_pools_have_folders_of_their_own() -> None:
    folders = {regions_folder(pool, machine) for pool in ("p", "q") for machine in ("m", "n/1")}
    assert len(folders) == 4 and all(len(folder.relative_to("/dev/shm").parts) == 3 for folder in folders)
    assert all(str(os.getuid()) in folder.parts[3] for folder in folders), "each user has one"
