"""Windows of a checkpoint file: each chunk is read once, and no window lacks one."""

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.safetensors.file_header import TensorEntry
from ebbtide_serve.loading.reading.windows import ALIGNMENT_BYTES, cut_windows

CHUNK = 100


@given(
    lengths=st.lists(st.integers(0, 350), min_size=1, max_size=30),
    wanted=st.data(),
    window=st.integers(CHUNK, 600),
    header=st.integers(8, 250),
)
def test_each_chunk_is_read_once_by_the_first_window_that_needs_it(
    lengths: list[int], wanted: st.DataObject, window: int, header: int
) -> None:
    entries, end = [], header
    for number, length in enumerate(lengths):
        entries.append(TensorEntry(str(number), "U8", (length,), end, length))
        end += length
    chosen = [entry for entry in entries if wanted.draw(st.booleans())]
    windows = cut_windows(chosen, window_bytes=window, chunk_bytes=CHUNK, file_bytes=end)

    assert [entry for one in windows for entry in one.entries] == chosen
    read = [part.offset for one in windows for part in one.ranges]
    assert len(read) == len(set(read))
    assert set(read) == {
        at for entry in chosen for at in range(entry.offset // CHUNK * CHUNK, entry.end, CHUNK) if entry.length
    }
    for part in (part for one in windows for part in one.ranges):
        assert part.offset % CHUNK == 0
        assert part.end == min(part.offset + CHUNK, end)
    for number, one in enumerate(windows):
        # A window gets its bytes from its own chunks and from those of the one before, never from an older one.
        near = {part.offset for other in windows[max(0, number - 1) : number + 1] for part in other.ranges}
        for entry in one.entries:
            assert not entry.length or set(range(entry.offset // CHUNK * CHUNK, entry.end, CHUNK)) <= near
        ends = [start + entry.length for start, entry in zip(one.starts, one.entries, strict=True)]
        assert all(start % ALIGNMENT_BYTES == 0 for start in one.starts)
        assert all(before <= after for before, after in zip(ends, one.starts[1:], strict=False))
        assert max(ends) <= one.size_bytes
        assert number == len(windows) - 1 or sum(entry.length for entry in one.entries) >= window
