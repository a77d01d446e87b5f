"""The CUDA adapter against a stub of libcuda.so.1; run by `test_cuda` in a process that finds the stub first.

The stub reads its settings from the environment at each call.
"""

import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.cuda.cuda_driver import CudaDriver
from ebbtide.snapshot.driver.cuda.cuda_library import CudaLibrary, NoCuda
from ebbtide.snapshot.driver.driver_choice import find_driver
from ebbtide.snapshot.driver.errors import (
    CopyFailed,
    DriverFailed,
    DriverRefused,
    DriverUnknown,
    LockTimeout,
    ProcessGone,
)
from ebbtide.snapshot.driver.gang import move
from ebbtide.snapshot.driver.gang_plan import Verb
from ebbtide.snapshot.driver.port import Extent, Operation
from ebbtide.snapshot.driver.process_states import ProcessState
from tests.platform.snapshot.driver.carry import carry
from tests.platform.snapshot.driver.sleepers import sleepers

STUB = ctypes.CDLL("libcuda.so.1")
GPUS = [f"GPU-10000000-0000-0000-0000-00000000000{index}" for index in range(2)]


@pytest.fixture
def pid() -> Iterator[int]:
    with sleepers(1) as (target,):
        yield target.pid


@pytest.fixture
def driver() -> CudaDriver:
    return CudaDriver(CudaLibrary())


def test_a_process_goes_through_all_states(driver: CudaDriver, pid: int) -> None:
    assert driver.state(pid) is ProcessState.RUNNING
    driver.lock(pid, 1000)
    assert driver.state(pid) is ProcessState.LOCKED
    driver.checkpoint(pid)
    assert driver.state(pid) is ProcessState.CHECKPOINTED
    driver.restore(pid, {})
    driver.unlock(pid)
    assert driver.state(pid) is ProcessState.RUNNING


def test_the_driver_gets_the_timeout_and_never_none(
    driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_LOG", "1")
    driver.lock(pid, 1234)
    assert "lock timeout 1234" in capfd.readouterr().err
    with pytest.raises(ValueError, match="wait for ever"):
        driver.lock(pid, 0)


def test_the_driver_gets_a_pair_for_every_gpu(
    driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_LOG", "1")
    driver.lock(pid, 1000)
    driver.checkpoint(pid)
    with pytest.raises(DriverRefused, match=r"no GPU GPU-elsewhere.*name GPUs of this machine"):
        driver.restore(pid, {GPUS[0]: "GPU-elsewhere"})
    driver.restore(pid, {GPUS[0]: GPUS[1]})
    assert capfd.readouterr().err.splitlines()[-2:] == ["pair 0->1 of 2", "pair 1->0 of 2"]
    assert driver.state(pid) is ProcessState.LOCKED


@pytest.mark.parametrize(
    ("fails", "call", "raises", "says", "left"),
    [
        ("lock=600", "lock", LockTimeout, "did not end in time", ProcessState.RUNNING),
        ("lock=801", "lock", DriverRefused, "MIG and MPS cannot be checkpointed", ProcessState.RUNNING),
        ("checkpoint=2", "checkpoint", DriverRefused, "OUT_OF_MEMORY", ProcessState.LOCKED),
        ("checkpoint=999", "checkpoint", DriverRefused, "CUDA result 999", ProcessState.LOCKED),
        ("checkpoint!=2", "checkpoint", DriverFailed, "it is FAILED", ProcessState.FAILED),
        ("checkpoint=2,state=999", "checkpoint", DriverUnknown, "does not say where it is", ProcessState.LOCKED),
    ],
)
def test_what_went_wrong_is_judged_by_the_state_that_is_read_back(
    driver: CudaDriver,
    pid: int,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
    call: str,
    raises: type[Exception],
    says: str,
    left: ProcessState,
) -> None:
    if call == "checkpoint":
        driver.lock(pid, 1000)
    monkeypatch.setenv("STUB_FAIL", fails)
    with pytest.raises(raises, match=says) as caught:
        driver.lock(pid, 1000) if call == "lock" else driver.checkpoint(pid)
    assert type(caught.value) is raises
    monkeypatch.delenv("STUB_FAIL")
    assert driver.state(pid) is left


def test_a_call_that_the_state_does_not_allow_is_refused(driver: CudaDriver, pid: int) -> None:
    with pytest.raises(DriverRefused, match="it is RUNNING; it must be LOCKED"):
        driver.checkpoint(pid)
    driver.lock(pid, 1000)
    with pytest.raises(DriverRefused, match="it is LOCKED; it must be RUNNING"):
        driver.lock(pid, 1000)


def test_a_process_that_is_gone_is_said_to_be_gone(driver: CudaDriver) -> None:
    with sleepers(1) as (target,):
        driver.state(target.pid)
    for ask in (lambda: driver.state(target.pid), lambda: driver.lock(target.pid, 1000)):
        with pytest.raises(ProcessGone, match="its GPU memory is free"):
            ask()


def test_a_process_that_does_not_use_cuda_is_refused(
    driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_NO_CUDA", str(pid))
    with pytest.raises(DriverRefused, match="CUDA_ERROR_INVALID_VALUE; it may not use CUDA"):
        driver.state(pid)


def test_it_says_what_each_gpu_is(driver: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.capabilities().gpus == dict.fromkeys(GPUS, "NVIDIA Stub 0")
    monkeypatch.setenv("STUB_NO_NAME", "1")
    assert CudaDriver(CudaLibrary()).capabilities().gpus == {}


def test_what_comes_from_another_machine_gets_the_map_that_was_made_for_it(
    driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_LOG", "1")
    driver.lock(pid, 1000)
    driver.checkpoint(pid)
    there = [f"GPU-20000000-0000-0000-0000-00000000000{index}" for index in range(5, 7)]
    with pytest.raises(DriverRefused, match="no GPU GPU-nowhere"):
        driver.restore(pid, {there[0]: "GPU-nowhere"})
    driver.restore(pid, {there[0]: GPUS[1], there[1]: GPUS[0]})
    assert capfd.readouterr().err.splitlines()[-2:] == ["pair 5->1 of 2", "pair 6->0 of 2"]


def test_a_call_that_blocks_leaves_the_interpreter_to_others(
    driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it no deadline would hold: nobody could stop waiting."""
    monkeypatch.setenv("STUB_LOCK_SLEEP_MS", "1000")
    locking = threading.Thread(target=driver.lock, args=(pid, 1000))
    locking.start()
    time.sleep(0.1)
    assert driver.state(pid) is ProcessState.RUNNING
    locking.join()
    assert driver.state(pid) is ProcessState.LOCKED


def test_a_gang_is_parked_and_resumed(driver: CudaDriver) -> None:
    with sleepers(3) as targets:
        pids = tuple(one.pid for one in targets)
        bounded = BoundedDriver(driver)
        move(Verb.PARK, bounded, pids)
        assert {driver.state(one) for one in pids} == {ProcessState.CHECKPOINTED}
        move(Verb.RESUME, bounded, pids, gpu_maps={pids[0]: {GPUS[1]: GPUS[0]}})
        assert {driver.state(one) for one in pids} == {ProcessState.RUNNING}


class HostMemory:
    """Copies out to, and in from, buffers of its own."""

    def __init__(self) -> None:
        self.buffers: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def out(self, operation: Operation, extent: Extent) -> None:
        self.buffers[extent.gpu] = ctypes.create_string_buffer(extent.size_bytes)
        operation.copy_out(extent, ctypes.addressof(self.buffers[extent.gpu]))

    def back(self, operation: Operation, extent: Extent) -> None:
        operation.copy_in(extent, ctypes.addressof(self.buffers[extent.gpu]))


def test_custom_storage_moves_the_bytes_of_each_gpu(driver: CudaDriver, pid: int) -> None:
    host = HostMemory()
    driver.lock(pid, 1000)
    operation = driver.open_checkpoint(pid)
    assert driver.state(pid) is ProcessState.CHECKPOINTING
    assert STUB.stub_retained() == 2
    assert [extent.gpu for extent in operation.extents] == GPUS[::-1], "the streams say which GPU, not the order"
    assert carry(operation, [host.out]) == (0, 0)
    assert driver.state(pid) is ProcessState.CHECKPOINTED
    assert {gpu: buffer.raw[:1] + buffer.raw[-1:] for gpu, buffer in host.buffers.items()} == {
        GPUS[0]: b"aa",
        GPUS[1]: b"bb",
    }
    assert STUB.stub_retained() == 0, "a context is an occupant of its GPU"
    operation = driver.open_restore(pid, {})
    assert driver.state(pid) is ProcessState.RESTORING
    assert STUB.stub_byte(0, 9) == 0
    carry(operation, [host.back])
    assert driver.state(pid) is ProcessState.LOCKED
    assert (STUB.stub_byte(0, 9), STUB.stub_byte(1, 4095)) == (ord("a"), ord("b"))
    assert (STUB.stub_retained(), STUB.stub_pushed()) == (0, 0)


def test_a_copy_that_fails_loses_nothing(driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostMemory()
    driver.lock(pid, 1000)
    operation = driver.open_checkpoint(pid)
    monkeypatch.setenv("STUB_NO_COPY", "1")
    with pytest.raises(CopyFailed, match=r"4096 bytes of GPU-.*ILLEGAL_ADDRESS.*still open"):
        carry(operation, [host.out])
    assert driver.state(pid) is ProcessState.CHECKPOINTING
    monkeypatch.delenv("STUB_NO_COPY")

    def broken(operation: Operation, extent: Extent) -> None:
        raise CopyFailed("cuFile does not take this address")

    assert carry(operation, [broken, host.out]) == (1, 1)
    assert driver.state(pid) is ProcessState.CHECKPOINTED
    assert (STUB.stub_retained(), STUB.stub_pushed()) == (0, 0)


def test_a_completion_that_is_refused_may_be_asked_again(
    driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.lock(pid, 1000)
    operation = driver.open_checkpoint(pid)
    monkeypatch.setenv("STUB_FAIL", "complete=2")
    with pytest.raises(DriverRefused):
        operation.complete()
    assert STUB.stub_retained() == 2
    monkeypatch.delenv("STUB_FAIL")
    operation.complete()
    assert driver.state(pid) is ProcessState.CHECKPOINTED
    assert STUB.stub_retained() == 0


def test_what_was_not_opened_holds_no_context(driver: CudaDriver, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DriverRefused, match="must be LOCKED"):
        driver.open_checkpoint(pid)
    monkeypatch.setenv("STUB_NO_CONTEXT", "1")
    driver.lock(pid, 1000)
    with pytest.raises(DriverRefused, match=r"no context on one of the GPUs: CUDA_ERROR_OUT_OF_MEMORY"):
        driver.open_checkpoint(pid)
    assert STUB.stub_retained() == 0
    assert driver.state(pid) is ProcessState.LOCKED


def test_a_process_that_dies_while_its_memory_is_copied_leaves_no_context(driver: CudaDriver) -> None:
    with sleepers(1) as (target,):
        driver.lock(target.pid, 1000)
        operation = driver.open_checkpoint(target.pid)
    with pytest.raises(ProcessGone):
        operation.complete()
    assert STUB.stub_retained() == 0


@pytest.mark.parametrize(
    ("version", "checkpoint", "remap", "custom"),
    [
        ("13040", "", "", ""),
        ("13000", "", "", "needs CUDA 13.4"),
        ("12080", "", "needs CUDA 13.0", "needs CUDA 13.4"),
        ("12040", "needs CUDA 12.8", "needs CUDA 13.0", "needs CUDA 13.4"),
    ],
)
def test_a_driver_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, checkpoint: str, remap: str, custom: str
) -> None:
    monkeypatch.setenv("STUB_CUDA_VERSION", version)
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\n")
    found = CudaDriver(CudaLibrary(tmp_path)).capabilities()
    assert "kernel driver 580.95.05" in found.driver
    for text, why in (
        (checkpoint, found.why_not_checkpoint),
        (remap, found.why_not_remap),
        (custom, found.why_not_custom_storage),
    ):
        assert text in why
        assert bool(text) == bool(why)


def test_gpus_that_are_hidden_from_this_process_forbid_other_gpus(tmp_path: Path, pid: int) -> None:
    for index in range(3):
        (tmp_path / "gpus" / str(index)).mkdir(parents=True)
    driver = CudaDriver(CudaLibrary(tmp_path))
    assert "sees 2 of 3 GPUs" in driver.capabilities().why_not_remap
    driver.lock(pid, 1000)
    driver.checkpoint(pid)
    with pytest.raises(DriverRefused, match="without CUDA_VISIBLE_DEVICES"):
        driver.restore(pid, {GPUS[0]: GPUS[1]})
    driver.restore(pid, {})


def test_a_driver_that_does_not_start_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(find_driver(), CudaDriver)
    monkeypatch.setenv("STUB_INIT", "999")
    with pytest.raises(NoCuda, match="does not start: CUDA result 999"):
        CudaLibrary()
    assert not find_driver().capabilities().can_checkpoint


@pytest.mark.parametrize(("version", "safe"), [("595.71.05", False), ("610.57.04", False), ("580.95.05", True)])
def test_a_driver_that_harms_what_it_freezes_is_not_used(tmp_path: Path, version: str, safe: bool) -> None:
    (tmp_path / "version").write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release\n")
    found = find_driver(tmp_path)
    assert isinstance(found, CudaDriver) is safe
    if not safe:
        why = found.capabilities().why_not_checkpoint
        assert version in why and why.endswith("install a later driver")
