"""Publishing that is cut off: by kill -9 before any change, by a full disk or a power cut at any change."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import NoRoom, StorageError, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.builders.store import lost_by_a_power_cut
from tests.hunts import spread
from tests.platform.storage.failing_calls import CountedCalls, failing_at
from tests.platform.storage.stores import (
    CHUNK,
    KEY,
    POOL,
    collect_all,
    leftovers,
    model_is_right,
    publish_model,
    quick_directory,
    random_bytes,
    store_at,
)

quick = pytest.fixture(quick_directory)

# Changes of a publication of two files into a store that is not there yet; more than there are, so that some end well.
MOST_CHANGES = 80


@pytest.mark.parametrize("mode", spread(["fresh", "again"]))
def test_a_publisher_killed_before_any_change_leaves_right_content_or_none(quick: Path, mode: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.platform.storage.publish_killer", str(quick), "1", "1", str(MOST_CHANGES), mode],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    ended = {one["n"]: one["ended"] for one in map(json.loads, ran.stdout.splitlines())}
    assert len(ended) == MOST_CHANGES and ended[MOST_CHANGES] and not ended[1]
    there = []
    for n in ended:
        store = store_at(quick / str(n))
        found = model_is_right(store, seed=7)
        there.append(found)
        assert found or not ended[n]
        publish_model(store, seed=7, tag="second")
        assert model_is_right(store, seed=7, tag="second")
        publish_model(store, seed=7)
        collect_all(store)
        assert leftovers(store) == [] and len(store.list_objects()) == 1, n
        assert model_is_right(store, seed=7)
        shutil.rmtree(quick / str(n))
    assert there == sorted(there), "from some change on it is there, and before it is not"
    assert there.count(False) > (20 if mode == "fresh" else 10)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_or_failing_disk_at_any_change_leaves_the_store_as_it_was(quick: Path, code: int) -> None:
    calls = CountedCalls()
    publish_model(store_at(quick / "count", disk=Disk(calls)), seed=3)
    before = CountedCalls()
    store_at(quick / "before", disk=Disk(before))
    first, last = before.count + 1, calls.count
    assert last - first > 15
    store = store_at(quick / "store")
    publish_model(store, tag="old")
    for number in range(1, last - first + 2):
        failing = store_at(quick / "store", disk=Disk(failing_at(number, code, for_ever=True)))
        try:
            publish_model(failing, seed=3)
        except StorageError as error:
            assert isinstance(error, TransferFailed if code == errno.EIO else NoRoom), (number, error)
            assert str(quick) in str(error)
        else:
            assert number > (last - first) - 3, "only what comes after the end may fail unnoticed"
        assert model_is_right(store, tag="old")
        if code != errno.EIO:
            assert list(store.paths.incoming.iterdir()) == [], number
        if not model_is_right(store, seed=3):
            publish_model(store, seed=3)
        assert model_is_right(store, seed=3)
        store.refs.delete("org/model", "latest")
        collect_all(store)
        assert leftovers(store) == [] and len(store.list_objects()) == 1
    publish_model(store, seed=3)


@pytest.mark.proves(
    "COMMIT is written after everything else",
    "the directories of the files are synced before the rename",
    "who finds an object there syncs its directory",
)
@pytest.mark.parametrize("there", [False, True], ids=["new", "there already"])
def test_nothing_becomes_visible_before_it_would_survive_a_power_cut(tmp_path: Path, there: bool) -> None:
    root = tmp_path / "store"
    if there:
        publish_model(store_at(root), tag=None)
    calls = CountedCalls()

    class Noted(PosixTransport):
        def write(self, path: Path, *arguments: Any, **more: Any) -> TransferReport:
            calls.note("create", path)
            calls.note("write", path)
            report = super().write(path, *arguments, **more)
            calls.note("fsync", path)
            return report

    object_id = publish_model(store_at(root, disk=Disk(calls), transport=Noted(POOL)))
    placed = root / "objects" / object_id
    moves = [(number, path, target) for number, (what, path, target) in enumerate(calls.events) if what == "rename"]
    [place] = [number for number, path, target in moves if target == placed]
    [name] = [number for number, path, target in moves if target == root / "refs" / "org%2Fmodel" / "latest"]
    work = calls.events[place][1]
    assert {path for path in lost_by_a_power_cut(calls, place) if work in (path, *path.parents)} == set()
    assert place < name
    lost = lost_by_a_power_cut(calls, name)
    assert not {path for path in lost if path == placed or placed in path.parents}
    if there:  # whoever placed it may have been cut off before syncing the directory
        assert ("fsync", root / "objects", None) in calls.events[place:name]
    left = lost_by_a_power_cut(calls, len(calls.events))
    assert not {path for path in left if work not in (path, *path.parents)}, "all is durable when publish returns"
    order = [path.name for what, path, _ in calls.events[:place] if what == "create" and path.parent == work]
    assert order[-2:] == ["manifest.json", "COMMIT"]


@pytest.mark.proves("a rename whose answer was lost is no failure")
@pytest.mark.parametrize("what", ["the object", "the ref"])
def test_a_rename_whose_answer_was_lost_and_was_asked_for_again_has_succeeded(tmp_path: Path, what: str) -> None:
    """NFS: the server did it, the answer got lost, the client asks again and is told that the source is gone."""

    class Lost(CountedCalls):
        has_lied = False

        def rename(self, src: Any, dst: Any) -> None:
            super().rename(src, dst)
            if ("objects" in str(dst)) == (what == "the object") and not self.has_lied:
                self.has_lied = True
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    store_at(tmp_path / "store")
    store = store_at(tmp_path / "store", disk=Disk(Lost()))
    publish_model(store, tag="latest" if what == "the ref" else None)
    assert len(store.list_objects()) == 1 and model_is_right(store) is (what == "the ref")
    assert leftovers(store) == []


@pytest.mark.proves("a full disk removes even work that is to be kept")
def test_no_room_for_a_file_removes_all_of_the_work(tmp_path: Path) -> None:
    class Full:
        def __init__(self, inner: object) -> None:
            self._inner, self.files = inner, 0

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def write(self, *arguments: object, **more: object) -> object:
            self.files += 1
            if self.files == 2:
                raise NoRoom("the filesystem is full")
            return self._inner.write(*arguments, **more)  # type: ignore[attr-defined]

    good = store_at(tmp_path / "store")
    store = store_at(tmp_path / "store", transport=Full(good.ports.transport))  # type: ignore[arg-type]
    for keep in (False, True):
        with pytest.raises(NoRoom), store.publication(Kind.MODEL, KEY, keep=keep, chunk_bytes=CHUNK) as work:
            work.add(work.staging.write_bytes("a.safetensors", random_bytes(CHUNK)))
            work.add(work.staging.write_bytes("b.safetensors", random_bytes(CHUNK)))
            work.publish([("org/model", "latest")])
        store.ports.transport.files = 0  # type: ignore[attr-defined]
        assert list(store.paths.incoming.iterdir()) == []
    assert store.refs.list() == [] and store.list_objects() == []
