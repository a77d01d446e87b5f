"""The bandwidth probe: it measures what the transport does, keeps to its budget, and removes its file."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.diagnostics.doctor import bandwidth_check
from ebbtide.diagnostics.doctor.bandwidth_check import (
    BandwidthReading,
    fitting,
    judge_bandwidth,
    measure_bandwidth,
    too_large,
)
from ebbtide.diagnostics.doctor.findings import Verdict
from ebbtide.storage.errors import NoRoom, TransferTimeout
from ebbtide.storage.memory.buffer_pool import BufferPool
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import Mode, TransferReport
from ebbtide.storage.transport.transport import CHUNK_BYTES, Consume, Fill, Range
from tests.examples import examples


class SlowTransport:
    """Moves nothing: a transport whose speed is said, and which can go wrong."""

    def __init__(self, gbps: float = 1.0, *, fails_at: int = 99, error: BaseException | None = None) -> None:
        self.gbps, self.fails_at, self.error = gbps, fails_at, error
        self.calls: list[tuple[str, int]] = []
        self.wrong = False

    def _run(self, action: str, ranges: Iterable[Range], path: Path) -> TransferReport:
        count = sum(each.length for each in ranges)
        path.touch()
        self.calls.append((action, count))
        if len(self.calls) > self.fails_at:
            assert self.error is not None
            raise self.error
        return TransferReport({Mode.DIRECT: count}, count / self.gbps / 1e9)

    def write(
        self, path: Path, size_bytes: int, fill: Fill, *, ranges: Iterable[Range] | None = None, deadline_s: float
    ) -> TransferReport:
        wanted = [Range(0, size_bytes)] if ranges is None else list(ranges)
        self.last = memoryview(bytearray(4096))
        for each in wanted:
            for offset in range(each.offset, each.end, CHUNK_BYTES):
                fill(offset, self.last)
        return self._run("write", wanted, path)

    def read(
        self,
        path: Path,
        ranges: Iterable[Range],
        consume: Consume,
        *,
        into: memoryview | None = None,
        deadline_s: float,
    ) -> TransferReport:
        wanted = list(ranges)
        if self.wrong:
            consume(wanted[-1].end - CHUNK_BYTES, memoryview(bytes(4096)))
        return self._run("read", wanted, path)


def quiet(_action: str, _done: int, _total: int) -> None:
    pass


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth_check, "FIRST_BYTES", CHUNK_BYTES)


def test_the_real_transport_is_measured_both_ways_and_leaves_nothing(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    transport = PosixTransport(BufferPool(4, 1 << 20))
    reading = measure_bandwidth(transport, tmp_path, 20 << 20, progress=lambda *step: told.append(step))
    assert reading.error == "" and reading.wrong_bytes == 0
    assert reading.written is not None and reading.read is not None
    assert reading.written.bytes == reading.read.bytes == 2 * CHUNK_BYTES
    assert told[-1] == ("read", 2 * CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert max(done for action, done, _ in told if action == "write") == 2 * CHUNK_BYTES
    assert list(tmp_path.iterdir()) == []


def test_a_slow_filesystem_gets_a_smaller_file(tmp_path: Path) -> None:
    slow = SlowTransport(0.1)
    reading = measure_bandwidth(slow, tmp_path, 1 << 30, progress=quiet, budget_s=1.0)
    fits = int(0.1e9) // CHUNK_BYTES * CHUNK_BYTES
    assert slow.calls == [("write", CHUNK_BYTES), ("write", fits - CHUNK_BYTES), ("read", fits)]
    assert reading.written is not None and reading.written.gb_per_s == pytest.approx(0.1)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(1, 1 << 12),
    st.integers(1, 8),
    st.floats(0, 100, allow_subnormal=False),
    st.floats(0.1, 100),
)
def test_what_is_written_is_whole_chunks_and_at_most_what_is_wanted(
    wanted: int, first: int, first_s: float, budget_s: float
) -> None:
    first = min(first, wanted)
    size = fitting(wanted * CHUNK_BYTES, first * CHUNK_BYTES, first_s, budget_s)
    assert size % CHUNK_BYTES == 0 and first * CHUNK_BYTES <= size <= wanted * CHUNK_BYTES


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_an_error_is_a_finding_and_the_file_goes(tmp_path: Path, fails_at: int) -> None:
    error = NoRoom("cannot write x at byte 4096: No space left on device (ENOSPC)")
    reading = measure_bandwidth(SlowTransport(fails_at=fails_at, error=error), tmp_path, 1 << 30, progress=quiet)
    assert reading.error == str(error) and reading.read is None
    assert list(tmp_path.iterdir()) == []
    finding = judge_bandwidth(reading, None)[0]
    assert finding.broken and "ENOSPC" in finding.what


def test_a_hang_is_a_finding_too(tmp_path: Path) -> None:
    error = TransferTimeout("read", tmp_path / "x", after_s=60, offset=0)
    reading = measure_bandwidth(SlowTransport(fails_at=2, error=error), tmp_path, 1 << 30, progress=quiet)
    broken = judge_bandwidth(reading, None)
    assert [finding.id for finding in broken] == ["bandwidth.probe"] or broken[0].broken
    assert "no answer within 60 s" in broken[0].what


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_ctrl_c_at_any_moment_leaves_nothing(tmp_path: Path, fails_at: int) -> None:
    transport = SlowTransport(fails_at=fails_at, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        measure_bandwidth(transport, tmp_path, 1 << 30, progress=quiet)
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_come_back_different_break_the_node(tmp_path: Path) -> None:
    transport = SlowTransport()
    transport.wrong = True
    reading = measure_bandwidth(transport, tmp_path, 1 << 25, progress=quiet)
    finding = judge_bandwidth(reading, None)[0]
    assert reading.wrong_bytes == 4096 and finding.broken and "came back different" in finding.what


def test_no_two_blocks_are_equal() -> None:
    contents = bandwidth_check._Contents()
    chunks = [bytearray(1 << 20) for _ in range(4)]
    for offset, chunk in zip((0, 1 << 20, CHUNK_BYTES, 2 * CHUNK_BYTES - (1 << 20)), chunks, strict=True):
        contents.fill(offset, memoryview(chunk))
    blocks = [bytes(chunk[at : at + 4096]) for chunk in chunks for at in range(0, 1 << 20, 4096)]
    assert len(set(blocks)) == len(blocks)


def test_half_of_what_is_free_may_be_used() -> None:
    assert too_large(1 << 30, 2 << 30) == ""
    assert "more than half" in too_large((1 << 30) + 1, 2 << 30)


def test_a_buffered_read_that_is_too_slow_is_told_why() -> None:
    report = TransferReport({Mode.BUFFERED: 10**9}, 1.0, why_not_better="O_DIRECT was refused")
    (finding,) = judge_bandwidth(BandwidthReading(read=report), 2.0)
    assert finding.verdict is Verdict.LIMITED and finding.remedy.startswith("see fs.direct")
    assert "posix buffered; O_DIRECT was refused" in finding.what
    assert finding.values["gb_per_s"] == 1.0 and finding.values["expected_gb_per_s"] == 2.0


def test_the_file_s_name_tells_whose_it_is(tmp_path: Path) -> None:
    seen: list[str] = []

    class Watching(SlowTransport):
        def _run(self, action: str, ranges: Iterable[Range], path: Path) -> TransferReport:
            seen.append(path.name)
            return super()._run(action, ranges, path)

    measure_bandwidth(Watching(), tmp_path, 1, progress=quiet)
    assert seen[0].startswith(f".ebbtide-doctor-{os.getpid()}-") and seen[0].endswith(".bandwidth")
