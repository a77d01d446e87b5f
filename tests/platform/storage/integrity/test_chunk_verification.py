"""Files with an index and no object: their chunks are told right from wrong, on the host and for a device."""

from pathlib import Path

import pytest

from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.integrity.chunk_hash import device_hash
from ebbtide.storage.integrity.chunk_verification import ChunkVerifier, chunks_of, look_again
from ebbtide.storage.transport.transport import Range
from tests.platform.storage.device_fakes import CHUNK, indexed
from tests.platform.storage.stores import random_bytes

CONTENT = random_bytes(3 * CHUNK + 77)


def test_right_chunks_pass_and_wrong_short_and_misplaced_ones_do_not(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    chunks = chunks_of(file)
    assert [chunk.length for chunk in chunks] == [CHUNK, CHUNK, CHUNK, 77]
    for chunk in chunks:
        data = CONTENT[chunk.offset : chunk.end]
        assert file.is_right(chunk, data)
        assert not file.is_right(chunk, data[:-1])
        assert not file.is_right(chunk, bytes([data[0] ^ 1]) + data[1:])
    assert not file.is_right(chunks[0], CONTENT[CHUNK : 2 * CHUNK])
    assert not file.is_right(chunks[1], CONTENT[:CHUNK])


def test_the_device_hash_is_that_of_the_chunk_or_none(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    for chunk in chunks_of(file):
        expected = file.device_hash(chunk)
        assert expected is not None
        assert device_hash(CONTENT[chunk.offset : chunk.end], expected[0]) == expected[1]
    assert indexed(tmp_path / "g", CONTENT, with_device=False).device_hash(Range(0, CHUNK)) is None


@pytest.mark.proves("a part outside its file is refused", "parts are rounded out to chunks")
def test_ranges_outside_are_refused_with_the_files_name(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    assert chunks_of(file, [Range(CHUNK - 1, 2), Range(5, 0)]) == [Range(0, CHUNK), Range(CHUNK, CHUNK)]
    with pytest.raises(Refused, match="is not in file f, which has 196685 bytes"):
        chunks_of(file, [Range(len(CONTENT), 1)])


@pytest.mark.proves(
    "a chunk that is wrong at the second look too ends the read", "a chunk whose hash is wrong is not handed on"
)
def test_a_wrong_chunk_is_mended_in_place_or_told(tmp_path: Path) -> None:
    file = indexed(tmp_path / "f", CONTENT)
    memory = bytearray(CONTENT[CHUNK : 2 * CHUNK])
    memory[9] ^= 1
    seen: list[bytes] = []
    checker = ChunkVerifier(file, lambda _offset, data: seen.append(bytes(data)))
    checker(CHUNK, memoryview(memory))
    assert seen == [CONTENT[CHUNK : 2 * CHUNK]] and checker.mended == 1
    with pytest.raises(Corrupt, match=r"f at byte 65536: chunk of 65536 bytes of file f is not what was published"):
        look_again(file, Range(CHUNK, CHUNK), lambda _path, _part: bytes(CHUNK))
