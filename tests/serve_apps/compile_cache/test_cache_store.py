"""Artefacts in the store: restored whole or not at all, published once, and never taken from a stranger."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import Superseded
from ebbtide.storage.names import ref_name, tag
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import Budget
from ebbtide_serve.compile_cache import cache_store
from ebbtide_serve.compile_cache.bundle import gather
from ebbtide_serve.compile_cache.cache_store import NAME, TAG, Restored, publish, restore
from ebbtide_serve.compile_cache.fingerprint import Fingerprint
from tests.builders.replica import TREE, read, write
from tests.platform.storage.stores import leftovers, overwrite, publish_model, store_at, within

WANTED = Fingerprint({"model": "m", "version torch": "2.13.0"})


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A cache directory after a healthy start."""
    write(tmp_path / "used", TREE)
    return tmp_path / "used"


NOTHING = Restored(None, why="none yet")


def test_what_one_replica_left_the_next_one_finds(store: ObjectStore, used: Path, tmp_path: Path) -> None:
    first = restore(store, WANTED, tmp_path / "first")
    assert (first.object, read(tmp_path / "first")) == (None, {})
    assert "no ref" in first.why
    found, why = publish(store, WANTED, used, first)
    assert why == ""
    second = restore(store, WANTED, tmp_path / "node" / "second")
    assert (second.object, second.files, second.why) == (found, len(TREE), "")
    assert second.bytes == sum(map(len, TREE.values()))
    assert read(tmp_path / "node" / "second") == TREE


def test_another_fingerprint_finds_nothing(store: ObjectStore, used: Path, tmp_path: Path) -> None:
    publish(store, WANTED, used, NOTHING)
    other = Fingerprint(dict(WANTED.facts) | {"model": "n"})
    assert restore(store, other, tmp_path / "other").object is None


def test_a_damaged_artefact_costs_a_cold_start_and_is_replaced(store: ObjectStore, used: Path, tmp_path: Path) -> None:
    found, _ = publish(store, WANTED, used, NOTHING)
    assert found is not None
    overwrite(store.paths.object(found) / NAME, 5000, b"\xee")
    bad = restore(store, WANTED, tmp_path / "bad")
    assert (bad.object, read(tmp_path / "bad")) == (None, {})
    assert "is not what was published" in bad.why
    assert publish(store, WANTED, used, bad) == (found, "")
    assert restore(store, WANTED, tmp_path / "good").object == found
    assert read(tmp_path / "good") == TREE


@pytest.mark.parametrize(
    ("kind", "key"), [(Kind.MODEL, dict(WANTED.facts)), (Kind.ARTEFACT, dict(WANTED.facts) | {"model": "n"})]
)
def test_a_foreign_object_under_the_name_is_not_unpacked(
    store: ObjectStore, used: Path, tmp_path: Path, kind: Kind, key: dict[str, str]
) -> None:
    from ebbtide_serve.compile_cache.bundle import bundle_fill, plan_bundle

    files = gather(used)
    plan = plan_bundle(files)
    with store.publication(kind, key) as work:
        work.add(work.staging.write(NAME, plan.file_bytes, bundle_fill(plan, files)))
        work.publish([(WANTED.ref_name, TAG)])
    found = restore(store, WANTED, tmp_path / "in")
    assert (found.object, read(tmp_path / "in")) == (None, {})
    assert "is no cache for this engine here" in found.why
    made, why = publish(store, WANTED, used, found)
    assert (made is not None, why) == (True, ""), "and another takes its place"
    assert restore(store, WANTED, tmp_path / "again").object == made


def test_a_model_under_the_name_of_an_artefact_is_left_alone(store: ObjectStore, used: Path, tmp_path: Path) -> None:
    model = publish_model(store, tag=None)
    store.refs.write(WANTED.ref_name, TAG, model)
    found, why = publish(store, WANTED, used, restore(store, WANTED, tmp_path / "in"))
    assert (found not in (None, model), why) == (True, "")
    assert model in store.list_objects() and list(store.paths.quarantine.iterdir()) == []
    assert restore(store, WANTED, tmp_path / "again").object == found


def test_a_restore_is_a_use(store: ObjectStore, used: Path, tmp_path: Path) -> None:
    """Caches that nobody uses are collected by age."""
    publish(store, WANTED, used, NOTHING)
    path = store.paths.ref(ref_name(WANTED.ref_name), tag(TAG))
    os.utime(path, (1, 1))
    assert restore(store, WANTED, tmp_path / "in").object is not None
    assert path.stat().st_mtime > 1


class Overtaken:
    """What a leader has that was taken for dead."""

    attempt = 1

    def confirm(self) -> None:
        raise Superseded("another process took over")


def test_whoever_was_overtaken_publishes_nothing(store: ObjectStore, used: Path) -> None:
    leader: Any = Overtaken()
    with pytest.raises(Superseded):
        cache_store._Work(store, WANTED, gather(used), NOTHING).lead(leader)
    assert store.list_objects() == [] and store.refs.list() == [] and not leftovers(store)


def test_an_artefact_with_a_bad_name_leaves_an_empty_directory(store: ObjectStore, tmp_path: Path) -> None:
    from tests.builders.replica import made

    _, content = made({"a": b"1", "../../b": b"2"})
    with store.publication(Kind.ARTEFACT, dict(WANTED.facts)) as work:
        work.add(work.staging.write_bytes(NAME, bytes(content)))
        work.publish([(WANTED.ref_name, TAG)])
    found = restore(store, WANTED, tmp_path / "deep" / "in")
    assert (found.object, read(tmp_path / "deep")) == (None, {})
    assert "cannot be that of a file" in found.why
    assert not (tmp_path / "b").exists()


def test_a_cut_off_restore_leaves_nothing_half(
    store: ObjectStore, used: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, WANTED, used, NOTHING)

    def fail(header: Any, content: Any, target: Path) -> None:
        target.mkdir(parents=True)
        (target / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ebbtide_serve.compile_cache.cache_store.unpack", fail)
    found = restore(store, WANTED, tmp_path / "in")
    assert (found.object, found.why) == (None, "[Errno 28] No space left on device")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("in")] == ["in"]
    assert read(tmp_path / "in") == {}


def test_a_start_that_added_little_publishes_nothing_and_one_that_added_much_does(
    store: ObjectStore, used: Path, tmp_path: Path
) -> None:
    publish(store, WANTED, used, NOTHING)
    restored = restore(store, WANTED, tmp_path / "in")
    write(tmp_path / "in", {"more": b"x" * (restored.bytes // 10)})
    found, why = publish(store, WANTED, tmp_path / "in", restored)
    assert (found, why) == (None, f"object {restored.object} has nearly all of it")
    write(tmp_path / "in", {"much more": b"x" * restored.bytes})
    found, why = publish(store, WANTED, tmp_path / "in", restored)
    assert (found == restored.object, why) == (False, "")
    assert restore(store, WANTED, tmp_path / "again").object == found


def test_an_empty_directory_is_not_published(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert publish(store, WANTED, tmp_path / "empty", NOTHING) == (None, "the engine keeps no caches")


def test_of_many_replicas_one_publishes(store: ObjectStore, used: Path) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(publish(store, WANTED, used, NOTHING))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(store.list_objects()) == 1
    assert set(found) == {(store.list_objects()[0], "")}


def test_files_that_change_while_they_are_kept_are_not_published(
    store: ObjectStore, used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = cache_store.bundle_fill  # type: ignore[attr-defined]

    def spoiling(*args: Any) -> Any:
        fill = real(*args)

        def spoil(offset: int, memory: memoryview) -> None:
            write(used, {"triton/KEY=/.hidden": b"y" * 4096})
            fill(offset, memory)

        return spoil

    monkeypatch.setattr(cache_store, "bundle_fill", spoiling)
    found, why = publish(store, WANTED, used, NOTHING)
    assert found is None
    assert "triton/KEY=/.hidden was written while it was being kept" in why
    assert not leftovers(store)
    assert store.list_objects() == []


def test_no_room_is_a_reason(store: ObjectStore, used: Path) -> None:
    found, why = publish(within(store, Budget(max_bytes=10)), WANTED, used, NOTHING)
    assert found is None
    assert "no room for" in why
    assert not leftovers(store)


def test_a_store_that_cannot_be_read_is_a_reason_too(store: ObjectStore, tmp_path: Path) -> None:
    store.paths.refs.rename(store.paths.root / "elsewhere")
    assert restore(store, WANTED, tmp_path / "in").object is None
    assert (tmp_path / "in").is_dir()
