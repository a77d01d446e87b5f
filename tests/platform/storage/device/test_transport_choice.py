"""Which way is taken, why, and what happens to a file that the way fails."""

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from ebbtide.storage.device import transport_choice as choosing
from ebbtide.storage.device.device_queue import HostQueue
from ebbtide.storage.device.device_transport import DeviceTransport, Source
from ebbtide.storage.device.gds_probe import GdsVerdict
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.placements import Placement
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.device.transport_choice import (
    MOST_FAILURES,
    Choice,
    ChosenTransport,
    Way,
    choose,
    device_transport,
)
from ebbtide.storage.errors import Corrupt, FileTruncated, Refused, TransferFailed, TransferTimeout
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from tests.platform.storage.device_fakes import CHUNK, CPU, LONG_S, BadFiles, always, content_of, flip, indexed, whole
from tests.platform.storage.stores import POOL, random_bytes

CONTENT = random_bytes(3 * CHUNK + 99)
WORKS = GdsVerdict(True, Mode.GDS, "it went")
COPIES = GdsVerdict(False, Mode.COMPAT, "it would copy")
NOT = GdsVerdict(False, None, "there is no CUDA driver library")
SHOP = Path("/shop")


def unasked(_directory: Path) -> GdsVerdict:
    raise AssertionError("the probe must not run")


@pytest.mark.proves("cuFile is not chosen where it was not seen to work")
def test_the_best_way_that_works_is_taken_and_says_why() -> None:
    assert choose(SHOP, "cuda", probe=lambda _: WORKS) == Choice(Way.GDS, "it went")
    for verdict in (COPIES, NOT):
        choice = choose(SHOP, "cuda:1", probe=lambda _, verdict=verdict: verdict)  # type: ignore[misc]
        assert choice == Choice(Way.STAGED, f"no direct way from storage to the GPU: {verdict.why}")
    assert choose(SHOP, "cpu", probe=unasked) == Choice(Way.STAGED, "the device is cpu: cuFile reaches GPUs only")


@pytest.mark.proves("cuFile that would hang is refused even when asked for")
def test_an_override_is_obeyed_but_never_into_a_hang() -> None:
    for way in (Way.STAGED, Way.BUFFERED):
        assert choose(SHOP, "cuda", override=way, probe=unasked) == Choice(way, f"{way.value} was asked for")
    for verdict in (WORKS, COPIES):
        choice = choose(SHOP, "cuda", override=Way.GDS, probe=lambda _, verdict=verdict: verdict)  # type: ignore[misc]
        assert choice.way is Way.GDS and verdict.why in choice.why
    with pytest.raises(Refused, match="cannot be used here: there is no CUDA driver library"):
        choose(SHOP, "cuda", override=Way.GDS, probe=lambda _: NOT)
    with pytest.raises(Refused, match="reaches GPUs only"):
        choose(SHOP, "cpu", override=Way.GDS, probe=unasked)


def test_each_directory_is_probed_once_in_a_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []

    def probe(deadline_s: float, *, directory: Path) -> GdsVerdict:
        asked.append(directory)
        return NOT

    monkeypatch.setattr(choosing, "probe_gds", probe)
    monkeypatch.setattr(choosing, "_verdicts", {})
    monkeypatch.chdir(tmp_path)
    for directory in (tmp_path, Path("."), tmp_path / "x" / "..", tmp_path / "other"):
        choosing.probe_directory(directory)
    assert asked == [tmp_path, tmp_path / "other"]
    monkeypatch.setattr(os, "getpid", lambda: 1)
    choosing.probe_directory(tmp_path)
    assert len(asked) == 3, "a forked child asks again"


class Failing:
    """A way to the device that fails with these errors, one for each file, and then works no more."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked = list(errors), 0
        self.device = CPU

    def why_not(self, source: Source, *, verify: bool = True) -> str:
        return ""

    def read_device(
        self, source: Source, placements: Iterable[Placement], *, verify: bool = True, deadline_s: float
    ) -> TransferReport:
        self.asked += 1
        for each in placements:  # cuFile may have brought something before it failed
            each.memory.fill_(0xAB)
        raise self.errors.pop(0)


def staged() -> StagedTransport:
    return StagedTransport(PosixTransport(POOL, threads=2), HostQueue())


def fallen_back(gds: Failing | GdsTransport) -> ChosenTransport:
    return ChosenTransport(Choice(Way.GDS, "it went"), staged(), gds)


def conforms(transport: ChosenTransport) -> DeviceTransport:
    """For the type checker."""
    return transport


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_that_cufile_fails_comes_through_host_memory_with_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    placements, memory = whole(len(CONTENT))
    gds = GdsTransport(BadFiles(always(code)), HostQueue(), GdsSettings(2, CHUNK), stats=Path("/none"))
    with caplog.at_level(logging.INFO):
        report = fallen_back(gds).read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT
    assert report.mode in (Mode.DIRECT, Mode.BUFFERED) and report.bytes == len(CONTENT) and report.retries == 1
    assert report.why_not_better.startswith(f"cuFile failed: cannot read {file.path} at byte")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(file.path) in caplog.text and "this file is read through host memory" in caplog.text


@pytest.mark.proves("some failures of cuFile in a row are enough")
def test_after_some_failures_in_a_row_cufile_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    failing = Failing(*[TransferFailed("read", "/f", errno=errno.EIO, offset=7) for _ in range(9)])
    transport = fallen_back(failing)
    for _ in range(MOST_FAILURES + 3):
        placements, memory = whole(len(CONTENT))
        report = transport.read_device(file, placements, deadline_s=LONG_S)
        assert content_of(memory) == CONTENT
        assert "cannot read /f at byte 7" in report.why_not_better
    assert failing.asked == MOST_FAILURES and len(caplog.records) == MOST_FAILURES
    assert "from now on" in caplog.records[-1].message


@pytest.mark.proves("a success between failures counts")
def test_a_success_between_failures_counts(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    fail = [False]

    def fault(number: int, offset: int, size: int) -> int | None:
        if fail[0]:
            raise OSError(errno.ESTALE, "stale")
        return None

    transport = fallen_back(GdsTransport(BadFiles(fault), HostQueue(), GdsSettings(1, CHUNK), stats=Path("/none")))
    for _ in range(3 * MOST_FAILURES):
        fail[0] = not fail[0]
        report = transport.read_device(file, whole(9)[0], deadline_s=LONG_S)
        assert report.mode is (Mode.GDS if not fail[0] else report.mode)
    assert transport.read_device(file, whole(9)[0], deadline_s=LONG_S).mode is not Mode.GDS
    fail[0] = False
    assert transport.read_device(file, whole(9)[0], deadline_s=LONG_S).mode is Mode.GDS


@pytest.mark.proves("one hang of cuFile is enough")
def test_one_hang_is_enough(tmp_path: Path) -> None:
    failing = Failing(TransferTimeout("read", "/f", after_s=1, offset=0))
    transport = fallen_back(failing)
    for _ in range(3):
        placements, memory = whole(len(CONTENT))
        transport.read_device(indexed(tmp_path / "f", CONTENT), placements, deadline_s=LONG_S)
        assert content_of(memory) == CONTENT
    assert failing.asked == 1


@pytest.mark.proves("a way that hangs gets half of the time")
def test_the_hanging_way_gets_half_of_the_time(tmp_path: Path) -> None:
    seen: list[float] = []

    class Slow(Failing):
        def read_device(self, *arguments: object, deadline_s: float, **named: object) -> TransferReport:
            seen.append(deadline_s)
            raise TransferTimeout("read", "/f", after_s=deadline_s)

    transport = fallen_back(Slow())
    transport.read_device(indexed(tmp_path / "f", CONTENT), whole(9)[0], deadline_s=40.0)
    assert seen == [20.0]


@pytest.mark.proves("what another way would find too is told at once")
@pytest.mark.parametrize(
    "error",
    [
        Corrupt("is not what was published", "/f", offset=0),
        FileTruncated("/f", offset=1, expected_bytes=2),
        Refused("no"),
        TransferFailed("open", "/f", errno=errno.ENOENT),
        TransferFailed("open", "/f", errno=errno.EACCES),
    ],
)
def test_what_another_way_would_find_too_is_no_reason_to_take_it(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        fallen_back(Failing(error)).read_device(indexed(tmp_path / "f", CONTENT), whole(9)[0], deadline_s=LONG_S)
    assert caught.value is error


def test_a_damaged_file_is_corrupt_in_whatever_way(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    flip(file.path, 5)
    for fault in (lambda number, offset, size: None, always(errno.EIO)):
        gds = GdsTransport(BadFiles(fault), HostQueue(), GdsSettings(1, CHUNK), stats=Path("/none"))
        with pytest.raises(Corrupt):
            fallen_back(gds).read_device(file, whole(len(CONTENT))[0], deadline_s=LONG_S)


def test_files_that_cannot_be_checked_on_the_device_take_the_other_way_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = indexed(tmp_path / "f", CONTENT, with_device=False)
    placements, memory = whole(len(CONTENT))
    gds = GdsTransport(BadFiles(always(errno.EIO)), HostQueue(), GdsSettings(1, CHUNK))
    report = fallen_back(gds).read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and "no device hashes" in report.why_not_better
    assert not caplog.records


def test_a_transport_for_this_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=4096)
    with caplog.at_level(logging.INFO):
        transport = device_transport(tmp_path, "cpu", probe=unasked)
    assert transport.choice.way is Way.STAGED and transport.device == CPU
    assert transport.choice.why in caplog.text
    placements, memory = whole(len(CONTENT))
    report = transport.read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and report.why_not_better.startswith("the device is cpu")
    buffered = device_transport(tmp_path, "cpu", override=Way.BUFFERED)
    memory.zero_()
    report = buffered.read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and report.mode is Mode.BUFFERED
    assert report.why_not_better == "buffered was asked for"


def test_the_buffers_are_the_processs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(BufferPool):
        def __init__(self, count: int) -> None:
            made.append(count)
            super().__init__(1, CHUNK)

    monkeypatch.setattr(choosing, "BufferPool", Counted)
    monkeypatch.setattr(choosing, "_pools", {})
    for _ in range(3):
        device_transport(tmp_path, "cpu")
    assert len(made) == 1


def test_a_probe_that_works_without_a_kvikio_here_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise Refused("kvikio cannot be used (No module named 'kvikio')")

    monkeypatch.setattr(choosing, "KvikioFiles", missing)
    monkeypatch.setattr(choosing, "queue_for", lambda _device: HostQueue())
    transport = device_transport(tmp_path, "cuda", probe=lambda _: WORKS)
    assert transport.choice.way is Way.STAGED and "but kvikio cannot be used" in transport.choice.why
    with pytest.raises(Refused, match="kvikio cannot be used"):
        device_transport(tmp_path, "cuda", override=Way.GDS, probe=lambda _: WORKS)


def test_gds_is_used_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = indexed(tmp_path / "f", CONTENT, chunk_bytes=4096)
    monkeypatch.setattr(choosing, "KvikioFiles", BadFiles)
    monkeypatch.setattr(choosing, "queue_for", lambda _device: HostQueue())
    transport = device_transport(tmp_path, "cuda", probe=lambda _: WORKS)
    placements, memory = whole(len(CONTENT))
    report = transport.read_device(file, placements, deadline_s=LONG_S)
    assert content_of(memory) == CONTENT and report.bytes_by_mode == {Mode.GDS: len(CONTENT)}
    assert report.why_not_better == ""
