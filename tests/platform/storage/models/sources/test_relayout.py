"""A shard in our layout holds the same tensors, for any tool."""

import json
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from ebbtide.storage.models.sources.relayout import Relayout, natural_order, relayout
from ebbtide.storage.safetensors.file_header import header_bytes, parse_header
from tests.examples import examples
from tests.platform.storage.stores import stock_tensors

NAMES = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
TYPES = st.sampled_from([np.float32, np.float16, np.uint8, np.int64, np.bool_])
TENSORS = st.dictionaries(NAMES, st.tuples(TYPES, st.lists(st.integers(0, 40), max_size=2)), max_size=8)


def of(content: bytes) -> Relayout:
    length = header_bytes(content[:8], len(content), Path("x"))
    return relayout(parse_header(content[:length], len(content), Path("x")))


def rewritten(content: bytes, piece_bytes: int) -> bytes:
    """The file in our layout, made piece by piece of any size."""
    layout = of(content)
    result = bytearray(b"\xaa" * layout.plan.file_bytes)
    for start in range(0, len(result), piece_bytes):
        memory = memoryview(result)[start : start + piece_bytes]
        for part in layout.parts(start, memory):
            part.memory[:] = content[part.offset : part.offset + len(part.memory)]
    return bytes(result)


@settings(max_examples=examples(50), deadline=None)
@given(TENSORS, st.integers(1, 9000))
def test_the_reference_library_reads_the_same_tensors(
    shapes: dict[str, tuple[type, list[int]]], piece_bytes: int
) -> None:
    rng = np.random.default_rng(piece_bytes)
    arrays: dict[str, NDArray[np.generic]] = {
        name: np.asarray(rng.random(shape) * 200).astype(kind) for name, (kind, shape) in shapes.items()
    }
    content = save(arrays, {"format": "pt", "größe": "重"})
    found = rewritten(content, max(piece_bytes, len(content) // 50))
    assert stock_tensors(found) == stock_tensors(content)
    assert of(found).plan.header[8:].rstrip() == of(content).plan.header[8:].rstrip()
    assert int.from_bytes(found[:8], "little") % 4096 == 4088


@settings(max_examples=examples(50), deadline=None)
@given(TENSORS, st.integers(0, 1 << 30))
def test_no_byte_is_asked_for_twice_and_none_is_left_out(shapes: dict[str, tuple[type, list[int]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    content = save({name: np.asarray(rng.random(shape)).astype(kind) for name, (kind, shape) in shapes.items()})
    layout = of(content)
    asked = np.zeros(len(content), dtype=np.uint8)
    step = int(rng.integers(1, 5000))
    for start in range(0, layout.plan.file_bytes, step):
        size = min(step, layout.plan.file_bytes - start)
        for part in layout.parts(start, memoryview(bytearray(size))):
            asked[part.offset : part.offset + len(part.memory)] += 1
    header = layout.source.data_offset
    assert asked[:header].sum() == 0 and (asked[header:] == 1).all()


def test_the_order_of_the_source_makes_no_difference() -> None:
    arrays = {f"layers.{n}.w": np.full((4, n + 1), n, dtype=np.float32) for n in range(12)}
    one = save(arrays)
    header = json.loads(one[8 : 8 + int.from_bytes(one[:8], "little")])
    data = one[8 + int.from_bytes(one[:8], "little") :]
    body, fields, end = b"", {}, 0
    for name in reversed(list(header)):
        first, last = header[name]["data_offsets"]
        body += data[first:last]
        fields[name] = header[name] | {"data_offsets": [end, end + last - first]}
        end += last - first
    text = json.dumps(fields).encode()
    other = len(text).to_bytes(8, "little") + text + body
    assert rewritten(one, 1 << 20) == rewritten(other, 1 << 20) and one != other


def test_layers_follow_each_other_as_numbers_not_as_text() -> None:
    names = ["m.layers.10.w", "m.layers.2.w", "m.embed", "m.layers.2.b", "m.layers.02.w", "m.norm"]
    assert sorted(names, key=natural_order) == [
        "m.embed", "m.layers.2.b", "m.layers.02.w", "m.layers.2.w", "m.layers.10.w", "m.norm",
    ]  # fmt: skip


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(NAMES, unique=True))
def test_any_names_have_one_order(names: list[str]) -> None:
    in_order = sorted(names, key=natural_order)
    assert sorted(reversed(names), key=natural_order) == in_order


def test_a_number_of_many_thousand_digits_is_only_text() -> None:
    long = "9" * 10_000
    assert sorted([f"a{long}", "a8", f"a1{long}"], key=natural_order)[0] == "a8"


def test_neighbours_that_stay_neighbours_are_one_part() -> None:
    content = save({f"layers.{n}.w": np.zeros((32, 32), dtype=np.float32) for n in range(8)})
    layout = of(content)
    parts = list(layout.parts(0, memoryview(bytearray(layout.plan.file_bytes))))
    assert [len(part.memory) for part in parts] == [8 * 4096]
