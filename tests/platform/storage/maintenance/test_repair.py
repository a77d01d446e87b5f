"""Repair puts back exactly what was published, takes only what is needed, and nothing from a wrong source."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ebbtide.storage.errors import Corrupt, NoRoom, Refused, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.leases.lease_subjects import of_object
from ebbtide.storage.maintenance.repair import repair
from ebbtide.storage.maintenance.scrub import damage_of
from ebbtide.storage.maintenance.space_reservation import measure
from ebbtide.storage.names import COMMIT, ObjectId
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide.storage.objects.store_limits import Budget
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.platform.storage.failing_calls import CountedCalls
from tests.platform.storage.stores import (
    CHUNK,
    POOL,
    LocalLeases,
    collect_all,
    each,
    leftovers,
    model_is_right,
    overwrite,
    publish_model,
    store_at,
    within,
)

FILE = "model.safetensors"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return store_at(tmp_path / "store")


@pytest.fixture
def object_id(store: ObjectStore) -> ObjectId:
    return publish_model(store)


@pytest.fixture
def sources(store: ObjectStore, object_id: ObjectId, tmp_path: Path) -> dict[str, Path]:
    copied = {name: tmp_path / "sources" / name for name in (FILE, "config.json")}
    (tmp_path / "sources").mkdir()
    for name, path in copied.items():
        shutil.copy(store.paths.object(object_id) / name, path)
    return copied


def remove_all(at: Path, *names: str) -> None:
    for name in names:
        (at / name).unlink()


SIZE = 266_633
CASES: dict[str, tuple[Callable[[Path], object], int]] = {
    "one chunk": (lambda at: overwrite(at / FILE, CHUNK + 5, b"\0\0\0\0"), CHUNK),
    "first and last chunk": (
        each(lambda at: overwrite(at / FILE, 0, b"\0"), lambda at: overwrite(at / FILE, SIZE - 9, b"123456789")),
        CHUNK + SIZE - 4 * CHUNK,
    ),
    "truncated": (lambda at: os.truncate(at / FILE, 3 * CHUNK + 1), SIZE - 3 * CHUNK),
    "longer": (lambda at: os.truncate(at / FILE, SIZE + 1), 0),
    "missing": (lambda at: (at / FILE).unlink(), SIZE),
    "all zeros": (lambda at: overwrite(at / FILE, 0, bytes(SIZE)), SIZE),
    "index missing": (lambda at: (at / (FILE + ".idx")).unlink(), 0),
    "index torn": (lambda at: os.truncate(at / (FILE + ".idx"), 50), 0),
    "index and a chunk": (
        each(lambda at: (at / (FILE + ".idx")).unlink(), lambda at: overwrite(at / FILE, 9, b"\0\0\0")),
        SIZE,
    ),
    "small file": (lambda at: (at / "config.json").write_bytes(b"{}"), 13),
    "everything": (lambda at: remove_all(at, FILE, FILE + ".idx", "config.json"), SIZE + 13),
}


@pytest.mark.proves(
    "a chunk that is on the list of damage is not taken from the file",
    "the work of a repair goes in the end",
)
@pytest.mark.parametrize(("act", "taken"), CASES.values(), ids=CASES.keys())
def test_any_damage_is_mended_with_as_little_from_the_source_as_can_be(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path], act: Callable[[Path], object], taken: int
) -> None:
    act(store.paths.object(object_id))
    damage = damage_of(store.ports, object_id)
    assert damage
    done = repair(store.ports, object_id, damage, sources)
    assert done.source_bytes == taken
    assert set(done.files) == {one.file for one in damage}
    assert damage_of(store.ports, object_id, deep=True) == []
    assert model_is_right(store) and leftovers(store) == []
    assert (store.paths.object(object_id) / FILE).stat().st_mode & 0o777 == 0o600


def test_an_index_alone_needs_no_source(store: ObjectStore, object_id: ObjectId) -> None:
    (store.paths.object(object_id) / (FILE + ".idx")).unlink()
    repair(store.ports, object_id, damage_of(store.ports, object_id), {})
    assert model_is_right(store)


BAD_SOURCES: dict[str, tuple[Callable[[Path], object], str]] = {
    "too short": (lambda path: os.truncate(path, CHUNK + 10), "it is too short"),
    "the same damage": (
        lambda path: overwrite(path, CHUNK + 5, b"\0\0\0\0"),
        f"at byte {CHUNK} it is not what was published",
    ),
    "another file": (lambda path: path.write_bytes(bytes(SIZE)), "it is not what was published"),
    "missing": (lambda path: path.unlink(), "it cannot be opened: No such file"),
    "a directory": (each(lambda path: path.unlink(), lambda path: path.mkdir()), "it cannot be read: Is a directory"),
}


@pytest.mark.proves("a chunk of a repair's source is compared", "a repair's source that is too short is refused")
@pytest.mark.parametrize(("act", "why"), BAD_SOURCES.values(), ids=BAD_SOURCES.keys())
def test_a_bad_source_is_refused_and_the_object_stays_as_it_was(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path], act: Callable[[Path], object], why: str
) -> None:
    path = store.paths.object(object_id) / FILE
    overwrite(path, CHUNK + 5, b"\0\0\0\0")
    before = path.read_bytes()
    act(sources[FILE])
    damage = damage_of(store.ports, object_id)
    with pytest.raises(Refused, match=why):
        repair(store.ports, object_id, damage, sources)
    with pytest.raises(Refused, match="a source is needed"):
        repair(store.ports, object_id, damage, {})
    assert path.read_bytes() == before
    assert damage_of(store.ports, object_id) == damage and leftovers(store) == []


def test_a_missing_file_and_a_missing_source_are_refused(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    (store.paths.object(object_id) / FILE).unlink()
    sources[FILE].unlink()
    with pytest.raises(Refused, match="it cannot be opened: No such file"):
        repair(store.ports, object_id, damage_of(store.ports, object_id), sources)
    assert leftovers(store) == []


def test_a_link_in_the_place_of_a_file_is_mended_and_never_followed(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path], tmp_path: Path
) -> None:
    path = store.paths.object(object_id) / FILE
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    repair(store.ports, object_id, damage_of(store.ports, object_id), sources)
    assert model_is_right(store) and not path.is_symlink()


@pytest.mark.proves("a damaged file that cannot be opened is an error and not a gap")
def test_a_file_that_cannot_be_opened_is_one_error_with_its_place(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.paths.object(object_id) / FILE
    overwrite(path, 5, b"\0\0\0\0")
    damage, real = damage_of(store.ports, object_id), os.open

    def stale(name: Path, flags: int, *more: int) -> int:
        if name == path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(name, flags, *more)

    monkeypatch.setattr(os, "open", stale)
    with pytest.raises(TransferFailed, match=rf"{FILE}.*ESTALE"):
        repair(store.ports, object_id, damage, sources)


@pytest.mark.proves("what was mended is what was published, as a whole")
def test_a_bad_source_for_a_file_without_index_is_found_out_in_the_end(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    path = store.paths.object(object_id) / FILE
    path.with_name(FILE + ".idx").unlink()
    overwrite(path, CHUNK + 5, b"\0\0\0\0")
    overwrite(sources[FILE], 3 * CHUNK, b"\0\0\0\0")
    before, damage = path.read_bytes(), damage_of(store.ports, object_id)
    with pytest.raises(Refused, match="the result is not what was published"):
        repair(store.ports, object_id, damage, sources)
    assert path.read_bytes() == before and leftovers(store) == []


@pytest.mark.proves("a whole object is looked at after a repair")
def test_a_repair_that_leaves_damage_behind_says_so(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    place = store.paths.object(object_id)
    overwrite(place / FILE, 5, b"\0\0\0\0")
    damage = damage_of(store.ports, object_id)
    (place / "config.json").unlink()
    with pytest.raises(Corrupt, match=r"config\.json"):
        repair(store.ports, object_id, damage, sources)
    assert [one.file for one in damage_of(store.ports, object_id)] == ["config.json"], "what could be mended is"


@pytest.mark.proves("a chunk that went bad after the look is not taken over")
def test_what_went_bad_after_the_scrub_is_not_taken_over(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    path = store.paths.object(object_id) / FILE
    overwrite(path, 5, b"\0\0\0\0")
    damage = damage_of(store.ports, object_id)
    overwrite(path, 3 * CHUNK, b"\0\0\0\0")
    assert repair(store.ports, object_id, damage, sources).source_bytes == 2 * CHUNK
    assert model_is_right(store)


def test_manifest_and_commit_cannot_be_repaired(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    (store.paths.object(object_id) / COMMIT).write_bytes(b"x")
    with pytest.raises(Corrupt):
        repair(store.ports, object_id, [], sources)
    store.quarantine(object_id)
    publish_model(store)
    assert model_is_right(store)


def test_without_room_the_object_stays_as_it_was(
    tmp_path: Path, store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    class Full(PosixTransport):
        def write(self, path: Path, *_: object, **__: object):  # type: ignore[no-untyped-def]
            raise NoRoom(f"no room for {path}")

    path = store.paths.object(object_id) / FILE
    overwrite(path, 5, b"\0\0\0\0")
    before = path.read_bytes()
    full = store_at(tmp_path / "store", transport=Full(POOL))
    with pytest.raises(NoRoom):
        repair(full.ports, object_id, damage_of(store.ports, object_id), sources)
    assert path.read_bytes() == before and leftovers(store) == []


@pytest.mark.proves("a repair asks the budget for a copy of the largest file")
def test_a_repair_for_which_the_budget_is_too_small_is_not_begun(
    store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    place = store.paths.object(object_id)
    overwrite(place / FILE, 5, b"\0\0\0\0")
    overwrite(place / "config.json", 1, b"x")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    damage, stored = damage_of(store.ports, object_id), measure(store.ports).stored_bytes
    small = Budget(max_bytes=stored + SIZE - 1, keep_free_bytes=0)
    for budget in (small, Budget(keep_free_bytes=1 << 60)):
        with pytest.raises(NoRoom, match=f"no room for {SIZE} bytes in {store.paths.root}"):
            repair(within(store, budget).ports, object_id, damage, sources)
        assert {path.name: path.read_bytes() for path in place.iterdir()} == before and leftovers(store) == []
    # One file after the other: a copy of the largest is all that is there at a time.
    enough = within(store, Budget(max_bytes=stored + SIZE, keep_free_bytes=0))
    repair(enough.ports, object_id, damage, sources)
    assert model_is_right(store) and leftovers(store) == []


@pytest.mark.proves("an object is held while it is repaired", "the work of a repair is held")
def test_an_object_and_the_work_on_it_are_held_while_it_is_repaired(
    tmp_path: Path, store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    leases, seen = LocalLeases(), list[frozenset[str]]()

    class Looking(PosixTransport):
        def write(self, *arguments: Any, **more: Any) -> TransferReport:
            seen.append(leases.living())
            return super().write(*arguments, **more)

    overwrite(store.paths.object(object_id) / FILE, 5, b"\0\0\0\0")
    looking = store_at(tmp_path / "store", transport=Looking(POOL), leases=leases)
    repair(looking.ports, object_id, damage_of(store.ports, object_id), sources)
    [living] = seen
    assert of_object(object_id) in living
    assert [one for one in living if one.startswith("work-repair-")], "or a collector takes the half of a copy"
    assert not leases.living()


def test_readers_with_the_file_open_go_on(store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]) -> None:
    path = store.paths.object(object_id) / FILE
    overwrite(path, 5, b"\0\0\0\0")
    with store.open(object_id) as found:
        with pytest.raises(Corrupt):
            found.read_bytes(FILE)
        repair(store.ports, object_id, damage_of(store.ports, object_id), sources)
        assert found.read_bytes(FILE) == sources[FILE].read_bytes()


def test_a_repair_cut_off_anywhere_can_be_done_again(
    tmp_path: Path, store: ObjectStore, object_id: ObjectId, sources: dict[str, Path]
) -> None:
    class Cut(BaseException):
        pass

    path = store.paths.object(object_id) / FILE
    good = path.read_bytes()
    for number in range(1, 40):

        def cut(at: int, _name: str, number: int = number) -> None:
            if at >= number:
                raise Cut

        overwrite(path, 5, b"\0\0\0\0")
        path.with_name(FILE + ".idx").write_bytes(b"torn")
        cutting = store_at(tmp_path / "store", disk=Disk(CountedCalls(cut)))
        damage = damage_of(store.ports, object_id)
        assert damage
        try:
            repair(cutting.ports, object_id, damage, sources)
        except Cut:
            with suppress(Corrupt):
                assert model_is_right(store)
        else:
            break
        repair(store.ports, object_id, damage_of(store.ports, object_id), sources)
        assert path.read_bytes() == good and model_is_right(store)
    assert 8 < number < 39
    collect_all(store)
    assert leftovers(store) == [] and model_is_right(store)
