"""Every page-lock is given up again, while the memory is still mapped; and one that fails hurts nobody."""

import gc
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ebbtide.snapshot.eviction import page_lock as page_lock_module
from ebbtide.snapshot.eviction.page_lock import PageLock
from ebbtide.snapshot.regions.region import Region
from ebbtide.snapshot.regions.region_creation import create_region
from ebbtide.snapshot.regions.region_states import RegionKey
from ebbtide.system import modes


class Runtime:
    """The part of the CUDA runtime that is called; notes the calls, and answers as it is told."""

    def __init__(self, *, register: int = 0, unregister: int = 0, look: Callable[[], object] = bool) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._register, self._unregister, self._look = register, unregister, look

    def __call__(self) -> "Runtime":
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(("register", address, size, flags))
        return self._register

    def cudaHostUnregister(self, address: int) -> int:
        self.calls.append(("unregister", address, self._look()))
        return self._unregister


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "_told", set())


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_region_is_page_locked_whole_for_all_devices_and_given_up_while_it_is_mapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = create_region(tmp_path, RegionKey("job", 7, 0), 100_000)
    region = Region.open(path)
    runtime = Runtime(look=lambda: is_mapped(path))
    pages = PageLock(runtime)
    pages.lock(region.bytes)
    assert "ebbtide mode: page-locking = registered 102400 bytes" in capsys.readouterr().err
    address = region.bytes.data_ptr()
    region.close()
    gc.collect()
    assert is_mapped(path), "what the driver knows stays mapped, whoever else lets go of it"
    pages.unlock()
    assert runtime.calls == [("register", address, 102_400, 1), ("unregister", address, True)]
    gc.collect()
    assert not is_mapped(path)
    pages.unlock()
    assert len(runtime.calls) == 2, "once is enough"


def test_memory_that_cannot_be_page_locked_is_used_as_it_is_and_no_later_kernel_gets_the_error(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    taken_up = []

    def take_up() -> None:
        taken_up.append(True)
        raise RuntimeError("CUDA error: out of memory")

    runtime = Runtime(register=2)
    pages = PageLock(runtime, take_up)
    pages.lock(torch.zeros(64, dtype=torch.uint8))
    assert "cudaHostRegister gives error 2" in caplog.text and taken_up == [True]
    assert "page-locking = none: cudaHostRegister gives error 2 for 64 bytes" in capsys.readouterr().err
    pages.unlock()
    assert [call[0] for call in runtime.calls] == ["register"], "what was not registered is not given up"
    pages.lock(torch.zeros(64, dtype=torch.uint8))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_where_cuda_does_not_start_nothing_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    pages = PageLock()
    pages.lock(torch.zeros(64, dtype=torch.uint8))
    pages.unlock()
    assert "host memory is not page-locked" in caplog.text


def test_memory_that_the_driver_does_not_give_up_stays_mapped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(page_lock_module, "_until_exit", kept)
    memory = torch.zeros(64, dtype=torch.uint8)
    pages = PageLock(Runtime(unregister=4), print)
    pages.lock(memory)
    pages.unlock()
    assert len(kept) == 1 and kept[0] is memory and "cudaHostUnregister gives error 4" in caplog.text


def test_a_process_that_must_not_call_cuda_leaves_all_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(page_lock_module, "_until_exit", kept)
    memory, runtime = torch.zeros(64, dtype=torch.uint8), Runtime()
    pages = PageLock(runtime)
    pages.lock(memory)
    pages.leave()
    pages.unlock()
    assert [call[0] for call in runtime.calls] == ["register"] and kept[0] is memory


def test_a_forked_child_gives_nothing_up() -> None:
    """Its parent's driver knows the memory, and a child of a process with CUDA can make no call to it."""
    runtime = Runtime()
    pages = PageLock(runtime)
    pages.lock(torch.zeros(64, dtype=torch.uint8))

    def child() -> None:
        pages.unlock()
        assert [call[0] for call in runtime.calls] == ["register"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that forks and threads do not go together; this child makes none
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    process.join(30)
    assert process.exitcode == 0
    pages.unlock()
    assert [call[0] for call in runtime.calls] == ["register", "unregister"]
