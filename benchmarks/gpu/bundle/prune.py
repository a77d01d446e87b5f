"""Making a site small: files that are left out, symbols, and device code for other GPUs."""

import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.bundle.plan import dropped

# NVIDIA does not document it; so cuobjdump reads it: a header of 16 bytes, then entries.
MAGIC = b"\x50\xed\x55\xba"
HEADER = struct.Struct("<HHQ")  # after the magic: version, bytes of the header, bytes of all entries
ENTRY = struct.Struct("<HHIQ")  # kind, version, bytes of the entry's header, bytes of its payload
PTX, ELF = 1, 2
ARCHITECTURE_AT = 28  # in an entry's header
STRIP_OVER = 1_000_000  # bytes; below it is not worth a process


def prune(site: Path, sm: int) -> None:
    """Make a site small, in place."""
    for path in sorted(site.rglob("*")):
        if path.is_file() and dropped(str(path.relative_to(site)), sm):
            path.unlink()
    for path in _binaries(site):
        if path.is_relative_to(site / "vllm"):
            path.write_bytes(without_other_gpus(path.read_bytes(), sm))
        elif path.is_relative_to(site / "ray"):
            _strip(path)


def _binaries(site: Path) -> Iterator[Path]:
    for path in sorted(site.rglob("*")):
        if path.is_file() and path.stat().st_size > STRIP_OVER:
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _strip(path: Path) -> None:
    """Without symbols that no loader needs; only Ray's, which has many.

    Libraries that were made to stand beside a wheel's others do not load any more after it (numpy's OpenBLAS).
    """
    subprocess.run(["strip", "--strip-unneeded", str(path)], stderr=subprocess.DEVNULL, check=False)


def without_other_gpus(code: bytes, sm: int) -> bytes:
    """A library whose device code for other GPUs than ``sm`` is zeroed; zeroes pack to nothing.

    Of each fatbin the machine code for ``sm`` is kept; where there is none, the newest PTX that this GPU can compile.
    """
    out = bytearray(code)
    for entries in fatbins(code):
        has = any(kind == ELF and architecture == sm for kind, architecture, _, _ in entries)
        ptx = max((arch for kind, arch, _, _ in entries if kind == PTX and arch <= sm), default=None)
        for kind, architecture, at, size in entries:
            if not (kind == ELF and architecture == sm) and not (not has and kind == PTX and architecture == ptx):
                out[at : at + size] = bytes(size)
    return bytes(out)


def fatbins(code: bytes) -> Iterator[list[tuple[int, int, int, int]]]:
    """Of each fatbin its entries: kind, architecture, where the payload is, and its bytes."""
    at = code.find(MAGIC)
    while at >= 0:
        version, header, size = HEADER.unpack_from(code, at + len(MAGIC)) if at + 16 <= len(code) else (0, 0, 0)
        end = at + header + size
        if version != 1 or header != 16 or end > len(code):
            at = code.find(MAGIC, at + 4)
            continue
        entries, place = [], at + header
        while place + ARCHITECTURE_AT + 4 <= end:
            kind, _, entry_header, payload = ENTRY.unpack_from(code, place)
            (architecture,) = struct.unpack_from("<I", code, place + ARCHITECTURE_AT)
            entries.append((kind, architecture, place + entry_header, payload))
            place += entry_header + payload
        yield entries
        at = code.find(MAGIC, end)
