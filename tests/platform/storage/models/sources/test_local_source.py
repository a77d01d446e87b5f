"""A local directory is read as it is, and whatever changes in it is noticed."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.storage.errors import Refused, TransferFailed
from ebbtide.storage.models.sources import local_source
from ebbtide.storage.models.sources.local_source import LocalSource
from ebbtide.storage.models.sources.source import Part, SourceChanged, SourceFile, read_all
from tests.platform.storage.stale import stale_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_bytes(bytes(range(200)))
    (folder / "config.json").write_text("{}")
    return folder


def named(source: LocalSource) -> dict[str, SourceFile]:
    return {file.name: file for file in source.listing()}


def test_files_are_listed_with_sizes_and_those_of_folders_too_but_nothing_hidden(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("[]")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.json").write_text("{}")
    (folder / ".gitattributes").write_text("")
    deep = folder / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "too_deep.json").write_text("{}")
    found = named(LocalSource(folder))
    assert {name: file.size_bytes for name, file in found.items()} == {
        "weights": 200,
        "config.json": 2,
        "1_Pooling/config.json": 2,
    }


def test_links_to_files_are_followed_and_links_to_folders_are_not(folder: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_bytes(b"content")
    (folder / "linked.json").symlink_to(blob)
    (folder / "gone.json").symlink_to(tmp_path / "nowhere")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    (folder / "elsewhere").symlink_to("/etc")
    source = LocalSource(folder)
    found = named(source)
    assert set(found) == {"weights", "config.json", "linked.json"}
    assert read_all(source, found["linked.json"]) == b"content"


def test_what_is_no_ordinary_file_is_not_listed_and_never_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.json")
    source = LocalSource(folder)
    assert set(named(source)) == {"weights", "config.json"}
    config = named(source)["config.json"]
    os.unlink(folder / "config.json")
    os.mkfifo(folder / "config.json")  # swapped between listing and opening: an open without care would block for ever
    with pytest.raises(SourceChanged):
        source.open(config)


def test_parts_are_read_where_they_are_wanted(folder: Path) -> None:
    source = LocalSource(folder)
    memory = bytearray(30)
    view = memoryview(memory)
    with source.open(named(source)["weights"]) as reading:
        reading.read([Part(10, view[:5]), Part(190, view[5:15]), Part(0, view[15:15]), Part(50, view[15:])])
    assert bytes(memory) == bytes([*range(10, 15), *range(190, 200), *range(50, 65)])


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(range(200)))
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)


def touched_back(path: Path) -> None:
    """Changed in place, and the time of modification set back, as unpackers do: only ctime tells."""
    before = path.stat()
    path.write_bytes(bytes(reversed(range(200))))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(b"short"),
    lambda path: path.write_bytes(bytes(300)),
    Path.unlink,
    made_a_folder,
    replaced,
    touched_back,
]


@pytest.mark.parametrize("change", CHANGES, ids=["shorter", "longer", "gone", "folder", "replaced", "touched back"])
def test_a_file_that_changed_since_it_was_listed_is_not_opened(folder: Path, change: Callable[[Path], object]) -> None:
    source = LocalSource(folder)
    weights = named(source)["weights"]
    change(folder / "weights")
    with pytest.raises(SourceChanged, match=r"weights.*nothing was published"):
        source.open(weights)


def test_a_change_while_a_file_is_open_is_noticed_at_its_end(folder: Path) -> None:
    source = LocalSource(folder)
    with pytest.raises(SourceChanged), source.open(named(source)["weights"]):
        touched_back(folder / "weights")


def test_a_file_that_is_cut_off_while_it_is_read_names_the_byte(folder: Path) -> None:
    source = LocalSource(folder)
    with pytest.raises(SourceChanged, match="ends at byte 20 of 200"), source.open(named(source)["weights"]) as reading:
        os.truncate(folder / "weights", 20)
        reading.read([Part(10, memoryview(bytearray(100)))])


def test_whoever_reads_late_gets_no_bytes_of_a_file_that_was_opened_since(folder: Path, tmp_path: Path) -> None:
    source = LocalSource(folder)
    with source.open(named(source)["weights"]) as reading:
        pass
    (tmp_path / "other").write_bytes(b"secret" * 50)
    others = [os.open(tmp_path / "other", os.O_RDONLY) for _ in range(8)]
    memory = bytearray(100)
    with pytest.raises(TransferFailed, match="weights"):
        reading.read([Part(0, memoryview(memory))])
    assert memory == bytes(100)
    for other in others:
        os.close(other)


def test_an_error_of_the_filesystem_keeps_errno_and_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    source = LocalSource(folder)
    with source.open(named(source)["weights"]) as reading:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(TransferFailed) as caught:
            reading.read([Part(30, memoryview(bytearray(4)))])
    assert (caught.value.errno, caught.value.offset) == (errno.EIO, 30)


def test_short_reads_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def short(fd: int, buffers: list[memoryview], offset: int) -> int:
        return real(fd, [buffers[0][:7]], offset)

    source = LocalSource(folder)
    monkeypatch.setattr(os, "preadv", short)
    assert read_all(source, named(source)["weights"]) == bytes(range(200))


@pytest.mark.parametrize("wrong", ["nowhere", "model/weights", "model/weights/below"])
def test_what_is_no_directory_is_refused(folder: Path, tmp_path: Path, wrong: str) -> None:
    with pytest.raises(Refused, match=r"there is no directory|is a file"):
        LocalSource(tmp_path / wrong).listing()


def test_a_directory_that_cannot_be_looked_at_is_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LocalSource(folder)
    stale_at(monkeypatch, folder)
    with pytest.raises(TransferFailed, match=r"model: .*ESTALE"):
        source.listing()


def test_a_directory_with_too_many_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_source, "MAX_FILES", 1)
    with pytest.raises(Refused, match="more than 1 files"):
        LocalSource(folder).listing()


def test_names_of_any_bytes_are_listed(folder: Path) -> None:
    (folder / "größe 重み.json").write_text("{}")
    if sys.platform == "linux":
        with open(os.fsencode(folder) + b"/\xff\xfe.json", "wb"):
            pass
    assert len(named(LocalSource(folder))) == 4


def test_the_place_is_the_same_through_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert LocalSource(tmp_path / "link").where == LocalSource(folder).where == str(folder.resolve())


@pytest.mark.parametrize("field", ["st_ino", "st_mtime_ns", "st_ctime_ns"])
def test_inode_and_both_times_are_in_a_stamp(folder: Path, field: str) -> None:
    """Each alone: two files of one tick of the clock differ in the inode only, a change that was set back in ctime."""
    found = (folder / "weights").stat()
    fields = ("st_ino", "st_mtime_ns", "st_ctime_ns")
    before = SimpleNamespace(**{name: getattr(found, name) for name in fields})
    after = SimpleNamespace(**{name: getattr(found, name) + (name == field) for name in fields})
    assert local_source._stamp(before) != local_source._stamp(after)  # type: ignore[arg-type]
