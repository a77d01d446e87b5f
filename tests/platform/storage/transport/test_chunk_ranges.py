"""Cutting ranges: every byte once, nothing across a border, edges and middle as direct I/O needs them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.storage.errors import Refused
from ebbtide.storage.transport.chunk_ranges import check_ranges, cut_at_chunks, down, split, up
from ebbtide.storage.transport.transport import Range

ALIGNMENTS = st.sampled_from([512, 4096, 65536])
RANGES = st.builds(Range, st.integers(0, 1 << 20), st.integers(0, 1 << 20))


@given(st.integers(0, 1 << 50), ALIGNMENTS)
def test_down_and_up_are_the_nearest_multiples(position: int, alignment: int) -> None:
    assert down(position, alignment) <= position <= up(position, alignment)
    assert down(position, alignment) % alignment == 0 == up(position, alignment) % alignment
    assert position - down(position, alignment) < alignment > up(position, alignment) - position


@given(st.lists(RANGES, max_size=5), st.sampled_from([4096, 1 << 16]))
def test_chunks_are_the_ranges_in_their_order_and_cross_no_border(ranges: list[Range], chunk_bytes: int) -> None:
    chunks = list(cut_at_chunks(ranges, chunk_bytes))
    assert all(chunk.length and chunk.offset // chunk_bytes == (chunk.end - 1) // chunk_bytes for chunk in chunks)
    at = iter(chunks)
    for each in ranges:
        position = each.offset
        while position < each.end:
            chunk = next(at)
            assert chunk.offset == position
            position = chunk.end
        assert position == max(each.end, each.offset)
    assert list(at) == []


@given(RANGES, ALIGNMENTS)
def test_a_split_is_the_chunk_with_an_aligned_middle_as_large_as_can_be(chunk: Range, alignment: int) -> None:
    parts = split(chunk, alignment)
    assert (parts.head.offset, parts.head.end, parts.middle.end) == (
        chunk.offset,
        parts.middle.offset,
        parts.tail.offset,
    )
    assert parts.tail.end == chunk.end
    if parts.middle.length:
        assert parts.middle.offset % alignment == 0 == parts.middle.end % alignment
        assert parts.head.length < alignment > parts.tail.length
    else:
        assert up(chunk.offset, alignment) >= down(chunk.end, alignment), "there was an aligned part"
    assert all(edge.length for edge in parts.edges)


def test_empty_ranges_are_left_out_and_the_order_is_kept() -> None:
    assert check_ranges([Range(8, 2), Range(3, 0), Range(0, 4)]) == [Range(8, 2), Range(0, 4)]


@pytest.mark.parametrize("ranges", [[Range(-1, 2)], [Range(0, -2)], [Range(0, 5), Range(4, 1)], [Range(4, 1)] * 2])
def test_what_is_no_range_and_what_overlaps_is_refused(ranges: list[Range]) -> None:
    with pytest.raises(Refused, match=r"Range\("):
        check_ranges(ranges)
