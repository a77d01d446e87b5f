"""How bytes really went that were read by cuFile: by DMA, or through host memory, into which it falls back in silence.

Two things can prove DMA. nvidia-fs counts what it moved, for the whole machine. And cuFile may be forbidden to fall
back (``properties.allow_compat_mode`` false in its settings): then what came, came by DMA. Without either nothing is
proven, and what is not proven is not claimed.

Not guaranteed: the counters while other processes read too; their bytes may pass for ours.

Source: NVIDIA GPUDirect Storage, nvidia-fs ``nvfs-stat.c``: ``Reads : n=.. ok=.. err=.. readMiB=..``, where ``readMiB``
is missing as long as the module's ``rw_stats_enabled`` is off; older versions wrote ``readMB`` and meant the same.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ebbtide.storage.transport.transfer_report import Mode

STATS = Path("/proc/driver/nvidia-fs/stats")
_READS = re.compile(r"^Reads\s*:.*\bok=(\d+)\b.*\bread(?:MiB|MB)=(\d+)", re.MULTILINE)
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reads:
    """What nvidia-fs has counted since it was loaded.

    Attributes:
        ok: requests that succeeded.
        mib: what they read, rounded down.
    """

    ok: int
    mib: int


def counted_reads(stats: Path = STATS) -> Reads | None:
    """What nvidia-fs has counted, or None where it is not there or does not count."""
    try:
        found = _READS.search(stats.read_text())
    except OSError:
        return None
    return Reads(int(found[1]), int(found[2])) if found else None


def modes(
    moved_bytes: int, before: Reads | None, after: Reads | None, *, may_fall_back: bool
) -> tuple[dict[Mode, int], str]:
    """How ``moved_bytes`` went, and why not all by DMA, in words.

    Args:
        moved_bytes: by cuFile, between the two readings.
        before: what nvidia-fs had counted.
        after: what it has counted now.
        may_fall_back: whether cuFile's settings allow that.
    """
    if not moved_bytes:
        return {}, ""
    if not may_fall_back:
        return {Mode.GDS: moved_bytes}, ""
    if before is None or after is None:  # guard: a direct transfer that is not proven is not claimed
        why = "cuFile may have copied through host memory: nvidia-fs counts nothing here"
        return {Mode.COMPAT: moved_bytes}, f"{why}; forbid it in cufile.json (properties.allow_compat_mode) to know"
    counted = (after.mib - before.mib) * _MIB
    # Counted in MiB, rounded down at both ends; below one of them only the number of requests tells.
    if after.ok > before.ok and counted + _MIB >= moved_bytes:  # guard: bytes that nvidia-fs did not count were copied
        return {Mode.GDS: moved_bytes}, ""
    copied = moved_bytes - max(counted, 0)
    found = {Mode.GDS: moved_bytes - copied, Mode.COMPAT: copied}
    why = f"cuFile copied {copied} bytes through host memory: nvidia-fs counted only {counted} of {moved_bytes} bytes"
    return {mode: count for mode, count in found.items() if count}, why
