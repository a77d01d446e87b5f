"""What of a machine an image depends on: kernel, processor, CRIU, its GPUs if it uses one. And what of its files.

The rule for all is the same: what was not tried is refused. An image goes back to the same kernel release and the same
CRIU, to a processor that can do at least the same, and to the very builds of programs and libraries that the tree had
mapped (code is not in the image). If processes of it were taken off a GPU, the driver's own part of them is in the
image too: it goes back to the same driver, on a machine that has the chips of the one where it was made.
"""

import os
import platform
import struct
from pathlib import Path

import xxhash
from pydantic import BaseModel, ConfigDict

WHOLE_BELOW_BYTES = 64 << 20  # hashed whole; of longer ones without a build id the ends and the length
_END_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3  # elf(5)
_MOST_NOTES_BYTES = 1 << 16


class Gpus(BaseModel):
    """What processes that were taken off a GPU depend on.

    Attributes:
        driver: its versions, of the CUDA part and of the kernel's.
        chips: what each GPU of the machine is, by uuid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    driver: str
    chips: dict[str, str]


class Machine(BaseModel):
    """Where an image was made, or is to be brought back.

    Attributes:
        gpu: of an image, None: no process of it uses a GPU (or it was made before this was kept); of a machine, None:
            it has no driver that takes processes off GPUs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    criu: str
    kernel: str
    cpu_flags: tuple[str, ...]
    gpu: Gpus | None = None

    def objections(self, here: "Machine") -> list[str]:
        """Why an image of this machine cannot be brought back on ``here``."""
        found = []
        if self.criu != here.criu:
            found.append(f"it was made by CRIU {self.criu}, here is {here.criu}")
        if self.kernel != here.kernel:
            found.append(f"it was made on kernel {self.kernel}, here is {here.kernel}")
        if missing := sorted(set(self.cpu_flags) - set(here.cpu_flags)):
            found.append(f"this processor lacks {', '.join(missing[:8])}{' and more' if len(missing) > 8 else ''}")
        if self.gpu is not None:
            found += _gpu_objections(self.gpu, here.gpu)
        return found

    def wanted(self) -> str:
        """What a node must have for an image of this machine, for people."""
        gpu = f", {self.gpu.driver} and {_kinds(self.gpu)}" if self.gpu is not None else ""
        return f"a node with {self.kernel}, CRIU {self.criu}{gpu}, and a processor that can do as much"


def _gpu_objections(made: Gpus, here: Gpus | None) -> list[str]:
    if here is None:
        return [f"it was made with {made.driver}, and no GPU driver here puts processes back"]
    found = []
    if made.driver != here.driver:
        found.append(f"it was made with {made.driver}, here is {here.driver}")
    if set(made.chips.values()) - set(here.chips.values()):
        found.append(f"it was made with {_kinds(made)}, here is {_kinds(here)}")
    return found


def _kinds(gpus: Gpus) -> str:
    return " and ".join(sorted(set(gpus.chips.values()))) or "no GPU"


def this_machine(criu_version: str, gpu: Gpus | None = None) -> Machine:
    """The one that we run on; ``gpu``: what the driver says of it."""
    flags: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags |= set(value.split())
            break  # all cores of a machine that CRIU runs on are alike
    return Machine(
        criu=criu_version,
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_flags=tuple(sorted(flags)),
        gpu=gpu,
    )


def build_of(path: Path) -> str:
    """What tells one build of a program, library or data file from another: its ELF build id, or a hash.

    Not guaranteed for a file of 64 MiB or more without a build id: that a change in its middle is seen.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(64)
        found = _build_id(file.fileno(), head) if head[:5] == b"\x7fELF\x02" and len(head) == 64 else None
        if found:
            return f"build {found}"
        size = os.fstat(file.fileno()).st_size
        digest = xxhash.xxh3_128(str(size).encode())
        spans = [(0, size)] if size < WHOLE_BELOW_BYTES else [(0, _END_BYTES), (size - _END_BYTES, size)]
        for start, end in spans:
            while start < end and (part := os.pread(file.fileno(), min(_CHUNK_BYTES, end - start), start)):
                digest.update(part)
                start += len(part)
        return f"xxh3 {digest.hexdigest()}"


def _build_id(fd: int, head: bytes) -> str | None:
    """The build id in the notes of a 64-bit little-endian ELF file."""
    (table_at,) = struct.unpack_from("<Q", head, 32)
    entry_bytes, count = struct.unpack_from("<HH", head, 54)
    for number in range(count):
        entry = os.pread(fd, entry_bytes, table_at + number * entry_bytes)
        if len(entry) < 56 or struct.unpack_from("<I", entry)[0] != _PT_NOTE:
            continue
        offset, _, _, size = struct.unpack_from("<QQQQ", entry, 8)
        notes = os.pread(fd, min(size, _MOST_NOTES_BYTES), offset)
        at = 0
        while at + 12 <= len(notes):
            name_bytes, desc_bytes, kind = struct.unpack_from("<III", notes, at)
            name_at = at + 12
            desc_at = name_at + (name_bytes + 3 & ~3)
            if kind == _NT_GNU_BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0" and desc_bytes:
                return notes[desc_at : desc_at + desc_bytes].hex()
            at = desc_at + (desc_bytes + 3 & ~3)
    return None
