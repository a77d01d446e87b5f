"""cuFile with its faults: right bytes, or one error with file and place; and nothing is left running or unproven."""

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.placements import Placement
from ebbtide.storage.errors import Corrupt, FileTruncated, Refused, StorageError, TransferFailed, TransferTimeout
from ebbtide.storage.transport.transfer_report import Mode
from ebbtide.storage.transport.transport import Range
from tests.examples import examples
from tests.platform.storage.device_fakes import (
    CHUNK,
    INTERRUPTED,
    LONG_S,
    BadFile,
    BadFiles,
    Fault,
    LateQueue,
    always,
    content_of,
    flip,
    indexed,
    once,
    parts_of,
    whole,
)
from tests.platform.storage.stores import random_bytes

CONTENT = random_bytes(9 * CHUNK + 4099)
SETTINGS = GdsSettings(threads=3, request_bytes=CHUNK)


def gds(files: BadFiles, *, queue: LateQueue | None = None, settings: GdsSettings = SETTINGS) -> GdsTransport:
    return GdsTransport(files, queue or LateQueue(), settings, stats=Path("/none"))


def conforms(transport: GdsTransport) -> DeviceTransport:
    """For the type checker."""
    return transport


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(CONTENT)
    return tmp_path / "f"


@pytest.mark.proves("scratch memory is not used again before its copies ended")
def test_a_whole_file_arrives_in_aligned_requests(path: Path) -> None:
    files, queue = BadFiles(), LateQueue()
    opened_by: set[int] = set()

    def on_open() -> None:
        assert threading.get_ident() in queue.entered, "kvikio needs the device's context"
        opened_by.add(threading.get_ident())

    files.on_open = on_open
    placements, memory = whole(len(CONTENT))
    report = gds(files, queue=queue).read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT
    assert report.bytes_by_mode == {Mode.GDS: len(CONTENT)} and report.why_not_better == "" and report.retries == 0
    assert [part.offset for part in parts_of(files.requests)] == list(range(0, len(CONTENT), CHUNK))
    assert files.open_files == 0 and queue.began == 1
    assert opened_by and files.readers <= queue.entered


@pytest.mark.proves("scratch memory is taken in the order of the queue")
def test_scratch_memory_is_taken_in_the_order_of_the_queue(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the caller's stream torch may lend memory that kernels queued there still read; DMA waits for no stream."""
    within: list[str] = []
    taken: list[list[str]] = []

    class Scoped(LateQueue):
        @contextlib.contextmanager
        def scope(self) -> Iterator[None]:
            within.append("queue")
            try:
                yield
            finally:
                within.pop()

    empty = torch.empty

    def noted(*args: object, **options: object) -> torch.Tensor:
        taken.append(list(within))
        return empty(*args, **options)  # type: ignore[call-overload,no-any-return]

    placements, memory = whole(len(CONTENT))
    monkeypatch.setattr(torch, "empty", noted)
    gds(BadFiles(), queue=Scoped()).read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT
    assert taken == [["queue"]]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spots=st.lists(
        st.tuples(st.integers(0, len(CONTENT)), st.sampled_from([0, 1, 63, 4096, CHUNK, 3 * CHUNK + 1])), max_size=6
    ),
    checked=st.booleans(),
    chunk_bytes=st.sampled_from([4096, CHUNK]),
    faults=st.lists(st.sampled_from(["all", "odd", "short", "one", "EINTR", "EAGAIN", "EIO"]), max_size=12),
)
def test_whatever_comes_short_or_fails_once_the_bytes_are_right(
    tmp_path: Path, spots: list[tuple[int, int]], checked: bool, chunk_bytes: int, faults: list[str]
) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=chunk_bytes)
    left, lock, failed = list(faults), threading.Lock(), set[int]()

    def fault(_number: int, offset: int, size: int) -> int | None:
        with lock:
            kind = left.pop() if left else "all"
            if kind == "EIO" and offset in failed:  # twice in a row is no passing failure
                kind = "all"
            if kind == "EIO":
                failed.add(offset)
        if kind.startswith("E"):
            raise OSError(getattr(errno, kind), kind)
        return {"all": None, "odd": size // 2 + 1, "short": max(size // 3 // 4096 * 4096, 1), "one": 1}[kind]

    wanted = [
        Placement(offset, torch.full((min(length, len(CONTENT) - offset),), 0xEE, dtype=torch.uint8))
        for offset, length in spots
    ]
    files = BadFiles(fault)
    report = gds(files).read_device(file if checked else file.path, wanted, deadline_s=LONG_S)
    for each in wanted:
        assert content_of(each.memory) == CONTENT[each.offset : each.part.end]
    assert files.open_files == 0
    assert report.retries >= len(failed)


@pytest.mark.proves("what came short goes on from a page")
def test_what_came_short_goes_on_from_a_page(path: Path) -> None:
    """cuFile takes other offsets too, but by way of buffers of its own."""
    files = BadFiles(lambda number, offset, size: min(5000, size) if number % 2 == 0 else None)
    placements, memory = whole(len(CONTENT))
    gds(files, settings=GdsSettings(1, CHUNK)).read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT
    assert {offset % 4096 for offset, _size in files.requests} == {0}
    assert any(offset % CHUNK for offset, _size in files.requests)


@pytest.mark.proves("a driver that brings nothing new goes on from where it stands")
def test_a_driver_that_brings_a_few_bytes_at_a_time_gets_there(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(CONTENT[:9000])
    placements, memory = whole(9000)
    files = BadFiles(lambda number, offset, size: min(100, size))
    gds(files).read_device(path, placements, deadline_s=20)
    assert content_of(memory) == CONTENT[:9000]
    assert [offset for offset, _size in files.requests[:4]] == [0, 0, 100, 0], "from within a page only if it must"


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN, errno.EIO])
def test_one_failure_of_a_request_is_asked_again(path: Path, code: int) -> None:
    placements, memory = whole(len(CONTENT))
    files = BadFiles(once(OSError(code, "cuFile error"), 2))
    report = gds(files).read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and report.retries == 1


@pytest.mark.proves("a count of bytes that cannot be is an error")
@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        (always(errno.EIO), errno.EIO, "EIO"),
        (always(errno.ESTALE), errno.ESTALE, "ESTALE"),
        (once(OSError(errno.ENOSYS, "cuFile error: platform not supported")), errno.ENOSYS, "platform not supported"),
        (lambda number, offset, size: 0, errno.ENODATA, "the file ends here"),
        (lambda number, offset, size: size + 4096, errno.EIO, "cuFile says that"),
        (lambda number, offset, size: -5, errno.EIO, "cuFile says that -5 bytes came"),
    ],
)
def test_what_stays_wrong_is_one_error_with_file_and_place(path: Path, fault: Fault, code: int, told: str) -> None:
    files = BadFiles(fault)
    with pytest.raises(TransferFailed, match=told) as caught:
        gds(files).read_device(path, whole(len(CONTENT))[0], deadline_s=LONG_S)
    assert caught.value.errno == code and caught.value.path == path and caught.value.action == "read"
    assert caught.value.offset is not None
    assert files.open_files == 0 and files.inside == 0


def test_an_error_in_one_thread_waits_for_the_others(path: Path) -> None:
    """kvikio's own reads would report the error while others still write."""
    slow = threading.Event()

    def fault(number: int, offset: int, size: int) -> int | None:
        if number == 0:
            raise OSError(errno.ESTALE, "stale")
        slow.wait(0.3)
        return None

    files = BadFiles(fault)
    with pytest.raises(TransferFailed, match="ESTALE"):
        gds(files).read_device(path, whole(len(CONTENT))[0], deadline_s=LONG_S)
    assert files.inside == 0 and files.open_files == 0
    assert len(files.requests) <= 2 * SETTINGS.threads, "nobody begins another request after the failure"


def test_interrupts_for_ever_end_at_the_deadline(path: Path) -> None:
    def fault(number: int, offset: int, size: int) -> int | None:
        raise INTERRUPTED

    with pytest.raises(TransferTimeout):
        gds(BadFiles(fault)).read_device(path, whole(len(CONTENT))[0], deadline_s=0.4)


@pytest.mark.proves(
    "a transfer that hangs turns new ones away",
    "after the deadline nothing is copied to its place on the device",
)
def test_a_request_that_hangs_ends_in_time_and_touches_nothing_later(path: Path) -> None:
    go, inside = threading.Event(), threading.Event()

    def hang(number: int, offset: int, size: int) -> int | None:
        if offset == 2 * CHUNK:
            inside.set()
            go.wait(LONG_S)
        return None

    files = BadFiles(hang)
    transport = gds(files)
    placements, memory = whole(len(CONTENT))
    began = time.monotonic()
    with pytest.raises(TransferTimeout) as caught:
        transport.read_device(path, placements, deadline_s=0.5)
    assert time.monotonic() - began < 10 and caught.value.offset == 2 * CHUNK
    assert inside.is_set() and files.open_files == 1, "its file stays open, or its descriptor might become another's"
    with pytest.raises(TransferTimeout, match="cannot open"):  # no second transfer beside it
        transport.read_device(path, placements, deadline_s=LONG_S)
    memory.zero_()
    go.set()
    until = time.monotonic() + LONG_S
    while files.open_files and time.monotonic() < until:
        time.sleep(0.01)
    assert files.open_files == 0
    assert not memory.any(), "the late request must not write into the caller's memory"
    transport.read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT


@pytest.mark.parametrize("action", ["open", "close"])
def test_a_hang_of_another_call_ends_in_time_too(path: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    go, target = threading.Event(), BadFiles if action == "open" else BadFile
    real = getattr(target, action)

    def hang(*arguments: object) -> object:
        go.wait(LONG_S)
        return real(*arguments)

    monkeypatch.setattr(target, action, hang)
    with pytest.raises(TransferTimeout) as caught:
        gds(BadFiles()).read_device(path, whole(9)[0], deadline_s=0.5)
    assert caught.value.action == action
    go.set()


@pytest.mark.proves("wrong bytes are seen on the device")
def test_wrong_bytes_are_seen_on_the_device_and_mended_from_the_host(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=4096)
    placements, memory = whole(len(CONTENT))
    files = BadFiles(spoil={5, CHUNK + 4096, len(CONTENT) - 1})
    report = gds(files).read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and report.retries == 3


def test_a_damaged_file_is_corrupt_and_never_copied(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    flip(file.path, 3 * CHUNK + 1)
    placements, memory = whole(len(CONTENT))
    with pytest.raises(Corrupt, match=rf"f at byte {3 * CHUNK}: chunk of 65536 bytes of file f is not what was"):
        gds(BadFiles()).read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory[3 * CHUNK : 4 * CHUNK]) == b"\xee" * CHUNK


def test_without_verifying_what_is_there_comes(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT, with_device=False)
    flip(file.path, 1)
    placements, memory = whole(len(CONTENT))
    gds(BadFiles()).read_device(file, placements, verify=False, deadline_s=LONG_S)
    assert content_of(memory) == file.path.read_bytes()


@pytest.mark.proves("what cannot be checked on the device is not read there")
def test_what_cannot_be_checked_on_the_device_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT, with_device=False)
    transport = gds(BadFiles())
    assert transport.why_not(file, verify=False) == "" == transport.why_not(file.path)
    with pytest.raises(Refused, match=r"file f cannot be checked on the device: .*; read it through host memory"):
        transport.read_device(file, whole(9)[0], deadline_s=LONG_S)
    large = indexed(tmp_path / "g", CONTENT, chunk_bytes=2 * CHUNK)
    assert "cannot be checked" in transport.why_not(large)
    assert transport.why_not(indexed(tmp_path / "e", b"")) == ""


@pytest.mark.proves("a file that is too short is told before cuFile reads anything")
def test_files_that_are_none_say_so(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match="ENOENT"):
        gds(BadFiles()).read_device(tmp_path / "none", whole(9)[0], deadline_s=LONG_S)
    with pytest.raises(Refused, match="is not an ordinary file"):
        gds(BadFiles()).read_device(tmp_path, whole(9)[0], deadline_s=LONG_S)
    os.truncate(path, 70_000)
    files = BadFiles()
    with pytest.raises(FileTruncated) as caught:
        gds(files).read_device(path, whole(len(CONTENT))[0], deadline_s=LONG_S)
    assert caught.value.offset == 70_000 and files.requests == []
    files.open_error = OSError(errno.EIO, "cuFile error at: x: GPUDirect Storage not supported on current file")
    with pytest.raises(TransferFailed, match=r"cannot open .*not supported on current file"):
        gds(files).read_device(path, whole(9)[0], deadline_s=LONG_S)


@pytest.mark.proves("the end of a file that cuFile reads is told")
def test_a_file_truncated_under_way_is_told(path: Path) -> None:
    def fault(number: int, offset: int, size: int) -> int | None:
        if number == 0:
            os.truncate(path, CHUNK)
        return None

    with pytest.raises(FileTruncated) as caught:
        gds(BadFiles(fault), settings=GdsSettings(1, CHUNK)).read_device(path, whole(len(CONTENT))[0], deadline_s=60)
    assert caught.value.offset == CHUNK


@pytest.mark.parametrize("queue", [{"refuse": 3}, {"refuse_wait": 3}])
def test_a_device_that_fails_is_one_error(path: Path, queue: dict[str, int]) -> None:
    files = BadFiles()
    with pytest.raises(TransferFailed, match="the device refuses: CUDA error") as caught:
        gds(files, queue=LateQueue(**queue)).read_device(path, whole(len(CONTENT))[0], deadline_s=LONG_S)
    assert caught.value.action == "copy" and files.open_files == 0


def test_memory_is_registered_for_the_transfer_and_always_deregistered(path: Path) -> None:
    settings = GdsSettings(2, CHUNK, register=True)
    files = BadFiles(lambda number, offset, size: None if files.registered else 0)
    placements, memory = whole(len(CONTENT))
    gds(files, settings=settings).read_device(path, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and files.registered == []
    files.fault = always(errno.ESTALE)
    with pytest.raises(StorageError):
        gds(files, settings=settings).read_device(path, placements, deadline_s=LONG_S)
    assert files.registered == []
    files.refuse_register, files.fault = True, lambda number, offset, size: None
    gds(files, settings=settings).read_device(path, placements, deadline_s=LONG_S)


@pytest.mark.proves("one transfer of a process registers memory at a time")
def test_two_transfers_do_not_register_at_once(path: Path) -> None:
    """Both might register the same allocation, and one would take it from the other."""
    other: list[list[int]] = []
    files, settings = BadFiles(), GdsSettings(1, CHUNK, register=True)

    def fault(number: int, offset: int, size: int) -> int | None:
        if number == 0:
            inner = BadFiles(lambda number, offset, size: other.append(list(inner.registered)))
            gds(inner, settings=settings).read_device(path, whole(9)[0], deadline_s=LONG_S)
        return None

    files.fault = fault
    gds(files, settings=settings).read_device(path, whole(9)[0], deadline_s=LONG_S)
    assert other == [[]] and files.registered == []


@pytest.mark.proves("memory that is still registered is never freed")
def test_memory_that_cannot_be_deregistered_is_kept_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    monkeypatch.setattr("ebbtide.storage.device.gds_transport._never_freed", kept)
    files = BadFiles()
    files.refuse_deregister = True
    gds(files, settings=GdsSettings(2, CHUNK, register=True)).read_device(path, whole(9)[0], deadline_s=LONG_S)
    assert len(kept) == 1


def test_the_mode_is_what_is_proven(path: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    stats.write_text("Reads : n=5 ok=5 err=0 readMiB=10\n")
    placements, _ = whole(len(CONTENT))
    files = BadFiles()
    files.may_fall_back = True
    transport = GdsTransport(files, LateQueue(), SETTINGS, stats=stats)
    report = transport.read_device(path, placements, deadline_s=LONG_S)
    assert report.bytes_by_mode == {Mode.COMPAT: len(CONTENT)} and "nvidia-fs counted only 0" in report.why_not_better

    def counting(number: int, offset: int, size: int) -> int | None:
        stats.write_text(f"Reads : n=5 ok={6 + number} err=0 readMiB=10\n")
        return None

    files.fault = counting
    assert transport.read_device(path, placements, deadline_s=LONG_S).mode is Mode.GDS
    stats.unlink()
    assert transport.read_device(path, placements, deadline_s=LONG_S).mode is Mode.COMPAT
    files.may_fall_back = None
    report = transport.read_device(path, placements, deadline_s=LONG_S)
    assert report.mode is Mode.COMPAT and report.why_not_better == "cuFile was told to copy through host memory"
    assert transport.read_device(path, [], deadline_s=LONG_S).bytes_by_mode == {}


def test_the_callers_memory_and_the_scratch_memory_are_let_go_of(path: Path) -> None:
    placements, memory = whole(len(CONTENT))
    gone = weakref.ref(memory)
    gds(BadFiles()).read_device(path, placements, deadline_s=LONG_S)
    del placements, memory
    assert gone() is None


@pytest.mark.parametrize(
    "bad", [{"threads": 0}, {"request_bytes": 3 << 20}, {"request_bytes": 0}, {"request_bytes": 512}]
)
def test_settings_that_cannot_be_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="are needed"):
        GdsSettings(**bad)  # type: ignore[arg-type]


def test_unchecked_reads_ask_for_whole_pages_within_the_file(path: Path) -> None:
    files = BadFiles()
    memory = torch.zeros(10, dtype=torch.uint8)
    last = torch.zeros(3, dtype=torch.uint8)
    wanted = [Placement(5000, memory), Placement(len(CONTENT) - 3, last)]
    gds(files).read_device(path, wanted, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT[5000:5010] and content_of(last) == CONTENT[-3:]
    assert parts_of(files.requests) == [Range(4096, 4096), Range(9 * CHUNK + 4096, 3)]
