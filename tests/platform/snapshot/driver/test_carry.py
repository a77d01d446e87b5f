"""What an operation holds arrives whole, by whichever way works; here with the fake driver's memory."""

import ctypes
from pathlib import Path

import pytest

from ebbtide.snapshot.driver.errors import CopyFailed
from ebbtide.snapshot.driver.port import Extent, Operation
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver
from tests.platform.snapshot.driver.carry import carry
from tests.platform.snapshot.driver.sleepers import sleepers


def test_a_process_gets_its_memory_back_and_none_is_left_meanwhile(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "book")
    with sleepers(1) as (target,):
        memory = driver.memory_of(target.pid)
        memory.write_bytes(b"weights")
        driver.lock(target.pid, 1000)
        kept = ctypes.create_string_buffer(7)
        operation = driver.open_checkpoint(target.pid)
        carry(operation, [lambda operation, extent: operation.copy_out(extent, ctypes.addressof(kept))])
        assert memory.read_bytes() == bytes(7)
        operation = driver.open_restore(target.pid, {})
        carry(operation, [lambda operation, extent: operation.copy_in(extent, ctypes.addressof(kept))])
        assert memory.read_bytes() == b"weights"
        assert driver.state(target.pid) is ProcessState.LOCKED


def test_an_operation_that_nobody_could_move_stays_open(tmp_path: Path) -> None:
    def full(operation: Operation, extent: Extent) -> None:
        raise CopyFailed("the disk is full")

    driver = FakeDriver(tmp_path / "book")
    with sleepers(1) as (target,):
        driver.memory_of(target.pid).write_bytes(b"weights")
        driver.lock(target.pid, 1000)
        operation = driver.open_checkpoint(target.pid)
        with pytest.raises(CopyFailed, match="the disk is full; the disk is full; the operation is still open"):
            carry(operation, [full, full])
        with pytest.raises(CopyFailed, match="no way was given"):
            carry(operation, [])
        assert driver.state(target.pid) is ProcessState.CHECKPOINTING
        assert carry(operation, [full, lambda operation, extent: None]) == (1,)
        assert driver.state(target.pid) is ProcessState.CHECKPOINTED


def test_a_process_that_holds_nothing_is_complete_at_once(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "book")
    with sleepers(1) as (target,):
        driver.lock(target.pid, 1000)
        assert carry(driver.open_checkpoint(target.pid), []) == ()
