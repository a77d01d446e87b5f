"""Headers that others write are read exactly where the reference implementation reads them, and say the same."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from ebbtide.storage.errors import Corrupt
from ebbtide.storage.safetensors.file_header import DTYPE_BITS, header_bytes, parse_header, read_header
from tests.examples import examples
from tests.platform.storage.stores import stock_tensors

PATH = Path("model.safetensors")
TENSOR: dict[str, Any] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
ENTRY = json.dumps(TENSOR)
Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]


def content_of(header: str | bytes, data: bytes = bytes(16)) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + data


def ours(content: bytes) -> Tensors | None:
    """What we read, None where the file is refused."""
    try:
        length = header_bytes(content[:8], len(content), PATH)
        header = parse_header(content[:length], len(content), PATH)
    except Corrupt:
        return None
    return {one.name: (one.dtype, one.shape, content[one.offset : one.end]) for one in header.entries}


def theirs(content: bytes) -> Tensors | None:
    """What the reference implementation reads, None where it refuses the file."""
    try:
        return stock_tensors(content)
    except SafetensorError:
        return None


def with_value(text: str) -> str:
    """A header whose tensor has a further key of this value."""
    return f'{{"w":{{"x":{text},{ENTRY[1:]}}}'


READ = {
    "metadata null": f'{{"__metadata__":null,"w":{ENTRY}}}',
    "metadata without texts": f'{{"__metadata__":{{}},"w":{ENTRY}}}',
    "a text of metadata twice": f'{{"__metadata__":{{"a":"1","a":"2"}},"w":{ENTRY}}}',
    "a further key": with_value('"x"'),
    "a further key twice": with_value('1,"x":2'),
    "a further key with an object": with_value('{"a":[1,{"b":null,"data_offsets":3}]}'),
    "a further key of a number of 300 digits": with_value("9" * 300),
    "a further key nested 125 deep": with_value("[" * 125 + "]" * 125),
    "white space before it": f' \n\t{{"w":{ENTRY}}}',
    "white space after it": f'{{"w":{ENTRY}}}\r\n\t ',
    "lines": json.dumps({"w": TENSOR}, indent=2),
    "a name without a letter": f'{{"":{ENTRY}}}',
    "a name with escapes": f'{{"\\u0000\\ud83d\\ude00\\/":{ENTRY}}}',
    "an alphabet of one's own": f'{{"été":{ENTRY}}}',
}
REFUSED = {
    "a further key nested 126 deep": with_value("[" * 126 + "]" * 126),
    "a further key nested 5,000 deep": with_value("[" * 5000 + "]" * 5000),
    "a further key that is no number": with_value("NaN"),
    "a further key without an end": with_value("-Infinity"),
    "a further key that is too large": with_value("1e999"),
    "a further key of 5,000 digits": with_value("9" * 5000),
    "a further key with half a character": with_value('"\\ud800"'),
    "a further key with a line break": with_value('"a\nb"'),
    "a further key at the top": f'{{"w":{ENTRY},"format":"pt"}}',
    "a field twice": f'{{"w":{{"dtype":"F32",{ENTRY[1:]}}}',
    "metadata twice": f'{{"__metadata__":null,"__metadata__":{{}},"w":{ENTRY}}}',
    "metadata with null": f'{{"__metadata__":{{"a":null}},"w":{ENTRY}}}',
    "metadata as a list": f'{{"__metadata__":[],"w":{ENTRY}}}',
    "no entry": '{"w":null}',
    "zeros after it": f'{{"w":{ENTRY}}}\0\0',
    "a space of another kind after it": f'{{"w":{ENTRY}}}\u00a0',
    "a byte order mark": f'\ufeff{{"w":{ENTRY}}}',
    "a size of minus zero": '{"w":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}',
    "a type in small letters": ENTRY.replace("F32", "f32").join(('{"w":', "}")),
    "Latin-1": f'{{"été":{ENTRY}}}'.encode("latin-1"),
}


@pytest.mark.parametrize("header", READ.values(), ids=READ)
def test_what_the_reference_reads_is_read(header: str, tmp_path: Path) -> None:
    content = content_of(header)
    assert ours(content) == theirs(content) is not None
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with safe_open(path, "np") as file:
        metadata = file.metadata() or {}
    assert read_header(path).metadata == metadata


@pytest.mark.proves(
    "a header is not nested deeper than the reference reads",
    "a number in a header is finite",
    "a tensor has one type, one shape and one place",
    "a tensor's name stands in a header once",
)
@pytest.mark.parametrize("header", REFUSED.values(), ids=REFUSED)
def test_what_the_reference_refuses_is_refused(header: str | bytes) -> None:
    for size in (0, 16):
        content = content_of(header, bytes(size))
        assert ours(content) is theirs(content) is None


def test_the_types_are_those_of_the_reference() -> None:
    with pytest.raises(SafetensorError) as raised:
        stock_tensors(content_of(ENTRY.replace("F32", "no type").join(('{"w":', "}"))))
    assert set(re.findall(r"`([A-Z0-9_]+)`", str(raised.value))) == set(DTYPE_BITS)


SIZES = st.one_of(st.integers(0, 9), st.sampled_from([1 << 31, 1 << 61, (1 << 64) - 1, 1 << 64]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.text(max_size=3) | st.sampled_from(["a", "dtype", "model.layers.0.weight"])


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A file laid out as the format wants it, or nearly."""
    fields: dict[str, object] = {}
    at = 0
    for name in draw(st.lists(NAMES, max_size=4, unique=True)):
        dtype, shape = draw(st.sampled_from(sorted(DTYPE_BITS))), draw(st.lists(SIZES, max_size=3))
        bits = DTYPE_BITS[dtype]
        for size in shape:
            bits *= size
        length = bits // 8 if bits // 8 <= 1 << 12 else draw(st.integers(0, 64))
        length += draw(st.sampled_from([0] * 12 + [1]))
        start = max(0, at + draw(st.sampled_from([0] * 20 + [-1, 1])))
        at = start + length
        more = draw(st.dictionaries(st.text(max_size=3), VALUES, max_size=2)) if draw(st.booleans()) else {}
        parts = [*more.items(), ("dtype", dtype), ("shape", shape), ("data_offsets", [start, at])]
        fields[name] = dict(draw(st.permutations(parts)))
    if draw(st.booleans()):
        text = st.text(max_size=3)
        fields["__metadata__"] = draw(st.none() | st.dictionaries(text, text, max_size=2) | VALUES)
    items = draw(st.permutations(sorted(fields.items())))
    ascii_only, indent = draw(st.booleans()), draw(st.sampled_from([None, 0, 2]))
    space = st.text(" \t\r\n", max_size=3)
    whole = draw(space) + json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent) + draw(space)
    return content_of(whole, bytes(max(0, at + draw(st.sampled_from([0] * 20 + [-1, 1])))))


@settings(max_examples=examples(600), deadline=None)
@given(headers())
@example(content_of('{"w":{"dtype":"F32","shape":[4611686018427387904,0],"data_offsets":[0,0]}}', b""))
@example(content_of('{"w":{"dtype":"F32","shape":[18446744073709551615,2,0],"data_offsets":[0,0]}}', b""))
@example(content_of('{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}', bytes(1)))
@example(content_of('{"w":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}', bytes(8)))
def test_a_header_is_read_where_the_reference_reads_it(content: bytes) -> None:
    assert ours(content) == theirs(content)
