"""The index of tensors: what ranks wrote, put together; and nothing believed that cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.storage.checkpoints.state.about_json import About, parse_about
from ebbtide.storage.checkpoints.state.rank_entry import Piece, RankEntry
from ebbtide.storage.checkpoints.state.tensor_index import gather_index, parse_index
from ebbtide.storage.errors import Corrupt, Refused
from ebbtide.storage.objects.manifest import FileEntry
from tests.examples import examples

PATH = Path("state.json")


def entry(rank: int, *pieces: Piece) -> RankEntry:
    file = FileEntry(name=f"rank{rank}.safetensors", size_bytes=10_000, digest="0" * 64, index="1" * 64)
    return RankEntry(rank, file, pieces, {"step": 3})


TOP = Piece("w", "F32", (4, 5), (0, 0), (2, 5), 4096)
BOTTOM = Piece("w", "F32", (4, 5), (2, 0), (2, 5), 4096)
SCALAR = Piece("s", "BF16", (), (), (), 5000)
EMPTY = Piece("e", "F8_E4M3", (0, 3), (0, 0), (0, 3), 4096)
SIZES = {"rank0.safetensors": 10_000, "rank1.safetensors": 10_000}
TREE: Any = {"model": {"w": {"$tensor": "w"}}, "s": {"$tensor": "s"}, "e": {"$tensor": "e"}, "n": [1, {"$tuple": [2]}]}


def whole_index() -> bytes:
    return gather_index([entry(0, TOP, SCALAR), entry(1, BOTTOM, EMPTY)], TREE).to_bytes()


def test_an_index_comes_back_as_it_was() -> None:
    index = gather_index([entry(0, TOP, SCALAR), entry(1, BOTTOM, EMPTY)], TREE)
    assert parse_index(index.to_bytes(), PATH, SIZES) == index
    assert [part.file for part in index.tensors["w"].parts] == ["rank0.safetensors", "rank1.safetensors"]
    assert index.tensors["w"].size_bytes == 80


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([entry(0, TOP)], "10 elements"),
        ([entry(0, TOP), entry(1, TOP)], "overlap"),
        ([entry(0, TOP), entry(1, Piece("w", "F16", (4, 5), (2, 0), (2, 5), 0))], "not the same on all ranks"),
        ([entry(0, TOP), entry(1, Piece("w", "F32", (5, 5), (2, 0), (2, 5), 0))], "not the same on all ranks"),
        ([entry(0, TOP), entry(1, Piece("w", "F32", (4, 5), (2, 0), (3, 5), 0))], "not within"),
    ],
)
@pytest.mark.proves(
    "all ranks have one shape and type of a tensor",
    "the parts of the ranks make whole tensors when they are committed",
)
def test_shards_that_make_no_whole_are_refused_by_name(entries: list[RankEntry], what: str) -> None:
    with pytest.raises(Refused, match=what):
        gather_index(entries, {"w": {"$tensor": "w"}})


@pytest.mark.proves("every tensor that the state names was written")
def test_a_state_that_needs_what_nobody_wrote_is_refused() -> None:
    with pytest.raises(Refused, match="'other', which no rank has written"):
        gather_index([entry(0, SCALAR)], {"x": {"$tensor": "other"}})


def edited(change: Any) -> bytes:
    fields = json.loads(whole_index())
    change(fields)
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["tensors"]["w"].update(dtype="F99"),
        lambda f: f["tensors"]["w"].update(dtype="F4"),
        lambda f: f["tensors"]["w"].update(shape=[4, -5]),
        lambda f: f["tensors"]["w"].update(shape=[4, 5.0]),
        lambda f: f["tensors"]["w"].update(shape=[4, 6]),
        lambda f: f["tensors"]["w"]["parts"].pop(),
        lambda f: f["tensors"]["w"]["parts"][0].__setitem__(0, 2),
        lambda f: f["tensors"]["w"]["parts"][0].__setitem__(0, -1),
        lambda f: f["tensors"]["w"]["parts"][0].__setitem__(1, 4097),
        lambda f: f["tensors"]["w"]["parts"][0].__setitem__(1, 9964),
        lambda f: f["tensors"]["w"]["parts"][0].__setitem__(1, True),
        lambda f: f["tensors"]["w"]["parts"][0].append(1),
        lambda f: f["files"].__setitem__(0, "../../etc/passwd"),
        lambda f: f.update(files=None),
        lambda f: f.update(tensors=[]),
        lambda f: f.pop("tree"),
        lambda f: f["tensors"].pop("s"),
    ],
)
@pytest.mark.proves(
    "every tensor of the tree is there",
    "parts lie within the files that the manifest names",
    "parts make whole tensors when they are read",
)
def test_an_index_that_points_anywhere_else_is_corrupt(change: Any) -> None:
    assert parse_index(edited(lambda f: None), PATH, SIZES).tensors
    with pytest.raises(Corrupt, match=r"state\.json"):
        parse_index(edited(change), PATH, SIZES)


@pytest.mark.proves("an index of tensors of a newer format is refused")
def test_a_newer_index_is_refused() -> None:
    with pytest.raises(Refused, match="update it"):
        parse_index(edited(lambda f: f.update(schema=2)), PATH, SIZES)


@settings(deadline=None, max_examples=examples(200))
@given(st.binary(max_size=30) | st.integers(0, 400).map(lambda cut: whole_index()[:-2][:cut]))
def test_rubbish_is_corrupt_and_nothing_else(raw: bytes) -> None:
    for parse in (lambda: parse_index(raw, PATH, SIZES), lambda: parse_about(raw, PATH)):
        with pytest.raises((Corrupt, Refused)):
            parse()


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_one_changed_value_never_leads_out_of_the_files(data: st.DataObject) -> None:
    fields = json.loads(whole_index())
    name = data.draw(st.sampled_from(sorted(fields["tensors"])))
    odd: st.SearchStrategy[Any] = st.sampled_from([None, -1, 1 << 70, 2.5, "x", [], {}, True, [1 << 62, 4]])
    about = fields["tensors"][name]
    where = data.draw(st.sampled_from(["dtype", "shape", "parts", "part"]))
    if where == "part":
        about["parts"][0][data.draw(st.integers(0, 3))] = data.draw(odd)
    else:
        about[where] = data.draw(odd)
    try:
        index = parse_index(json.dumps(fields).encode(), PATH, SIZES)
    except Corrupt:
        return
    for tensor in index.tensors.values():
        assert all(0 <= part.at <= part.end <= SIZES[part.file] for part in tensor.parts)


def test_an_entry_goes_through_text() -> None:
    for one in (entry(3, TOP, SCALAR, EMPTY), RankEntry(1), RankEntry(2, objects={"a": {"$tuple": [1]}})):
        assert RankEntry.from_json(one.to_json()) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank":0}', '{"rank":0,"file":3,"pieces":[],"objects":{}}'])
def test_a_text_that_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="not what a rank says"):
        RankEntry.from_json(text)


def test_a_note_comes_back() -> None:
    about = About(2, {"seed": 7, "lr": 0.1, "name": "x", "last": True, "none": None})
    assert parse_about(about.to_bytes(), PATH) == about


@pytest.mark.parametrize("note", [{"a": [1]}, {"a": float("nan")}, {3: 4}, {"a": "x" * (1 << 20)}])
def test_a_note_that_is_no_plain_table_is_refused(note: Any) -> None:
    with pytest.raises(Refused, match="note"):
        About(1, note).to_bytes()


@pytest.mark.parametrize("raw", [b'{"schema":1,"ranks":"2","note":{}}', b'{"schema":1,"ranks":2,"note":[]}'])
def test_an_about_of_other_types_is_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_about(raw, PATH)
