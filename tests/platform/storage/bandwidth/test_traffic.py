"""Classes among real transfers: leave before each chunk, threads that come and go, and nobody whom a dead one stops."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.storage.bandwidth.concurrency_limit import Concurrency
from ebbtide.storage.bandwidth.rate_limiter import NodeShelf, Rates, Shelf
from ebbtide.storage.bandwidth.rate_scheduler import Answer, Ask, Budget, TrafficClass
from ebbtide.storage.bandwidth.traffic import LEAST, LEAVE_BYTES, MOST, START, Traffic
from ebbtide.storage.errors import TransferTimeout
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_calls import SystemCalls
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.posix.transfer_threads import TransferThreads
from ebbtide.storage.transport.transport import CHUNK_BYTES, Range

BUFFER = 4096
LONG_S = 60.0
Preadv = Callable[[int, list[memoryview], int], int]


class Fixed(Concurrency):
    """Says what the test wants."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.wanted, self.seen = limit, list[tuple[int, int]]()

    @property
    def limit(self) -> int:
        return self.wanted

    def observe(self, nbytes: int, seconds: float, in_flight: int) -> int:
        self.seen.append((nbytes, in_flight))
        return self.wanted


class Disk:
    """Counts the requests that are in flight; each takes a moment."""

    def __init__(self, takes_s: float = 0.005) -> None:
        self._lock, self._takes_s = threading.Lock(), takes_s
        self.now = 0
        self.in_flight: list[int] = []
        self.after: Callable[[int], None] = lambda done: None

    def preadv(self, fd: int, memory: list[memoryview], offset: int) -> int:
        with self._lock:
            self.now += 1
        time.sleep(self._takes_s)
        count = os.preadv(fd, memory, offset)
        with self._lock:
            self.in_flight.append(self.now)
            self.now -= 1
            self.after(len(self.in_flight))
        return count


def a_file(tmp_path: Path, chunks: int, name: str = "file") -> Path:
    path = tmp_path / name
    path.write_bytes(b"x" * (chunks * BUFFER))
    return path


def calls_of(preadv: Preadv) -> SystemCalls:
    return SystemCalls(preadv=preadv, resident_share=lambda fd, offset, size: 1.0)


def transport(traffic: Traffic | None, preadv: Preadv = os.preadv, *, threads: int | None = None) -> PosixTransport:
    return PosixTransport(BufferPool(32, BUFFER), threads=threads, calls=calls_of(preadv), traffic=traffic)


def traffic(kind: TrafficClass = TrafficClass.SCRUB, limit: int = LEAST, *, shelf: Shelf | None = None) -> Traffic:
    return Traffic(Rates(Budget(None), shelf=shelf), kind, concurrency=Fixed(limit))


def read(reader: PosixTransport, path: Path, deadline_s: float = LONG_S) -> int:
    got: list[int] = []
    size = path.stat().st_size
    reader.read(path, [Range(0, size)], lambda offset, memory: got.append(len(memory)), deadline_s=deadline_s)
    assert sum(got) == size
    return len(got)


def write(writer: PosixTransport, path: Path, chunks: int) -> None:
    def fill(offset: int, memory: memoryview) -> None:
        memory[:] = b"y" * len(memory)

    writer.write(path, chunks * BUFFER, fill, deadline_s=LONG_S)


def test_every_byte_of_a_transfer_is_asked_for_in_its_class(tmp_path: Path) -> None:
    book = tmp_path / "book"
    mover = transport(traffic(TrafficClass.PREFETCH, shelf=NodeShelf(book)))
    before = Rates(Budget(None), shelf=NodeShelf(book))
    asked: list[int] = []
    ask = Rates._ask

    def noted(rates: Rates, wanted: object) -> object:
        asked.append(wanted.nbytes)  # type: ignore[attr-defined]
        assert wanted.kind is TrafficClass.PREFETCH  # type: ignore[attr-defined]
        return ask(rates, wanted)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rates, "_ask", noted)
        read(mover, a_file(tmp_path, 40))
        assert sum(asked) == 40 * BUFFER and len(asked) < 40, "asked for in larger pieces than one chunk"
        write(mover, tmp_path / "written", 10)
        assert sum(asked) == 50 * BUFFER
    assert (tmp_path / "written").read_bytes() == b"y" * (10 * BUFFER)
    assert before.budget == Budget(None)
    _, _, _, transfers = json.loads(book.read_text())
    assert transfers == {}, "who has ended has left the book"


def asks_at(bytes_per_s: float, kind: TrafficClass, budget: Budget, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What a transfer of 2 GiB in whole chunks asks for at once, moving at this speed by a clock of its own."""
    now_s, asked, ask = 0.0, list[int](), Rates._ask

    def noted(rates: Rates, wanted: Ask) -> Answer:
        asked.append(wanted.nbytes)
        return ask(rates, wanted)

    monkeypatch.setattr(Rates, "_ask", noted)
    rates = Rates(budget, clock_s=lambda: now_s)
    one = Traffic(rates, kind, clock_s=lambda: now_s)
    crew = TransferThreads(Path("file"), None, threads=1, deadline_s=LONG_S)
    with one.transfer(crew, 128 * CHUNK_BYTES) as lanes:
        lanes.first(1)
        for item in lanes.over(Range(n * CHUNK_BYTES, CHUNK_BYTES) for n in range(128)):
            now_s += item.length / bytes_per_s
    assert sum(asked) == 128 * CHUNK_BYTES
    return asked


def test_a_fast_serve_load_asks_seldom_and_a_slow_one_so_often_that_it_stays_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(None)
    fast = asks_at(2e9, TrafficClass.SERVE_LOAD, budget, monkeypatch)
    assert max(fast) == budget.ask_bytes(TrafficClass.SERVE_LOAD) == 4 * budget.burst_bytes
    assert fast[0] == LEAVE_BYTES and len(fast) < 25, "a quarter of what it takes with the least leave"
    slow = asks_at(100e6, TrafficClass.SERVE_LOAD, budget, monkeypatch)
    assert set(slow) == {LEAVE_BYTES}
    assert budget.quiet_s > LEAVE_BYTES / 100e6


@pytest.mark.parametrize("kind", [TrafficClass.CHECKPOINT_WRITE, TrafficClass.SCRUB])
def test_a_lower_class_never_asks_for_more_than_a_burst(kind: TrafficClass, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(asks_at(20e9, kind, Budget(None), monkeypatch)) == {LEAVE_BYTES}


def test_with_a_budget_nobody_asks_for_more_than_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(1e12)
    assert max(asks_at(20e9, TrafficClass.SERVE_LOAD, budget, monkeypatch)) <= budget.burst_bytes


@pytest.mark.parametrize("deadline_s", [LONG_S, 0.5])
def test_a_lower_class_waits_for_a_higher_one_and_that_is_not_the_transfers_fault(
    tmp_path: Path, deadline_s: float
) -> None:
    rates = Rates(Budget(1e6, quiet_s=1.0))  # of which 20 kB/s are due to scrubbing meanwhile
    scrub, path = transport(Traffic(rates, TrafficClass.SCRUB)), a_file(tmp_path, 10)
    with rates.transfer(TrafficClass.SERVE_LOAD) as load:
        load(1)
        began_s = time.monotonic()
        read(scrub, path, deadline_s)
        assert time.monotonic() - began_s > 0.8


def test_a_transfer_that_fails_waits_for_no_leave_any_more(tmp_path: Path) -> None:
    rates = Rates(Budget(1.0), clock_s=lambda: 0.0)  # a book in which nothing ever becomes due
    scrub = transport(Traffic(rates, TrafficClass.SCRUB))
    held = rates.transfer(TrafficClass.SERVE_LOAD)
    held(rates.budget.burst_bytes)
    interrupted = threading.Timer(0.3, lambda: os.kill(os.getpid(), 2))
    interrupted.start()
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        read(scrub, a_file(tmp_path, 64))
    assert time.monotonic() - began_s < 20.0


@pytest.mark.parametrize("limit", [1, 3, 9])
def test_the_limit_is_how_many_requests_are_in_flight(tmp_path: Path, limit: int) -> None:
    disk = Disk()
    read(transport(traffic(limit=limit), disk.preadv), a_file(tmp_path, 12 * limit))
    assert max(disk.in_flight) == limit


def test_threads_come_and_go_while_a_transfer_runs(tmp_path: Path) -> None:
    disk, class_of = Disk(), traffic(limit=2)
    fixed = class_of._concurrency
    assert isinstance(fixed, Fixed)

    def after(done: int) -> None:
        fixed.wanted = {40: 10, 150: 3}.get(done, fixed.wanted)

    disk.after = after
    assert read(transport(class_of, disk.preadv), a_file(tmp_path, 260)) == 260
    assert max(disk.in_flight[:40]) == 2
    assert max(disk.in_flight[40:150]) == 10
    assert max(disk.in_flight[200:]) == 3
    assert [nbytes for nbytes, _ in fixed.seen] == [BUFFER] * 260
    assert max(in_flight for _, in_flight in fixed.seen) == 10
    assert class_of._in_flight() == 0 and class_of._transfers == []


def test_transfers_of_a_process_share_the_limit(tmp_path: Path) -> None:
    disk, class_of = Disk(), traffic(limit=6)
    path = a_file(tmp_path, 120)
    mover = transport(class_of, disk.preadv)
    both = [threading.Thread(target=read, args=(mover, path)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert 5 <= max(disk.in_flight[30:200]) <= 8  # 6, and whoever came to it in the same moment
    assert sorted(disk.in_flight)[len(disk.in_flight) // 2] <= 6


def test_many_transfers_of_a_node_have_few_threads_each(tmp_path: Path) -> None:
    shelf, disk = NodeShelf(tmp_path / "book"), Disk()
    with contextlib.ExitStack() as others:
        for _ in range(15):
            one = others.enter_context(Rates(Budget(None), shelf=shelf).transfer(TrafficClass.SERVE_LOAD))
            one(1)
        read(transport(traffic(TrafficClass.SERVE_LOAD, 16, shelf=shelf), disk.preadv), a_file(tmp_path, 120))
    assert max(disk.in_flight[30:]) == 2  # 32 requests among sixteen


def test_one_that_hangs_takes_nothing_from_the_others(tmp_path: Path) -> None:
    release, class_of = threading.Event(), traffic(limit=4)
    stuck, path = a_file(tmp_path, 20, "stuck"), a_file(tmp_path, 60)
    disk = Disk()

    def preadv(fd: int, memory: list[memoryview], offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("stuck"):
            release.wait(LONG_S)
        return disk.preadv(fd, memory, offset)

    mover = transport(class_of, preadv)
    with pytest.raises(TransferTimeout):
        read(mover, stuck, deadline_s=0.3)
    try:
        assert read(mover, path) == 60
        assert max(disk.in_flight) == 4
    finally:
        release.set()


def test_a_process_killed_with_leave_in_its_hand_stops_nobody(tmp_path: Path) -> None:
    shelf = NodeShelf(tmp_path / "book")
    child = os.fork()
    if child == 0:
        admission = Rates(Budget(None), shelf=shelf).transfer(TrafficClass.SERVE_LOAD)
        admission(1 << 20)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    began_s = time.monotonic()
    assert read(transport(traffic(TrafficClass.SCRUB, shelf=shelf)), a_file(tmp_path, 64)) == 64
    assert time.monotonic() - began_s < 20.0  # it is quiet after one second


def test_alone_a_transfer_begins_with_eight_threads_and_never_has_fewer_than_six() -> None:
    class_of = Traffic(Rates(Budget(None)), TrafficClass.SERVE_LOAD)
    assert class_of.limit == START == 8 and LEAST == 6
    for number in range(4000):  # requests that queue one behind the other: more of them bring nothing
        class_of._concurrency.observe(16 << 20, 0.01 * class_of.limit, class_of.limit)
        assert LEAST <= class_of.limit <= MOST, number


def test_no_more_threads_than_a_transport_was_given(tmp_path: Path) -> None:
    disk = Disk()
    read(transport(traffic(limit=12), disk.preadv, threads=2), a_file(tmp_path, 60))
    assert max(disk.in_flight) == 2
