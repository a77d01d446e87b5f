"""Cutting a checkpoint file into windows: some whole tensors each, read one ahead of the other. Pure.

A window is as large as it must be to hold its tensors, and otherwise about as large as asked for. Files are checked in
chunks, so a window's edges fall into chunks that it shares with its neighbours; each chunk is read once, with the first
window that needs it, and gives the next one its share.

In memory each tensor begins at a multiple of 64 bytes, wherever it lies in its file: no type wants more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebbtide.storage.safetensors.file_header import TensorEntry
from ebbtide.storage.transport.chunk_ranges import up
from ebbtide.storage.transport.transport import Range

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Window:
    """Tensors that are read together.

    Attributes:
        entries: in the order of the file.
        starts: where each begins in memory.
        size_bytes: of that memory.
        ranges: whole chunks that are to be read for it, and for no window before.
    """

    entries: tuple[TensorEntry, ...]
    starts: tuple[int, ...]
    size_bytes: int
    ranges: tuple[Range, ...]


def cut_windows(
    entries: Iterable[TensorEntry], *, window_bytes: int, chunk_bytes: int, file_bytes: int
) -> list[Window]:
    """Plan the reading of some tensors of a file.

    Args:
        entries: those that are wanted, in the order of the file.
        window_bytes: of tensors, before a window is closed; at least one chunk.
        chunk_bytes: of the file's checked pieces.
        file_bytes: its length; the last chunk ends there.
    """
    assert window_bytes >= chunk_bytes, "else a chunk would belong to more than two windows"
    windows: list[Window] = []
    group: list[TensorEntry] = []
    held = unread = 0  # bytes in the group; the first chunk that no window reads yet
    for entry in entries:
        group.append(entry)
        held += entry.length
        if held >= window_bytes:
            windows.append(_window(group, unread, chunk_bytes, file_bytes))
            held, unread, group = 0, -(-entry.end // chunk_bytes), []
    if group:
        windows.append(_window(group, unread, chunk_bytes, file_bytes))
    return windows


def _window(group: Sequence[TensorEntry], unread: int, chunk_bytes: int, file_bytes: int) -> Window:
    starts, size = [], 0
    numbers: dict[int, None] = {}
    for entry in group:
        starts.append(size)
        size += up(entry.length, ALIGNMENT_BYTES)
        if entry.length:
            numbers |= dict.fromkeys(range(entry.offset // chunk_bytes, -(-entry.end // chunk_bytes)))
    chunks = (
        Range(number * chunk_bytes, min(chunk_bytes, file_bytes - number * chunk_bytes))
        for number in numbers
        if number >= unread
    )
    return Window(tuple(group), tuple(starts), size, tuple(chunks))
