"""Refs: replaced whole, read as they are, and never outside their directory."""

import errno
import json
import threading
from pathlib import Path

import pytest

from ebbtide.storage.errors import Corrupt, NoRoom, NotPublished, Refused, TransferFailed
from ebbtide.storage.files.durable_files import Disk
from ebbtide.storage.names import object_id
from ebbtide.storage.objects.refs import Refs
from ebbtide.storage.objects.store_paths import StorePaths
from tests.platform.storage.failing_calls import CountedCalls, failing_at
from tests.platform.storage.stale import stale_at

ONE, TWO = object_id("1" * 64), object_id("2" * 64)


@pytest.fixture
def refs(tmp_path: Path) -> Refs:
    (tmp_path / "refs").mkdir()
    return Refs(StorePaths(tmp_path), Disk())


def test_a_ref_is_written_replaced_listed_and_deleted(refs: Refs) -> None:
    refs.write("org/model", "latest", ONE)
    refs.write("org/model", "v1", ONE)
    refs.write("org", "model", TWO)
    assert refs.read("org/model", "latest").object == ONE
    refs.write("org/model", "latest", TWO)
    assert refs.read("org/model", "latest").object == TWO
    assert [str(ref) for ref in refs.list()] == ["org:model", "org/model:latest", "org/model:v1"]
    assert [str(ref) for ref in refs.list("org/")] == ["org/model:latest", "org/model:v1"]
    assert refs.names() == ["org", "org/model"]
    assert refs.tags("org/model") == ["latest", "v1"]
    assert refs.delete("org/model", "v1") and not refs.delete("org/model", "v1")
    assert refs.delete("org/model", "latest")
    assert refs.names() == ["org"] and refs.tags("org/model") == []
    refs.write("org/model", "again", ONE)
    assert refs.tags("org/model") == ["again"]


def test_a_missing_ref_says_what_there_is(refs: Refs) -> None:
    refs.write("org/model", "v1", ONE)
    with pytest.raises(NotPublished, match=r"no ref org/model:latest in .*; tags of org/model: v1"):
        refs.read("org/model", "latest")


@pytest.mark.parametrize("name", ["../x", "/x", "", "a/../../x", ".x"])
def test_names_that_lead_outside_are_refused_everywhere(refs: Refs, tmp_path: Path, name: str) -> None:
    for act in (
        lambda: refs.read(name, "t"),
        lambda: refs.read("n", name),
        lambda: refs.write(name, "t", ONE),
        lambda: refs.write("n", name, ONE),
        lambda: refs.delete(name, "t"),
        lambda: refs.delete("n", name),
        lambda: refs.tags(name),
        lambda: refs.write("n", "t", name),  # type: ignore[arg-type]
    ):
        with pytest.raises(Refused):
            act()
    assert list(tmp_path.rglob("*")) == [tmp_path / "refs"]


@pytest.mark.proves("refs that differ only in case are refused")
def test_names_that_differ_only_in_case_are_refused(refs: Refs) -> None:
    refs.write("org/model", "latest", ONE)
    for name, tag in (("Org/Model", "latest"), ("org/model", "LATEST")):
        with pytest.raises(Refused, match="differs only in case"):
            refs.write(name, tag, TWO)
    assert [ref.object for ref in refs.list()] == [ONE]


GOOD = {"schema": 1, "name": "org/model", "tag": "latest", "object": ONE}
BAD = [
    b"",
    b"\0" * 100,
    b"[]",
    b"nonsense",
    b"x" * 5000,
    *(
        json.dumps(fields).encode()
        for fields in (
            GOOD | {"object": "../../x"},
            GOOD | {"object": 5},
            GOOD | {"tag": "other"},
            GOOD | {"name": "ORG/model"},
            GOOD | {"more": 1},
            {"schema": 1},
        )
    ),
]


@pytest.mark.proves("a ref is of its own name")
@pytest.mark.parametrize("raw", BAD, ids=lambda raw: ascii(raw[:40]))
def test_a_ref_that_makes_no_sense_is_corrupt(refs: Refs, raw: bytes) -> None:
    refs.write("org/model", "latest", ONE)
    path = refs._paths.refs / "org%2Fmodel" / "latest"
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match="latest"):
        refs.read("org/model", "latest")
    with pytest.raises(Corrupt):
        refs.list()
    refs.write("org/model", "latest", TWO)
    assert refs.read("org/model", "latest").object == TWO, "it can be written again"


@pytest.mark.proves("a newer ref is refused")
def test_a_newer_ref_is_refused_with_a_remedy(refs: Refs) -> None:
    refs.write("org/model", "latest", ONE)
    (refs._paths.refs / "org%2Fmodel" / "latest").write_text(json.dumps(GOOD | {"schema": 2}))
    with pytest.raises(Refused, match="update it"):
        refs.read("org/model", "latest")


@pytest.mark.proves("a ref that cannot be looked at is an error of ours")
def test_a_ref_that_cannot_be_looked_at_is_not_taken_for_deleted(refs: Refs, monkeypatch: pytest.MonkeyPatch) -> None:
    refs.write("org/model", "latest", ONE)
    with monkeypatch.context() as patch:
        stale_at(patch, refs._paths.refs / "org%2Fmodel")
        with pytest.raises(TransferFailed, match=r"cannot look at .*org%2Fmodel: .*ESTALE"):
            refs.delete("org/model", "latest")
    assert refs.read("org/model", "latest").object == ONE


def test_strangers_in_the_directory_are_no_refs(refs: Refs) -> None:
    refs.write("org/model", "latest", ONE)
    (refs._paths.refs / "lost+found (1)").mkdir()
    (refs._paths.refs / "org%2Fmodel" / ".latest.0.tmp").touch()
    (refs._paths.refs / "org%2Fmodel" / "odd name").touch()
    (refs._paths.refs / "empty").mkdir()
    assert [str(ref) for ref in refs.list()] == ["org/model:latest"]


@pytest.mark.proves("a ref is replaced, not written over")
@pytest.mark.parametrize("call", range(1, 5))
def test_without_room_the_old_ref_stays(refs: Refs, tmp_path: Path, call: int) -> None:
    refs.write("org/model", "latest", ONE)
    full = Refs(StorePaths(tmp_path), Disk(failing_at(call, errno.ENOSPC, for_ever=True)))
    with pytest.raises(NoRoom):
        full.write("org/model", "latest", TWO)
    assert refs.read("org/model", "latest").object == ONE
    assert [path.name for path in (tmp_path / "refs" / "org%2Fmodel").iterdir()] == ["latest"]


def test_readers_find_the_old_or_the_new_object_while_two_write(refs: Refs) -> None:
    refs.write("org/model", "latest", ONE)
    ended, seen = threading.Event(), set()

    def write(target: object) -> None:
        for _ in range(100):
            refs.write("org/model", "latest", target)  # type: ignore[arg-type]

    writers = [threading.Thread(target=write, args=(target,)) for target in (ONE, TWO)]
    for writer in writers:
        writer.start()

    def watch() -> None:
        for writer in writers:
            writer.join()
        ended.set()

    threading.Thread(target=watch).start()
    while not ended.is_set():
        seen.add(refs.read("org/model", "latest").object)
    assert seen <= {ONE, TWO}
    assert [path.name for path in (refs._paths.refs / "org%2Fmodel").iterdir()] == ["latest"]


@pytest.mark.proves("a ref whose directory went just then is written once more")
def test_a_ref_is_written_though_the_last_other_ref_of_its_name_is_deleted_just_then(tmp_path: Path) -> None:
    refs = Refs(StorePaths(tmp_path), Disk())
    (tmp_path / "refs").mkdir()
    refs.write("org/model", "v1", ONE)

    def delete_first(_number: int, name: str) -> None:
        if name == "create" and refs.tags("org/model") == ["v1"]:
            refs.delete("org/model", "v1")

    Refs(StorePaths(tmp_path), Disk(CountedCalls(delete_first))).write("org/model", "v2", TWO)
    assert [str(ref) for ref in refs.list()] == ["org/model:v2"]
