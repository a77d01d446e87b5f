"""Publishing while others do the same, take things away, or damage them; and what a publication refuses."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebbtide.storage.errors import Corrupt, NotPublished, Refused, Superseded, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.leases.object_leases import Lease
from ebbtide.storage.names import COMMIT
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.publication import EDGES, MOST_TURNS, Stage
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stale import stale_at
from tests.platform.storage.stores import (
    CHUNK,
    KEY,
    HeldForEver,
    LocalLeases,
    leftovers,
    model_is_right,
    publish_model,
    quick_directory,
    random_bytes,
    stage_tensors,
    store_at,
    tensors,
)

quick = pytest.fixture(quick_directory)


def test_many_publishers_of_one_object_and_one_ref_all_succeed_with_one_content(quick: Path) -> None:
    def publish(_: int) -> str:
        return publish_model(store_at(quick / "store"))

    with ThreadPoolExecutor(6) as pool:
        ids = set(pool.map(publish, range(18)))
    store = store_at(quick / "store")
    assert len(ids) == 1 and store.list_objects() == sorted(ids)
    assert model_is_right(store) and leftovers(store) == []


def test_publishers_of_different_objects_under_one_ref_leave_one_of_them_whole(quick: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: publish_model(store_at(quick / "store"), seed=seed % 2), range(8)))
    store = store_at(quick / "store")
    assert len(store.list_objects()) == 2 and len(store.refs.list()) == 1
    assert store.refs.read("org/model", "latest").object in store.list_objects()


@pytest.mark.proves(
    "a damaged object is moved aside to make its place free",
    "what stands there counts only if it is whole",
)
def test_publishing_over_a_damaged_object_replaces_it_and_keeps_the_damaged_one_for_a_look(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    for damage in ("COMMIT", "model.safetensors.idx", "config.json"):
        (store.paths.object(object_id) / damage).unlink()
        with pytest.raises((Corrupt, NotPublished)):
            store.open(object_id)
        assert publish_model(store) == object_id
        assert model_is_right(store)
    assert len(list(store.paths.quarantine.iterdir())) == 3


def test_a_quarantined_object_is_gone_until_it_is_published_again(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    assert store.quarantine(object_id).is_dir()
    with pytest.raises(NotPublished, match="org/model:latest points to object"):
        store.open_ref("org/model", "latest")
    with pytest.raises(NotPublished):
        store.quarantine(object_id)
    publish_model(store, tag=None)
    assert model_is_right(store), "the ref leads to it again"


class Stealing(CountedCalls):
    """A collector that takes the object that stands there, at the worst moments."""

    def __init__(self, root: Path, times: int, moment: str) -> None:
        super().__init__()
        self.root, self.times = root, times
        self.call = {"before it is looked at": "utime", "after the ref": "rename"}[moment]

    def at(self, name: str) -> None:
        super().at(name)
        if self.times > 0 and name == self.call:
            [there] = list((self.root / "objects").iterdir())
            if name == "utime" or list((self.root / "refs").rglob(".latest.*")):
                there.rename(self.root / "trash" / f"{there.name}.{self.times}")
                self.times -= 1


@pytest.mark.proves("after its refs the object is looked for once more")
@pytest.mark.parametrize("moment", ["before it is looked at", "after the ref"])
def test_an_object_found_there_and_collected_meanwhile_is_placed_anew(tmp_path: Path, moment: str) -> None:
    publish_model(store_at(tmp_path / "store"), tag=None)
    stealing = Stealing(tmp_path / "store", 1, moment)
    publish_model(store_at(tmp_path / "store", disk=Disk(stealing)))
    assert stealing.times == 0
    assert model_is_right(store_at(tmp_path / "store"))


@pytest.mark.proves("an object is held until its refs are written")
@pytest.mark.parametrize("there", [False, True], ids=["new", "there already"])
def test_an_object_is_held_until_its_refs_are_written(tmp_path: Path, there: bool) -> None:
    if there:
        publish_model(store_at(tmp_path / "store"), tag=None)
    leases, seen = LocalLeases(), []

    def look(_number: int, name: str) -> None:
        if name == "rename" and list((tmp_path / "store" / "refs").rglob(".latest.*")):
            seen.append(leases.living())

    store = store_at(tmp_path / "store", leases=leases, disk=Disk(CountedCalls(look)))
    object_id = publish_model(store)
    assert [of_object(object_id) in living for living in seen] == [True]
    assert not leases.living()


@pytest.mark.proves("a work directory that was taken away ends the publication")
def test_a_work_directory_taken_from_a_paused_publisher_ends_its_publication(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with pytest.raises((Superseded, TransferFailed)), store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK) as work:
        work.add(work.staging.write_bytes("config.json", b"{}"))
        seal = work._seal

        def pause() -> object:
            manifest = seal()
            shutil.rmtree(store.paths.work(work.attempt))
            return manifest

        work._seal = pause  # type: ignore[method-assign, assignment]
        work.publish([("org/model", "latest")])
    assert store.refs.list() == [] and store.list_objects() == [] and leftovers(store) == []


@pytest.mark.proves("a work directory is placed only by who holds its lease")
def test_a_publisher_that_lost_its_lease_publishes_nothing(tmp_path: Path) -> None:
    class Lost(LocalLeases):
        def hold(self, subject: str, *, comes_back: bool = False):  # type: ignore[no-untyped-def]
            class Gone:
                def __enter__(self):  # type: ignore[no-untyped-def]
                    return self

                def __exit__(self, *_: object) -> None: ...

                def check(self) -> None: ...

                def confirm(self) -> None:
                    raise Superseded("taken for dead")

            return Gone()

    with pytest.raises(Superseded):
        publish_model(store_at(tmp_path / "store", leases=Lost()))
    assert store_at(tmp_path / "store").list_objects() == []


@pytest.mark.proves("what an earlier attempt left is no part of the object")
def test_what_is_given_up_leaves_nothing_unless_it_is_to_be_kept(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK) as work:
        work.staging.write_bytes("a", b"1")
    assert work.stage is Stage.DROPPED and leftovers(store) == []
    data = random_bytes(5 * CHUNK)
    kept = {"chunk_bytes": CHUNK, "attempt_name": "import-of-x", "keep": True}
    with pytest.raises(KeyboardInterrupt), store.publication(Kind.MODEL, KEY, **kept) as work:  # type: ignore[arg-type]
        work.staging.write_bytes("a.safetensors", data)
        (store.paths.incoming / "import-of-x" / "half.safetensors").write_bytes(b"torn")
        raise KeyboardInterrupt
    with store.publication(Kind.MODEL, KEY, **kept) as work:  # type: ignore[arg-type]
        work.add(work.staging.adopt("a.safetensors"))
        object_id = work.publish()
    assert leftovers(store) == []
    with store.open(object_id) as found:
        assert found.read_bytes("a.safetensors") == data
        assert {path.name for path in store.paths.object(object_id).iterdir()} == {
            "a.safetensors",
            "a.safetensors.idx",
            "manifest.json",
            COMMIT,
        }


def test_who_still_writes_when_a_publication_is_given_up_leaves_nothing_either(tmp_path: Path) -> None:
    late: list[bool] = []

    def another_process_writes(_: int, name: str) -> None:
        if name == "rmdir":
            try:
                (incoming / "late").write_bytes(b"1")
            except FileNotFoundError:
                late.append(False)
            else:
                late.append(True)

    store = store_at(tmp_path / "store", disk=Disk(CountedCalls(another_process_writes)))
    incoming = store.paths.incoming / "given-up"
    with store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK, attempt_name="given-up") as work:
        work.staging.write_bytes("a", b"1")
        assert incoming.is_dir()
    assert late == [False] and leftovers(store) == []


def test_several_processes_stage_files_of_one_object(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with store.publication(Kind.TRAINING, {"run": "r", "step": "5"}, chunk_bytes=CHUNK) as work:
        entries = []

        def rank(number: int) -> None:
            other = store_at(tmp_path / "store")
            staging = other.join(work.attempt, Kind.TRAINING, {"step": "5", "run": "r"}, chunk_bytes=CHUNK)
            entries.append(staging.write_bytes(f"rank{number}.safetensors", random_bytes(100_000, number)))

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        work.add(*entries)
        object_id = work.publish([("train/r/e1", "step-5")])
    with store.open_ref("train/r/e1", "step-5") as found:
        assert found.id == object_id
        for number in range(3):
            assert found.read_bytes(f"rank{number}.safetensors") == random_bytes(100_000, number)
    with pytest.raises(NotPublished, match="whoever led this publication has ended"):
        store.join(work.attempt, Kind.TRAINING, {})


@pytest.mark.proves(
    "files that are to be published are there",
    "files that are to be published have their length",
    "indexes that are to be published are those of their files",
)
def test_files_that_are_not_as_they_were_staged_are_not_published(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    for change in ("gone", "longer", "index"):
        with store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK) as work:
            work.add(work.staging.write_bytes("a.safetensors", random_bytes(CHUNK)))
            path = store.paths.work(work.attempt) / "a.safetensors"
            if change == "gone":
                path.unlink()
            elif change == "longer":
                path.write_bytes(random_bytes(CHUNK + 1))
            else:
                path.with_name("a.safetensors.idx").write_bytes(b"")
            with pytest.raises((Refused, Corrupt), match=r"a\.safetensors"):
                work.publish()
    assert store.list_objects() == [] and leftovers(store) == []


def test_bad_refs_are_refused_before_anything_is_published(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with store.publication(Kind.MODEL, KEY) as work, pytest.raises(Refused):
        work.publish([("org/model", "latest"), ("../x", "latest")])
    assert store.list_objects() == [] and store.refs.list() == []


@pytest.mark.proves("what an object uses must be there")
def test_an_object_that_uses_another_needs_it_there(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with pytest.raises(NotPublished), store.publication(Kind.FLAT, KEY, uses=["1" * 64]):
        raise AssertionError("not reached")
    base = publish_model(store)
    with store.publication(Kind.FLAT, KEY, uses=[base]) as work:
        flat = work.publish()
    assert store.manifest(flat).uses == (base,)
    assert leftovers(store) == []


@pytest.mark.proves("what an object uses is held while it is published")
def test_what_an_object_uses_is_held_while_it_is_published(tmp_path: Path) -> None:
    leases = LocalLeases()
    store = store_at(tmp_path / "store", leases=leases)
    base = publish_model(store)
    with store.publication(Kind.FLAT, KEY, uses=[base]) as work:
        assert of_object(base) in leases.living()
        work.publish()
    assert not leases.living()


@pytest.mark.proves("an index is of its file and object")
def test_an_index_of_another_file_or_object_is_not_published(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    data = random_bytes(CHUNK)
    for key, content in ((KEY, random_bytes(CHUNK, 1)), ({"model": "another"}, data)):
        with (
            store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK) as work,
            store.publication(Kind.MODEL, key, chunk_bytes=CHUNK) as other,
        ):
            entry = work.staging.write_bytes("a.safetensors", data)
            wrong = other.staging.write_bytes("a.safetensors", content)
            index = "a.safetensors.idx"
            shutil.copy(store.paths.work(other.attempt) / index, store.paths.work(work.attempt) / index)
            work.add(entry.model_copy(update={"index": wrong.index}))
            with pytest.raises(Corrupt, match="this index is of another file"):
                work.publish()
    assert store.list_objects() == [] and leftovers(store) == []


@pytest.mark.proves("an object that keeps going is an error in the end")
def test_an_object_that_goes_again_and_again_is_not_said_to_be_published(tmp_path: Path) -> None:
    """Somebody else places the same each time, and a collector takes it as soon as its ref is written."""
    root = tmp_path / "store"
    there = root / "objects" / publish_model(store_at(root), tag=None)
    shutil.copytree(there, tmp_path / "copy")

    class Placing(HeldForEver):
        def confirm(self) -> None:
            if not there.exists():
                shutil.copytree(tmp_path / "copy", there)

    class Others(LocalLeases):
        @contextmanager
        def hold(self, subject: str, *, comes_back: bool = False) -> Iterator[Lease]:
            with super().hold(subject, comes_back=comes_back):
                yield Placing()

    def take(_number: int, name: str) -> None:
        if name == "rename" and list((root / "refs").rglob(".latest.*")):
            shutil.rmtree(there)

    store = store_at(root, leases=Others(), disk=Disk(CountedCalls(take)))
    with pytest.raises(NotPublished, match=f"was taken away {MOST_TURNS} times"):
        publish_model(store)
    assert leftovers(store) == []


@pytest.mark.proves("a work directory that cannot be looked at is an error of ours")
def test_a_work_directory_that_cannot_be_looked_at_is_one_error_and_the_damaged_object_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    (store.paths.object(object_id) / "config.json").unlink()
    again = store.publication(Kind.MODEL, KEY, chunk_bytes=CHUNK, attempt_name="again")
    with pytest.raises(TransferFailed, match=r"cannot look at .*incoming/again: .*ESTALE"), again as work:
        work.add(stage_tensors(work.staging, "model.safetensors", tensors()))
        work.add(work.staging.write_bytes("config.json", b'{"layers": 1}'))
        stale_at(monkeypatch, store.paths.incoming / "again")
        work.publish()
    assert store.list_objects() == [object_id] and list(store.paths.quarantine.iterdir()) == []


@pytest.mark.proves("files come too late after the sealing", "the stages of a publication follow their table")
def test_stages_follow_the_table_and_a_publication_is_used_once(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with store.publication(Kind.MODEL, KEY) as work:
        work.publish()
        for act in (work.publish, lambda: work.add()):
            with pytest.raises(Refused, match="named"):
                act()
    assert work.stage is Stage.NAMED
    for stage in Stage:
        for target in Stage:
            work.stage = stage
            if target in EDGES[stage]:
                work._go(target)
                assert work.stage is target
            else:
                with pytest.raises(Refused, match=f"is {stage.value} cannot become {target.value}"):
                    work._go(target)
                assert work.stage is stage


@pytest.mark.proves("a newer store is refused")
def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    store.paths.marker.write_text('{"schema": 2}')
    with pytest.raises(Refused, match="update it"):
        store_at(tmp_path / "store")
    store.paths.marker.write_text("nonsense")
    with pytest.raises(Corrupt, match=r"store\.json"):
        store_at(tmp_path / "store")


def test_a_store_is_made_by_several_at_once(quick: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores: list[ObjectStore] = list(pool.map(lambda _: store_at(quick / "deep" / "store"), range(16)))
    publish_model(stores[0])
    assert all(model_is_right(store) for store in stores)
