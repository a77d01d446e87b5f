"""A file arrives whole at a URL, or nothing stands under its name."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem  # type: ignore[import-untyped]
from fsspec.spec import AbstractBufferedFile  # type: ignore[import-untyped]

from ebbtide.storage.errors import Corrupt, TransferFailed
from ebbtide.storage.remote.remote_target import RemoteTarget

BLOCK = b"weights!" * 1000
NAME = "model.safetensors"


class Upload(AbstractBufferedFile):  # type: ignore[misc]
    """As files of object stores: sent in blocks, an object when closed; ``fails`` blocks are not taken."""

    discarded: ClassVar[list[str]] = []
    fails: ClassVar[int] = 0

    def _initiate_upload(self) -> None:
        self._sent = b""

    def _upload_chunk(self, final: bool = False) -> bool:
        if Upload.fails:
            Upload.fails -= 1
            raise ConnectionError("cut")
        self._sent += self.buffer.getvalue()
        if final:
            self.fs.store[self.path] = MemoryFile(self.fs, self.path, self._sent)
        return True

    def discard(self) -> None:
        self.discarded.append(self.path)


@pytest.fixture(params=["there while it is written", "there when it is closed"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteTarget]:
    def opened(fs: MemoryFileSystem, path: str, mode: str = "rb", **_more: Any) -> Upload:
        assert mode == "wb"
        return Upload(fs, fs._strip_protocol(path), mode, block_size=len(BLOCK))

    if "closed" in request.param:
        monkeypatch.setattr(MemoryFileSystem, "_open", opened)
    monkeypatch.setattr(Upload, "discarded", [])
    monkeypatch.setattr(Upload, "fails", 0)
    yield RemoteTarget("memory://bucket/out", sleep=lambda _seconds: None)
    if fsspec.filesystem("memory").exists("/bucket"):
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


def three_blocks(sink: Callable[[bytes], object]) -> None:
    for _ in range(3):
        sink(BLOCK)


def test_a_file_that_was_written_whole_is_there(target: RemoteTarget) -> None:
    target.write(NAME, 3 * len(BLOCK), three_blocks)
    assert target.read(NAME) == 3 * BLOCK and Upload.discarded == []


@pytest.mark.parametrize("error", [Corrupt("damaged", NAME), KeyboardInterrupt()], ids=["damaged", "interrupted"])
def test_a_file_that_was_cut_off_never_stands_under_its_name(
    target: RemoteTarget, request: pytest.FixtureRequest, error: BaseException
) -> None:
    def cut_off(sink: Callable[[bytes], object]) -> None:
        three_blocks(sink)
        raise error

    with pytest.raises(type(error)):
        target.write(NAME, 4 * len(BLOCK), cut_off)
    assert target.size_of(NAME) is None and target.names() == []
    if "closed" in request.node.callspec.params["target"]:
        assert Upload.discarded == [f"/bucket/out/{NAME}"], "what was sent is thrown away"


@pytest.mark.parametrize("fails", [1, 2])
def test_an_upload_that_failed_is_sent_again_from_its_beginning(
    target: RemoteTarget, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    monkeypatch.setattr(Upload, "fails", fails)
    target.write(NAME, 3 * len(BLOCK), three_blocks)
    assert target.read(NAME) == 3 * BLOCK


def test_an_upload_that_fails_keeps_its_error_also_where_nothing_may_be_removed(
    target: RemoteTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("nothing may be removed here")

    def fail(sink: Callable[[bytes], object]) -> None:
        sink(BLOCK)
        raise ConnectionError("cut")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "rm_file", refuse)
        with pytest.raises(TransferFailed, match=f"cannot write memory://bucket/out/{NAME}: .*cut"):
            target.write(NAME, len(BLOCK), fail)
