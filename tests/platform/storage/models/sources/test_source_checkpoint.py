"""A checkpoint is looked through before a byte of it is copied: what does not fit is refused, by name."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources import source_checkpoint as module
from ebbtide.storage.models.sources.local_source import LocalReading, LocalSource
from ebbtide.storage.models.sources.source import SourceChanged, SourceFile
from ebbtide.storage.models.sources.source_checkpoint import Checkpoint, examine
from tests.platform.storage.models.made import make_checkpoint

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


def look(folder: Path) -> Checkpoint:
    return examine(LocalSource(folder))


def edit_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads((folder / INDEX).read_text())
    change(fields["weight_map"])
    (folder / INDEX).write_text(json.dumps(fields))


def edit_shard(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path, {"format": "pt"})


def edit_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    fields = json.loads(content[8 : 8 + length])
    change(fields)
    text = json.dumps(fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def test_shards_small_files_sizes_and_types_are_known(folder: Path) -> None:
    found = look(folder)
    assert [shard.file.name for shard in found.shards] == [FIRST, SECOND]
    assert sorted(file.name for file in found.small) == ["config.json", INDEX, "tokenizer.json"]
    assert found.num_tensors == 12 and found.notes == () and not found.is_vague
    assert found.key == {
        "layout": "1",
        "dtype": "F32",
        "tensors": "12",
        "parameters": str(64 * 192 + 3 * (192**2 + 193 + 7) + 3),
    }
    assert len(found.fingerprint) == 64
    single = folder.parent / "single"
    make_checkpoint(single, shards=1)
    assert [shard.file.name for shard in look(single).shards] == ["model.safetensors"]


def test_a_type_that_holds_a_hundredth_of_the_bytes_is_told_the_largest_first(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_text("{}")
    arrays: dict[str, NDArray[np.generic]] = {
        "a": np.zeros(1000, np.float16),
        "b": np.zeros(5000, np.uint8),
        "c": np.zeros(10, np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors")
    assert look(tmp_path).key["dtype"] == "U8+F16"


def test_what_else_is_there_is_told_and_left(folder: Path) -> None:
    shutil.copy(folder / FIRST, folder / "consolidated.safetensors")
    (folder / "modeling.py").write_text("import os")
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling.M"}}))
    notes = "\n".join(look(folder).notes)
    assert "consolidated.safetensors (not among the weights" in notes
    assert "modeling.py (code is never run" in notes and "auto_map" in notes
    (folder / "config.json").unlink()
    assert any("there is no config.json" in note for note in look(folder).notes)


def test_a_tensor_that_the_index_does_not_name_is_kept_and_told(folder: Path) -> None:
    edit_index(folder, lambda named: named.pop("model.embed.weight"))
    found = look(folder)
    assert found.num_tensors == 12 and "'model.embed.weight': in the shards" in found.notes[0]


def duplicate_name(folder: Path) -> None:
    text = (
        (folder / INDEX).read_text().replace('{"model.embed', f'{{"empty": "{FIRST}", "empty": "{FIRST}", "model.embed')
    )
    (folder / INDEX).write_text(text)


def moved_tensor(folder: Path) -> None:
    moved: dict[str, Any] = {}
    edit_shard(folder / FIRST, lambda arrays: moved.update(w=arrays.pop("model.layers.0.norm")))
    edit_shard(folder / SECOND, lambda arrays: arrays.update({"model.layers.0.norm": moved["w"]}))


def tensor_in_both(folder: Path) -> None:
    edit_shard(folder / SECOND, lambda arrays: arrays.update({"model.embed.weight": np.zeros(3)}))


TWICE = b"\x12\0\0\0\0\0\0\0" + b'{"a":{},"a":{}}   '
DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("shard missing", lambda f: (f / SECOND).unlink(), rf"incomplete: '{SECOND}' of 2 shards .* is missing"),
    ("tensor absent", lambda f: edit_shard(f / SECOND, lambda a: a.pop("empty")), r"'empty' is in .*none of them"),
    ("tensor elsewhere", moved_tensor, rf"'model.layers.0.norm' is in {FIRST}, but it is in {SECOND}"),
    ("tensor in two shards", tensor_in_both, rf"'model.embed.weight' is in {FIRST} and again in {SECOND}"),
    ("tensor twice in index", duplicate_name, r"'empty' stands there twice"),
    ("tensor twice in header", lambda f: (f / FIRST).write_bytes(TWICE), r"stands in the header twice"),
    ("index no JSON", lambda f: (f / INDEX).write_text("{"), r"cannot be read"),
    ("index no UTF-8", lambda f: (f / INDEX).write_bytes(b"\xff{}"), r"cannot be read"),
    ("index of endless depth", lambda f: (f / INDEX).write_text("[" * 100_000), r"cannot be read"),
    ("index a list", lambda f: (f / INDEX).write_text("[]"), r"no weight_map"),
    ("index empty", lambda f: (f / INDEX).write_text('{"weight_map": {}}'), r"no weight_map"),
    ("index of numbers", lambda f: (f / INDEX).write_text('{"weight_map": {"a": 1}}'), r"no weight_map"),
    ("shard climbs", lambda f: edit_index(f, lambda n: n.update(x="../s.safetensors")), r"'../s.safetensors', which"),
    ("shard absolute", lambda f: edit_index(f, lambda n: n.update(x="/etc/x.safetensors")), r"no shard beside it"),
    ("shard a pickle", lambda f: edit_index(f, lambda n: n.update(x="model.bin")), r"no shard beside it"),
    ("shard hidden", lambda f: edit_index(f, lambda n: n.update(x="..safetensors")), r"cannot be used"),
    ("shard with escapes", lambda f: edit_index(f, lambda n: n.update(x="\x1b[2Ja.safetensors")), r"cannot be used"),
    ("shard unicode", lambda f: edit_index(f, lambda n: n.update(x="größe.safetensors")), r"cannot be used"),
    ("shard a surrogate", lambda f: edit_index(f, lambda n: n.update(x="\udcff.safetensors")), r"cannot be used"),
    ("shard empty", lambda f: (f / SECOND).write_bytes(b""), r"at least 8 bytes"),
    ("shard cut off", lambda f: os.truncate(f / SECOND, 5000), r"its tensors end at byte"),
    ("shard longer", lambda f: (f / SECOND).open("ab").write(b"x"), r"its tensors end at byte"),
    ("header endless", lambda f: (f / SECOND).write_bytes(b"\xff" * 64), r"the header claims"),
    ("header no JSON", lambda f: (f / SECOND).write_bytes(b"\x04\0\0\0\0\0\0\0{{{{"), r"cannot be read"),
    ("header of a gap", lambda f: edit_header(f / FIRST, lambda h: h["model.embed.weight"].update(shape=[1])), r"need"),
    ("shard is a pickle", lambda f: (f / SECOND).write_bytes(b"\x80\x04\x95" + bytes(90)), r"a pickle.*Convert it"),
    ("shard is a zip", lambda f: (f / SECOND).write_bytes(b"PK\x03\x04" + bytes(90)), r"a pickle.*Convert it"),
    ("config no JSON", lambda f: (f / "config.json").write_text("nope"), r"config.json cannot be read"),
    ("config no object", lambda f: (f / "config.json").write_text("[]"), r"config.json is no JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "why"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_what_does_not_fit_is_refused(folder: Path, damage: Callable[[Path], object], why: str) -> None:
    damage(folder)
    with pytest.raises(Refused, match=why) as caught:
        look(folder)
    assert str(folder) in str(caught.value) and str(caught.value).isprintable()


def test_names_that_only_differ_in_case_are_refused(folder: Path) -> None:
    (folder / "Config.json").write_text("{}")
    with pytest.raises(Refused, match="differ only in case"):
        look(folder)


def test_headers_of_absurd_length_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HEADERS_BYTES", 100)
    with pytest.raises(Refused, match="more than any model's"):
        look(folder)


def rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes())


CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("a shard written again", lambda f: rewritten(f / FIRST)),
    ("a small file written again", lambda f: rewritten(f / "tokenizer.json")),
    ("a small file more", lambda f: (f / "merges.txt").write_text("a b")),
    ("a small file less", lambda f: (f / "tokenizer.json").unlink()),
]


@pytest.mark.parametrize("change", [one[1] for one in CHANGES], ids=[one[0] for one in CHANGES])
def test_every_change_gives_another_fingerprint(folder: Path, change: Callable[[Path], object]) -> None:
    before = look(folder).fingerprint
    assert look(folder).fingerprint == before
    change(folder)
    assert look(folder).fingerprint != before


def test_a_copy_elsewhere_has_another_fingerprint_and_the_same_key(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "copy")
    one, other = look(folder), look(folder.parent / "copy")
    assert one.fingerprint != other.fingerprint and one.key == other.key


@pytest.mark.parametrize("name", [FIRST, "tokenizer.json", INDEX])
def test_a_change_after_looking_is_noticed(folder: Path, name: str) -> None:
    found = look(folder)
    found.check_unchanged()
    (folder / "new and not taken.json").write_text("{}")
    found.check_unchanged()
    rewritten(folder / name)
    with pytest.raises(SourceChanged, match=name):
        found.check_unchanged()


def test_a_file_that_is_gone_is_a_change(folder: Path) -> None:
    found = look(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SourceChanged, match=r"tokenizer\.json"):
        found.check_unchanged()


def test_a_header_that_changed_under_the_same_stamp_gives_another_fingerprint(folder: Path) -> None:
    """As after a change within the resolution of a server's clock."""

    class SameStamps(LocalSource):
        def listing(self) -> list[SourceFile]:
            return [replace(file, stamp="the same") for file in super().listing()]

        def open(self, file: SourceFile) -> LocalReading:
            return super().open(next(one for one in LocalSource(folder).listing() if one.name == file.name))

    before = examine(SameStamps(folder)).fingerprint
    assert examine(SameStamps(folder)).fingerprint == before
    content = (folder / FIRST).read_bytes()
    assert content.count(b"model.embed.weight") == 1
    (folder / FIRST).write_bytes(content.replace(b"model.embed.weight", b"model.embed.weighs"))
    (folder / INDEX).write_text((folder / INDEX).read_text().replace("model.embed.weight", "model.embed.weighs"))
    assert examine(SameStamps(folder)).fingerprint != before
