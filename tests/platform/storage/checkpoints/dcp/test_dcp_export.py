"""Exports that stock PyTorch reads, here and far away."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from ebbtide.storage.checkpoints.dcp import dcp_export as export_module
from ebbtide.storage.checkpoints.dcp.dcp_export import export
from ebbtide.storage.checkpoints.manager.checkpoint_manager import RunCheckpoints
from ebbtide.storage.errors import Corrupt, NoRoom, NotPublished, Refused
from ebbtide.storage.files.durable_files import Disk
from tests.builders.checkpoints import commit_sharded, cut, every_type, flip
from tests.platform.storage.checkpoints.runs import at, make_run, same, state_at
from tests.platform.storage.stores import LocalLeases

STEP = at("e1/step-1")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        yield


@pytest.fixture
def run(tmp_path: Path) -> RunCheckpoints:
    found = make_run(tmp_path, leases=LocalLeases())
    found.save(state_at(1), epoch=1, step=1)
    return found


@pytest.fixture
def url() -> Iterator[str]:
    """A filesystem in this process' memory."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield "memory://backup/tide"
    memory.store.clear()


def loaded(reader: Any, state: dict[str, Any]) -> dict[str, Any]:
    state_dict_loader.load(state, storage_reader=reader, no_dist=True)
    return state


def test_a_directory_is_read_by_the_stock_reader(run: RunCheckpoints, tmp_path: Path) -> None:
    done = export(run, STEP, str(tmp_path / "out" / "here"))
    assert done.files == ("__0_0.distcp", ".metadata") and done.where == str(tmp_path / "out" / "here")
    assert same(loaded(FileSystemReader(tmp_path / "out" / "here"), state_at(9)), state_at(1))
    whole = _load_state_dict_from_keys(storage_reader=FileSystemReader(tmp_path / "out" / "here"))
    assert same(whole["model"], state_at(1)["model"]) and whole["scheduler"] == state_at(1)["scheduler"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["here"]
    assert run.ports.leases is not None and run.ports.leases.present() == frozenset()


def test_a_url_is_read_by_the_stock_reader(run: RunCheckpoints, url: str) -> None:
    export(run, STEP, url)
    assert same(loaded(FsspecReader(url), state_at(9)), state_at(1))


def test_parts_of_tensors_go_out_as_they_are_and_into_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "FILE_BYTES", 5_000)
    run = make_run(tmp_path)
    full = torch.randn(100, 60)
    commit_sharded(run, 1, [[shard] for shard in cut("w", full, 1, [10, 25])])
    done = export(run, STEP, str(tmp_path / "out"))
    assert len(done.files) == 4
    assert done.written_bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert same(loaded(FileSystemReader(tmp_path / "out"), {"w": torch.zeros(100, 60)}), {"w": full})


def test_every_type_is_read_by_the_stock_reader(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    state = {**every_type(), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}
    run.save(state, epoch=1, step=1)
    export(run, STEP, str(tmp_path / "out"))
    blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert same(loaded(FileSystemReader(tmp_path / "out"), blank), state)


@pytest.mark.proves("a checkpoint that goes out is held meanwhile")
def test_what_goes_out_is_held_meanwhile(run: RunCheckpoints, tmp_path: Path) -> None:
    leases = run.ports.leases
    assert leases is not None
    seen: list[frozenset[str]] = []
    export(run, STEP, str(tmp_path / "out"), progress=lambda done, total: seen.append(leases.present()))
    assert set(seen) == {frozenset({"checkpoint-e1-step-1"})} and leases.present() == frozenset()


def test_progress_is_told(run: RunCheckpoints, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    export(run, STEP, str(tmp_path / "out"), progress=lambda done, total: told.append((done, total)))
    assert told and all(0 < done <= total for done, total in told)


@pytest.mark.proves("an export overwrites nothing")
def test_what_is_there_is_never_overwritten(run: RunCheckpoints, tmp_path: Path, url: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    fsspec.filesystem("memory").pipe_file("/backup/tide/mine", b"x")
    for destination in (str(tmp_path / "out"), str(tmp_path / "file"), url):
        with pytest.raises(Refused, match="not empty"):
            export(run, STEP, destination)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    (tmp_path / "out" / "mine").unlink()
    export(run, STEP, str(tmp_path / "out"))


@pytest.mark.parametrize("destination", ["", "nobody://x/y", "https://example.org/x"])
def test_a_destination_that_cannot_be_is_refused(run: RunCheckpoints, destination: str) -> None:
    with pytest.raises(Refused):
        export(run, STEP, destination)


@pytest.mark.proves("an export that fails leaves nothing that looks whole")
def test_damage_stops_an_export_and_nothing_whole_looking_stays(run: RunCheckpoints, tmp_path: Path, url: str) -> None:
    flip(run.paths.checkpoint(STEP) / "rank0.safetensors", 2 * 4096)
    with pytest.raises(Corrupt, match=r"rank0\.safetensors at byte 8192"):
        export(run, STEP, str(tmp_path / "out"))
    assert not list(tmp_path.glob("*out*"))
    with pytest.raises(Corrupt):
        export(run, STEP, url)
    assert not fsspec.filesystem("memory").exists("/backup/tide/.metadata")


def test_a_full_disk_leaves_nothing(run: RunCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Disk, path: Path, data: bytes) -> None:
        raise NoRoom("the filesystem is full")

    monkeypatch.setattr(Disk, "write", full)
    with pytest.raises(NoRoom):
        export(run, STEP, str(tmp_path / "out"))
    assert not list(tmp_path.glob("*out*"))


def test_what_is_not_there_cannot_go_out(run: RunCheckpoints, tmp_path: Path) -> None:
    with pytest.raises(NotPublished):
        export(run, at("e1/step-2"), str(tmp_path / "out"))
    assert not list(tmp_path.glob("*out*"))
