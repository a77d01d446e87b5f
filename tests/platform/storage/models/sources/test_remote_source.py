"""Sources behind URLs: each byte once, by ranges, and nothing believed."""

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest

from ebbtide.storage.errors import Refused, TransferFailed
from ebbtide.storage.models.sources.remote_source import RemoteSource, stamp_of
from ebbtide.storage.models.sources.source import Part, SourceChanged, SourceFile, read_all
from ebbtide.storage.models.sources.source_checkpoint import examine
from ebbtide.storage.remote.fsspec_calls import BackendFailed
from tests.platform.storage.models import counted_filesystem
from tests.platform.storage.models.counted_filesystem import CountedFileSystem, reads
from tests.platform.storage.models.http_server import Manners, served
from tests.platform.storage.models.made import make_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    counted_filesystem.register()
    monkeypatch.setattr(CountedFileSystem, "log", tmp_path / "log")
    monkeypatch.setattr(CountedFileSystem, "misbehave", None)
    monkeypatch.setattr(CountedFileSystem, "stamps", True)
    return tmp_path / "log"


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[str, Manners]]:
    with served(folder) as found:
        yield found


def of(url: str) -> RemoteSource:
    return RemoteSource(url, sleep=lambda _seconds: None)


def named(source: RemoteSource) -> dict[str, SourceFile]:
    return {file.name: file for file in source.listing()}


def test_memory_is_read_like_any_other(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe_file(f"/bucket/m/{path.name}", path.read_bytes())
    memory.pipe_file("/bucket/m/sub/x.json", b"[]")
    memory.pipe_file("/bucket/m/.hidden.json", b"[]")
    try:
        source = of("memory://bucket/m/")
        found = named(source)
        assert set(found) == {path.name for path in folder.iterdir()} | {"sub/x.json"}
        assert all(read_all(source, found[path.name]) == path.read_bytes() for path in folder.iterdir())
        checkpoint = examine(source)
        assert not checkpoint.is_vague and checkpoint.num_tensors == 12
        memory.pipe_file("/bucket/m/config.json", (folder / "config.json").read_bytes())
        with pytest.raises(SourceChanged):
            checkpoint.check_unchanged()
    finally:
        memory.rm("/bucket", recursive=True)


def test_only_what_is_wanted_is_read(folder: Path, counted: Path) -> None:
    source = of(f"counted://{folder}")
    file = named(source)["tokenizer.json"]
    memory = memoryview(bytearray(9))
    with source.open(file) as reading:
        reading.read([Part(20, memory[:4]), Part(3, memory[4:]), Part(0, memory[9:])])
    content = (folder / "tokenizer.json").read_bytes()
    assert bytes(memory) == content[20:24] + content[3:8]
    assert [(one["start"], one["bytes"]) for one in reads(counted)] == [(20, 4), (3, 5)]


def test_looking_through_reads_headers_and_small_files_only(folder: Path, counted: Path) -> None:
    examine(of(f"counted://{folder}"))
    for one in reads(counted):
        if one["file"].endswith(".safetensors"):
            header = 8 + int.from_bytes((folder / one["file"]).read_bytes()[:8], "little")
            assert one["start"] + one["bytes"] <= header


def test_short_answers_are_asked_for_again_and_told_if_they_stay(
    folder: Path, counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = [2]

    def cut(_name: str, _offset: int, content: bytes) -> bytes:
        lies[0] -= 1
        return content[:-1] if lies[0] >= 0 else content

    monkeypatch.setattr(CountedFileSystem, "misbehave", staticmethod(cut))
    source = of(f"counted://{folder}")
    config = named(source)["config.json"]
    assert read_all(source, config) == (folder / "config.json").read_bytes()
    lies[0] = 10**9
    with pytest.raises(TransferFailed, match=r"config\.json.*bytes came"):
        read_all(source, config)


def test_a_backend_that_gives_more_than_was_asked_is_not_used(
    folder: Path, counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountedFileSystem, "misbehave", staticmethod(lambda name, offset, content: content + b"x"))
    source = of(f"counted://{folder}")
    with pytest.raises(Refused, match="more than it is asked for"):
        read_all(source, named(source)["config.json"])


def test_a_file_that_vanishes_is_a_change_of_the_source(folder: Path, counted: Path) -> None:
    source = of(f"counted://{folder}")
    config = named(source)["config.json"]
    (folder / "config.json").unlink()
    with pytest.raises(SourceChanged, match=r"config\.json is gone"):
        read_all(source, config)


def test_a_source_without_stamps_is_vague(folder: Path, counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedFileSystem, "stamps", False)
    found = examine(of(f"counted://{folder}"))
    assert found.is_vague and any("neither times nor versions" in note for note in found.notes)


def test_a_directory_that_is_not_there_or_is_a_file_is_refused(folder: Path, counted: Path) -> None:
    with pytest.raises(Refused, match="there is no counted:///"):
        of(f"counted://{folder}/nowhere").listing()
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/one.safetensors", b"x")
    with pytest.raises(Refused, match="is a file"):
        of("memory://one.safetensors").listing()
    memory.rm("/one.safetensors")


def test_an_empty_object_in_the_place_of_the_directory_is_no_file(
    folder: Path, counted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CountedFileSystem.ls

    def ls(self: CountedFileSystem, path: str, detail: bool = True, **more: object) -> list[object]:
        return [
            {"name": self._strip_protocol(path) + "/", "size": 0, "type": "file"},
            *real(self, path, detail, **more),
        ]

    monkeypatch.setattr(CountedFileSystem, "ls", ls)
    assert set(named(of(f"counted://{folder}"))) == {path.name for path in folder.iterdir()}


# ---- HTTP


def test_a_server_that_lists_and_serves_ranges(folder: Path, server: tuple[str, Manners]) -> None:
    url, manners = server
    source = of(url)
    found = named(source)
    assert set(found) == {path.name for path in folder.iterdir()}
    checkpoint = examine(source)
    assert not checkpoint.is_vague and checkpoint.num_tensors == 12
    shard = found["model-00001-of-00002.safetensors"]
    memory = memoryview(bytearray(100))
    manners.requests.clear()
    with source.open(shard) as reading:
        reading.read([Part(5000, memory[:50]), Part(40, memory[50:])])
    content = (folder / shard.name).read_bytes()
    assert bytes(memory) == content[5000:5050] + content[40:90]
    assert sorted(one[2] for one in manners.requests) == ["bytes=40-89", "bytes=5000-5049"]


@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_server_that_does_not_list_is_asked_for_the_usual_names(server: tuple[str, Manners], status: int) -> None:
    url, manners = server
    manners.listing = status
    checkpoint = examine(of(url))
    assert len(checkpoint.shards) == 2 and checkpoint.num_tensors == 12
    assert {file.name for file in checkpoint.small} == {"config.json", "model.safetensors.index.json", "tokenizer.json"}
    checkpoint.check_unchanged()


def test_a_file_is_not_taken_for_missing_because_a_request_failed(server: tuple[str, Manners]) -> None:
    url, manners = server
    manners.listing = 404
    manners.fail = {"tokenizer.json": [503, 503]}  # HEAD and GET of the first look
    assert "tokenizer.json" in {file.name for file in examine(of(url)).small}
    manners.fail = {"tokenizer.json": [503] * 50}
    with pytest.raises(TransferFailed, match=r"tokenizer\.json"):
        examine(of(url))


def test_a_server_without_ranges_is_refused_and_not_read_to_the_end(folder: Path, server: tuple[str, Manners]) -> None:
    url, manners = server
    manners.ranges = False
    with pytest.raises(Refused, match="range requests"):
        examine(of(url))
    assert all(one[2] for one in manners.requests if one[0] == "GET" and one[1].endswith(".safetensors"))


def test_a_server_that_gives_no_stamps_is_vague(server: tuple[str, Manners]) -> None:
    url, manners = server
    manners.stamps = False
    assert examine(of(url)).is_vague


def test_a_server_that_gives_no_lengths_is_refused(server: tuple[str, Manners]) -> None:
    url, manners = server
    manners.lengths = False
    manners.listing = 404
    with pytest.raises((Refused, TransferFailed)):
        examine(of(url + "/"))


def test_a_server_that_is_not_there_is_told_after_some_tries() -> None:
    slept: list[float] = []
    source = RemoteSource("http://127.0.0.1:9/model", sleep=slept.append)
    with pytest.raises(BackendFailed, match=r"http://127\.0\.0\.1:9/model"):
        source.listing()
    assert slept == [1.0, 4.0]


def test_a_range_that_fails_is_asked_for_again(folder: Path, server: tuple[str, Manners]) -> None:
    url, manners = server
    source = of(url)
    found = named(source)
    manners.fail = {"tokenizer.json": [503, 500]}
    assert read_all(source, found["tokenizer.json"]) == (folder / "tokenizer.json").read_bytes()


# ---- stamps


@pytest.mark.parametrize(
    ("entry", "stamp"),
    [
        ({"ETag": '"abc"', "LastModified": 5, "size": 3, "name": "x"}, 'etag="abc" lastmodified=5'),
        ({"Last-Modified": "Mon", "mtime": None}, "lastmodified=Mon"),
        ({"generation": "7", "md5Hash": "q"}, "generation=7 md5hash=q"),
        ({"blob_id": "b", "VersionId": ""}, "blobid=b"),
        ({"size": 3, "type": "file", "mode": 33188}, ""),
    ],
)
def test_what_filesystems_say_of_changes_makes_a_stamp(entry: dict[str, object], stamp: str) -> None:
    assert stamp_of(entry) == stamp
    assert json.dumps(stamp)
