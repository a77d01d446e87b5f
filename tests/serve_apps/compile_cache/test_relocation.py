"""Caches that say where they lie, in another place."""

import json
import shutil
from pathlib import Path

import pytest

from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide_serve.compile_cache.cache_store import Restored, publish, restore
from ebbtide_serve.compile_cache.fingerprint import Fingerprint
from ebbtide_serve.compile_cache.relocation import relocate
from tests.platform.storage.stores import store_at

WANTED = Fingerprint({"model": "m"})


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


def kernel(root: Path) -> Path:
    """As Triton's FileCacheManager writes a compiled kernel; returns the file of its group."""
    place = root / "vllm" / "torch_compile_cache" / "triton_cache" / "KEY"
    place.mkdir(parents=True)
    for name in ("k.cubin", "k.json"):
        (place / name).write_bytes(b"x")
    group = {name: str(place / name) for name in ("k.cubin", "k.json")}
    (place / "__grp__k.json").write_text(json.dumps({"child_paths": group}))
    return place / "__grp__k.json"


def children(group: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(group.read_text())["child_paths"]
    return found


@pytest.mark.parametrize("alive", [False, True], ids=["publisher gone", "publisher alive"])
def test_a_restored_kernel_is_found_where_it_was_restored(store: ObjectStore, tmp_path: Path, alive: bool) -> None:
    group = kernel(tmp_path / "first")
    publish(store, WANTED, tmp_path / "first", Restored(None, why="none yet"))
    if not alive:
        shutil.rmtree(tmp_path / "first")
    assert restore(store, WANTED, tmp_path / "second").why == ""
    there = tmp_path / "second" / group.relative_to(tmp_path / "first")
    assert children(there) == {name: str(there.parent / name) for name in ("k.cubin", "k.json")}
    assert all(Path(path).is_file() for path in children(there).values())


def test_a_kernel_of_which_a_part_is_missing_is_made_anew(tmp_path: Path) -> None:
    group = kernel(tmp_path)
    (group.parent / "k.cubin").unlink()
    relocate(tmp_path, tmp_path)
    assert not group.exists()


@pytest.mark.parametrize("text", ["", "[", "[]", '{"child_paths": 3}', '{"child_paths": {"k.json": 7}}', "[" * 9999])
def test_what_makes_no_sense_is_removed(tmp_path: Path, text: str) -> None:
    group = kernel(tmp_path)
    group.write_text(text)
    relocate(tmp_path, tmp_path)
    assert not group.exists()


def test_a_name_never_leads_elsewhere(tmp_path: Path) -> None:
    group = kernel(tmp_path / "in")
    (tmp_path / "secret").write_text("s")
    (group.parent / "secret").write_text("our own")
    group.write_text(json.dumps({"child_paths": {"k": "../../../../../secret"}}))
    relocate(tmp_path / "in", tmp_path / "out")
    wanted = tmp_path / "out" / group.parent.relative_to(tmp_path / "in") / "secret"
    assert children(group) == {"k": str(wanted)}


def test_a_table_of_absolute_paths_is_not_kept(store: ObjectStore, tmp_path: Path) -> None:
    """vLLM opens what it names without looking, and does not start if that is gone."""
    place = tmp_path / "first" / "vllm" / "torch_compile_cache" / "ab" / "rank_0_0" / "backbone"
    place.mkdir(parents=True)
    (place / "vllm_compile_cache.py").write_text(f"{{((1, 1), 0, 'inductor_standalone'): ('a', '{place}/a')}}")
    (place / "artifact").write_bytes(b"x")
    publish(store, WANTED, tmp_path / "first", Restored(None, why="none yet"))
    restore(store, WANTED, tmp_path / "second")
    assert [path.name for path in (tmp_path / "second").rglob("*") if path.is_file()] == ["artifact"]
