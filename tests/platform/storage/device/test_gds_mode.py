"""What is claimed about DMA is proven, or it is not claimed."""

from pathlib import Path

import pytest

from ebbtide.storage.device.gds_mode import Reads, counted_reads, modes
from ebbtide.storage.transport.transfer_report import Mode

MIB = 1 << 20

NEW = """GDS Version: 1.15.1.6
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.26.6)
Mellanox PeerDirect Supported: True
IO stats: Enabled, peer IO stats: Enabled
Logging level: info

Active Shadow-Buffer (MiB): 0
Active Process: 1
Batches\t\t\t\t: n=0 ok=0 err=0 Avg-Submit-Latency(usec)=0
Reads\t\t\t\t: n=1048576 ok=1048570 err=6 readMiB=1048576 io_state_err=0
Reads\t\t\t\t: Bandwidth(MiB/s)=13224 Avg-Latency(usec)=594
Sparse Reads\t\t\t: n=0 io=0 holes=0 pages=0
Writes\t\t\t\t: n=12 ok=12 err=0 writeMiB=7 io_state_err=0 pg-cache=0 pg-cache-fail=0 pg-cache-eio=0
"""
OLD = "Active Process: 3\nReads                          : n=48213214 ok=48213211 err=0 readMB=6294177\n"
OFF = "IO stats: Disabled, peer IO stats: Disabled\nReads                : err=0 io_state_err=0\nSparse Reads : n=0\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [(NEW, Reads(1048570, 1048576)), (OLD, Reads(48213211, 6294177)), (OFF, None), ("", None)],
)
def test_every_version_of_the_counters_is_read(tmp_path: Path, text: str, found: Reads | None) -> None:
    (tmp_path / "stats").write_text(text)
    assert counted_reads(tmp_path / "stats") == found
    assert counted_reads(tmp_path / "none") is None


def test_a_driver_that_may_not_fall_back_did_not() -> None:
    assert modes(5, None, None, may_fall_back=False) == ({Mode.GDS: 5}, "")
    assert modes(0, None, None, may_fall_back=True) == ({}, "")


@pytest.mark.proves("a direct transfer that is not proven is not claimed")
def test_without_counters_nothing_is_proven() -> None:
    for before, after in ((None, None), (Reads(1, 1), None), (None, Reads(1, 1))):
        found, why = modes(7 * MIB, before, after, may_fall_back=True)
        assert found == {Mode.COMPAT: 7 * MIB}
        assert "nvidia-fs counts nothing here" in why and "allow_compat_mode" in why


@pytest.mark.proves("bytes that nvidia-fs did not count were copied")
@pytest.mark.parametrize(
    ("moved", "after", "direct"),
    [
        (7 * MIB, Reads(108, 1007), 7 * MIB),
        (7 * MIB, Reads(108, 1006), 7 * MIB),  # rounded down
        (7 * MIB, Reads(500, 5000), 7 * MIB),  # others read too
        (7 * MIB, Reads(104, 1003), 3 * MIB),
        (7 * MIB, Reads(100, 1000), 0),
        (4096, Reads(101, 1000), 4096),
        (4096, Reads(100, 1000), 0),
        (7 * MIB, Reads(3, 2), 0),  # the module was loaded anew meanwhile
    ],
)
def test_the_counters_tell_how_much_went_directly(moved: int, after: Reads, direct: int) -> None:
    found, why = modes(moved, Reads(100, 1000), after, may_fall_back=True)
    assert found.get(Mode.GDS, 0) == direct and sum(found.values()) == moved
    assert bool(why) is (direct < moved)
    assert all(found.values())
