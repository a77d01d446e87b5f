"""The collector on real directories: with readers, publishers and other collectors about, and cut off anywhere."""

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.storage.errors import Corrupt, NotPublished, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.maintenance.garbage_collection import collect, filesystem_now_s, survey, tree_bytes, written_bytes
from ebbtide.storage.maintenance.garbage_plan import Fate, Grace, plan
from ebbtide.storage.names import COMMIT, MANIFEST, ObjectId
from ebbtide.storage.objects.manifest import Kind
from tests.builders.store import one_round
from tests.platform.storage.failing_calls import CountedCalls, failing_at
from tests.platform.storage.stores import (
    CHUNK,
    KEY,
    NO_GRACE,
    LocalLeases,
    collect_all,
    leftovers,
    model_is_right,
    publish_model,
    random_bytes,
    store_at,
    tensors,
)


def test_an_unreferenced_object_goes_in_two_rounds(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    kept, lost = publish_model(store), publish_model(store, seed=1, tag=None)
    assert one_round(store) == {lost[:8]: Fate.TRASH}
    with pytest.raises(NotPublished):
        store.open(lost)
    assert one_round(store) == {lost[:8]: Fate.REMOVE}
    assert one_round(store) == {}
    assert store.list_objects() == [kept] and leftovers(store) == [] and model_is_right(store)


@pytest.mark.proves("the time in the trash counts from the move")
def test_time_is_granted_by_the_filesystems_clock(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    grace = Grace(object_s=1000, trash_s=50)
    assert one_round(store, grace) == {}
    long_ago = filesystem_now_s(store.ports) - 2000
    for path in (store.paths.object(lost) / COMMIT, store.paths.object(lost)):
        os.utime(path, (long_ago, long_ago))
    assert one_round(store, grace) == {lost[:8]: Fate.TRASH}
    assert one_round(store, grace) == {}, "its time in the trash counts from the move"
    [trashed] = store.paths.trash.iterdir()
    os.utime(trashed, (long_ago, long_ago))
    assert one_round(store, grace) == {lost[:8]: Fate.REMOVE}


@pytest.mark.proves("ages are taken by the filesystem's clock")
def test_a_node_whose_clock_is_wrong_condemns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store, tag=None)
    (store.paths.incoming / "cut-off").mkdir()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 1e8)
    assert one_round(store, Grace()) == {}
    os.utime(store.paths.trash, (0.0, 0.0))
    assert abs(filesystem_now_s(store.ports) - real()) < 60, "it is told by a change that is made now"


@pytest.mark.proves("an object that stands there is made young before it is looked at")
def test_publishing_the_same_again_makes_an_old_object_young(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    long_ago = filesystem_now_s(store.ports) - 2000
    os.utime(store.paths.object(lost) / COMMIT, (long_ago, long_ago))
    publish_model(store, tag=None)
    assert one_round(store, Grace(object_s=1000)) == {}
    assert list(store.paths.quarantine.iterdir()) == [], "it is the same one"


def test_a_reader_keeps_what_it_reads(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    with store.open(lost) as found:
        assert one_round(store) == {}
        assert found.read_bytes("config.json")
    assert one_round(store) == {lost[:8]: Fate.TRASH}


def test_an_object_named_or_held_after_it_was_trashed_comes_back(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    assert one_round(store) == {lost[:8]: Fate.TRASH}
    store.refs.write("org/model", "latest", lost)
    assert not model_is_right(store)
    assert one_round(store) == {lost[:8]: Fate.RESTORE}
    assert model_is_right(store)


def test_an_object_published_again_after_it_was_trashed_is_there_once(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    one_round(store)
    publish_model(store)
    assert model_is_right(store)
    assert one_round(store) == {lost[:8]: Fate.REMOVE}
    assert model_is_right(store) and leftovers(store) == []


def test_what_another_object_uses_stays_as_long_as_that(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    base = publish_model(store, tag=None)
    with store.publication(Kind.FLAT, KEY, uses=[base]) as work:
        flat = work.publish([("org/model", "flat")])
    assert one_round(store) == {}
    store.refs.delete("org/model", "flat")
    assert one_round(store) == {base[:8]: Fate.TRASH, flat[:8]: Fate.TRASH}


def test_abandoned_work_goes_and_living_work_stays(tmp_path: Path) -> None:
    leases = LocalLeases()
    store = store_at(tmp_path / "store", leases=leases)
    with store.publication(Kind.MODEL, KEY, attempt_name="living", chunk_bytes=CHUNK) as work:
        work.add(work.staging.write_bytes("a", b"1"))
        store.paths.work(work.attempt).with_name("dead").mkdir()
        assert one_round(store) == {"dead": Fate.TRASH}
        assert work.publish()
    collect_all(store)
    assert leftovers(store) == []


@pytest.mark.proves("a bad ref is told to the plan")
def test_a_torn_object_without_a_ref_goes_and_with_one_blocks(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    torn, other = publish_model(store), publish_model(store, seed=1, tag=None)
    (store.paths.object(torn) / MANIFEST).write_bytes(b"{}")
    assert one_round(store) == {}, "nobody knows what the torn one uses"
    store.refs.delete("org/model", "latest")
    assert one_round(store) == {torn[:8]: Fate.TRASH, other[:8]: Fate.TRASH}
    (store.paths.refs / "x").mkdir()
    (store.paths.refs / "x" / "y").write_bytes(b"nonsense")
    assert one_round(store) == {}, "nobody knows what the bad ref names"
    assert len(list(store.paths.trash.iterdir())) == 2


@pytest.mark.proves("strangers in the store are left alone")
def test_strangers_in_the_store_are_left_alone(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    (store.paths.objects / "lost+found").mkdir()
    (store.paths.objects / "lost+found" / "precious").touch()
    (store.paths.root / "README").touch()
    collect_all(store)
    assert (store.paths.objects / "lost+found" / "precious").exists() and (store.paths.root / "README").exists()


@pytest.mark.proves("a husk goes to quarantine before a good copy takes its place")
def test_a_husk_makes_room_for_the_good_copy_in_the_trash(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    lost = publish_model(store, tag=None)
    assert one_round(store) == {lost[:8]: Fate.TRASH}
    store.paths.object(lost).mkdir()
    (store.paths.object(lost) / MANIFEST).write_bytes(b"left by a removal that was cut off")
    store.refs.write("org/model", "latest", lost)
    assert one_round(store) == {lost[:8]: Fate.RESTORE}
    assert model_is_right(store) and len(list(store.paths.quarantine.iterdir())) == 1


def test_temporary_files_of_cut_off_replacements_go(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store)
    (store.paths.refs / "org%2Fmodel" / ".latest.0123.tmp").touch()
    (store.paths.root / ".store.json.0123.tmp").touch()
    collect_all(store)
    assert not list(store.paths.root.rglob("*.tmp")) and model_is_right(store)


def test_a_link_to_the_outside_is_removed_not_followed(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_bytes(b"x" * 1000)
    lost = publish_model(store, tag=None)
    (store.paths.object(lost) / "link").symlink_to(tmp_path / "outside")
    (store.paths.incoming / "linked").symlink_to(tmp_path / "outside")
    collect_all(store)
    (store.paths.incoming / "linked").unlink()  # none of the store's own: it stayed
    assert (tmp_path / "outside" / "precious").exists()
    assert store.list_objects() == [] and leftovers(store) == []


@pytest.mark.proves("links in the store are not followed")
def test_what_a_link_points_to_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large").write_bytes(bytes(100_000))
    (tmp_path / "inside" / "folder").mkdir(parents=True)
    (tmp_path / "inside" / "folder" / "small").write_bytes(bytes(5000))
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    assert tree_bytes(tmp_path / "inside") >= 5000, "what is there is"
    assert tree_bytes(tmp_path / "inside") < 100_000 and written_bytes(tmp_path / "inside") < 100_000


@pytest.mark.proves("what fails in a round is told and the rest is done")
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_what_fails_is_told_and_the_rest_is_done(tmp_path: Path, code: int) -> None:
    store = store_at(tmp_path / "store")
    for seed in range(3):
        publish_model(store, seed=seed, tag=None)
    verdicts = plan(survey(store.ports), NO_GRACE)
    failing = store_at(tmp_path / "store", disk=Disk(failing_at(4, code)))
    result = collect(failing.ports, verdicts, NO_GRACE)
    assert len(result.done) == 2 and len(result.failed) == 1
    assert isinstance(result.failed[0][1], TransferFailed)
    again = collect(store.ports, verdicts, NO_GRACE)
    assert len(again.done) == 1 and len(again.missed) == 2 and again.removed_bytes == 0
    assert store.list_objects() == []


def test_a_round_cut_off_anywhere_harms_nothing(tmp_path: Path) -> None:
    class Cut(BaseException):
        pass

    def cut_at(number: int) -> CountedCalls:
        def cut(at: int, _name: str) -> None:
            if at == number:
                raise Cut

        return CountedCalls(cut)

    store = store_at(tmp_path / "store")
    publish_model(store)
    for number in range(1, 30):
        lost = publish_model(store, seed=1, tag=None)
        cutting = store_at(tmp_path / "store", disk=Disk(cut_at(number)))
        try:
            collect_all(cutting)
        except Cut:
            with pytest.raises(NotPublished) if lost not in store.list_objects() else store.open(lost):
                store.open(lost)
        assert model_is_right(store)
        publish_model(store, seed=1, tag="second")
        assert model_is_right(store, seed=1, tag="second")
        store.refs.delete("org/model", "second")
    collect_all(store)
    assert leftovers(store) == [] and len(store.list_objects()) == 1


AT_ONCE = replace(NO_GRACE, temporary_s=3600)  # or collectors would take the files of refs that are being written


def test_readers_and_publishers_race_the_collector_and_nobody_sees_wrong_bytes(tmp_path: Path) -> None:
    """One publishes and unpublishes, readers open by ref and id, two collectors grant no time at all."""
    leases = LocalLeases()
    root = tmp_path / "store"
    wanted: list[ObjectId] = [publish_model(store_at(root, leases=leases), seed=5)]
    until_s = time.monotonic() + 4
    counts = {"read": 0, "missing": 0}

    def read() -> None:
        store = store_at(root, leases=leases)
        while time.monotonic() < until_s:
            try:
                with store.open(wanted[0]) as found:
                    array = found.read_arrays("model.safetensors")["norm"]
                assert (array == tensors(5)["norm"]).all()
                counts["read"] += 1
            except NotPublished:
                counts["missing"] += 1

    def publish() -> None:
        store = store_at(root, leases=leases)
        while time.monotonic() < until_s:
            publish_model(store, seed=5)
            assert model_is_right(store, seed=5), "a ref that was just written leads to an object"
            store.refs.delete("org/model", "latest")

    def sweep() -> None:
        store = store_at(root, leases=leases)
        while time.monotonic() < until_s:
            collect(store.ports, plan(survey(store.ports), AT_ONCE), AT_ONCE)

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(act) for act in (read, read, publish, sweep, sweep)]:
            future.result()
    assert counts["read"]
    store = store_at(root, leases=leases)
    collect_all(store)
    assert leftovers(store) == []


@pytest.mark.proves("what cannot be listed stops the round")
@pytest.mark.parametrize("folder", ["refs", "objects", "incoming", "trash", "quarantine"])
def test_a_directory_that_cannot_be_looked_at_stops_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    store = store_at(tmp_path / "store")
    publish_model(store, tag=None)
    unreadable: Path = getattr(store.paths, folder)
    real = os.listdir

    def failing(path: Path) -> list[str]:
        if Path(path) == unreadable:
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(TransferFailed, match=unreadable.name):
        survey(store.ports)


def test_leases_of_other_threads_are_seen(tmp_path: Path) -> None:
    leases = LocalLeases()
    store = store_at(tmp_path / "store", leases=leases)
    lost = publish_model(store, tag=None)
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store.open(lost):
            holding.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(20)
    assert one_round(store) == {}
    release.set()
    thread.join()
    assert one_round(store) == {lost[:8]: Fate.TRASH}


def test_a_repaired_store_can_be_collected_again(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    data = random_bytes(1000)
    with store.publication(Kind.ARTEFACT, {}) as work:
        work.add(work.staging.write_bytes("x", data))
        found = work.publish([("cache", "x")])
    (store.paths.object(found) / COMMIT).write_bytes(b"")
    with pytest.raises(Corrupt):
        store.open(found)
    store.quarantine(found)
    assert one_round(store, Grace(quarantine_s=1000)) == {}
    assert one_round(store) == {found[:8]: Fate.REMOVE}
