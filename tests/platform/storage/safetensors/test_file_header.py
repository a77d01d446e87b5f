"""Headers that nobody vouches for: whatever the reference implementation refuses is refused, and nothing breaks."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.errors import Corrupt
from ebbtide.storage.safetensors.file_header import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    TensorEntry,
    header_bytes,
    parse_header,
    read_header,
)
from tests.examples import examples
from tests.platform.storage.stores import stock_tensors

PATH = Path("model.safetensors")


def file_of(header: object, data: bytes = b"", *, pad: int = 0, raw: bytes | None = None) -> bytes:
    text = (json.dumps(header).encode() if raw is None else raw) + b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def parse(content: bytes) -> Any:
    length = header_bytes(content[:8], len(content), PATH)
    return parse_header(content[:length], len(content), PATH)


def entry(dtype: str = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_header_is_read_in_the_order_of_the_bytes() -> None:
    content = file_of(
        {
            "b": entry("F32", [2, 1], [4, 12]),
            "a": entry(),
            "e": entry("F16", [0, 7], [4, 4]),
            "__metadata__": {"k": "v"},
        },
        bytes(12),
        pad=9,
    )
    header = parse(content)
    start = len(content) - 12
    assert header.entries == (
        TensorEntry("a", "U8", (4,), start, 4),
        TensorEntry("e", "F16", (0, 7), start + 4, 0),
        TensorEntry("b", "F32", (2, 1), start + 4, 8),
    )
    assert (header.metadata, header.data_offset, header.file_bytes) == ({"k": "v"}, start, len(content))
    assert header.named()["b"].end == len(content)


BAD: dict[str, bytes] = {
    "empty file": b"",
    "seven bytes": bytes(7),
    "length only": struct.pack("<Q", 0),
    "header beyond the file": struct.pack("<Q", 100) + b"{}",
    "huge header": struct.pack("<Q", 1 << 62) + b"{}",
    "a header of 100 MB and one": struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}",
    "not json": file_of(None, raw=b"{nonsense}"),
    "a list": file_of([1]),
    "white space alone": file_of(None, raw=b"  "),
    "two documents": file_of(None, raw=b"{}{}"),
    "NaN": file_of(None, raw=b'{"a":NaN}'),
    "not UTF-8": file_of(None, raw=b'{"\xff":1}'),
    "a lone surrogate": file_of(None, raw=b'{"__metadata__":{"a":"\\ud800"}}'),
    "nested without end": file_of(None, raw=b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "an integer of 10,000 digits": file_of(None, raw=b'{"a":' + b"9" * 10_000 + b"}"),
    "a name twice": file_of(None, bytes(4), raw=b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2)),
    "a field twice": file_of(None, bytes(4), raw=b'{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}'),
    "a field missing": file_of({"a": {"dtype": "U8", "shape": [4]}}, bytes(4)),
    "an entry that is a number": file_of({"a": 4}, bytes(4)),
    "unknown type": file_of({"a": entry("U9")}, bytes(4)),
    "type as a list": file_of({"a": entry(["U8"])}, bytes(4)),  # type: ignore[arg-type]
    "negative size": file_of({"a": entry(shape=[-4])}, bytes(4)),
    "two negative sizes": file_of({"a": entry(shape=[-2, -2])}, bytes(4)),
    "size as a text": file_of({"a": entry(shape=["4"])}, bytes(4)),
    "size as a float": file_of({"a": entry(shape=[4.0])}, bytes(4)),
    "size true": file_of({"a": entry(shape=[True], offsets=[0, 1])}, bytes(1)),
    "sizes whose product overflows to the right length": file_of(
        {"a": entry(shape=[1 << 33, 1 << 31, 1], offsets=[0, 0])}, b""
    ),
    "sizes without end": file_of({"a": entry(shape=[1 << 63] * 5000)}, bytes(4)),
    "too few bytes": file_of({"a": entry("F32", [2], [0, 4])}, bytes(4)),
    "too many bytes": file_of({"a": entry("U8", [2], [0, 4])}, bytes(4)),
    "half a byte": file_of({"a": entry("F4", [7], [0, 3])}, bytes(3)),
    "offsets backwards": file_of({"a": entry("U8", [0], [4, 0])}, bytes(4)),
    "three offsets": file_of({"a": entry(offsets=[0, 4, 8])}, bytes(4)),
    "negative offset": file_of({"a": entry(offsets=[-4, 0])}, bytes(4)),
    "offset beyond 64 bits": file_of({"a": entry(offsets=[1 << 64, (1 << 64) + 4])}, bytes(4)),
    "beyond the file": file_of({"a": entry()}, bytes(3)),
    "overlap": file_of({"a": entry(), "b": entry(offsets=[2, 6])}, bytes(6)),
    "the same bytes twice": file_of({"a": entry(), "b": entry()}, bytes(4)),
    "a gap": file_of({"a": entry(), "b": entry(offsets=[8, 12])}, bytes(12)),
    "a gap at the start": file_of({"a": entry(offsets=[4, 8])}, bytes(8)),
    "bytes after the end": file_of({"a": entry()}, bytes(5)),
    "data without tensors": file_of({}, bytes(5)),
    "metadata that is no table": file_of({"__metadata__": [1]}),
    "metadata with a number": file_of({"__metadata__": {"a": 1}}),
}


@pytest.mark.proves(
    "a lone surrogate in a header is no text",
    "a tensor's name stands in a header once",
    "a shape is no product of huge numbers",
    "a tensor file's header ends within the file",
    "a tensor's bytes fit its type and shape",
    "tensors fill their file",
    "tensors leave no gap and do not overlap",
)
@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_corrupt_and_names_the_file(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=r"model\.safetensors"):
        parse(content)
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(Corrupt):
        read_header(path)
    assert parse(file_of({"a": entry()}, bytes(4))).entries, "and what makes sense is not"


@pytest.mark.proves("a tensor file's header is not longer than allowed")
def test_a_header_is_never_longer_than_the_reference_implementation_allows() -> None:
    most = MAX_HEADER_BYTES.to_bytes(8, "little")
    assert header_bytes(most, 1 << 40, PATH) == MAX_HEADER_BYTES + 8
    with pytest.raises(Corrupt, match="more than 100000000 are not allowed"):
        header_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 1 << 40, PATH)


def _counts() -> st.SearchStrategy[list[int]]:
    return st.lists(st.one_of(st.integers(-1, 9), st.integers(0, 1 << 65)), max_size=3)


ENTRIES = st.builds(
    lambda dtype, shape, offsets, more: entry(dtype, shape, offsets) | more,
    st.sampled_from([*DTYPE_BITS, "x"]),
    _counts(),
    _counts(),
    st.sampled_from([{}, {}, {}, {"more": 1}]),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__", "é"]), ENTRIES, max_size=3), st.binary(max_size=32))
def test_nothing_that_stock_safetensors_refuses_is_accepted(header: dict[str, object], data: bytes) -> None:
    content = file_of(header, data)
    try:
        parsed = parse(content)
    except Corrupt:
        return
    assert stock_tensors(content).keys() == {one.name for one in parsed.entries}


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_whatever_raise_anything_else(noise: bytes, framed: bool) -> None:
    content = file_of(None, raw=b'{"a":' + noise) if framed else noise
    try:
        parse(content)
    except Corrupt:
        return
    stock_tensors(content)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_good_header_with_one_byte_changed_is_refused_or_still_sound(data: st.DataObject) -> None:
    content = bytearray(file_of({"a": entry(), "b": entry("F32", [2], [4, 12])}, bytes(12), pad=3))
    at = data.draw(st.integers(0, len(content) - 13))
    content[at] = data.draw(st.integers(0, 255))
    try:
        parsed = parse(bytes(content))
    except Corrupt:
        return
    stock = stock_tensors(bytes(content))
    assert {one.name: one.shape for one in parsed.entries} == {name: shape for name, (_, shape, _) in stock.items()}


def test_a_file_that_shrinks_while_its_header_is_read_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_of({"a": entry()}, bytes(4))[:20])
    with pytest.raises(Corrupt):
        read_header(path)
