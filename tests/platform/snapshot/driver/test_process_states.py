"""The table of states has no hole: every state and call is decided, and nobody is stuck but in FAILED."""

import os
import subprocess
from pathlib import Path

import pytest

from ebbtide.snapshot.driver.errors import DriverFailed, DriverRefused, ProcessGone
from ebbtide.snapshot.driver.process_states import STEADY, TABLE, Call, ProcessState, after, sources
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver, machine_of
from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from ebbtide_testing.gpu_driver.fake_script import Do, Rule, script_of, write_script
from ebbtide_testing.gpu_driver.fake_users import users_of
from tests.platform.snapshot.driver.calls import PATHS, make
from tests.platform.snapshot.driver.sleepers import sleepers


def test_every_state_has_a_line_and_every_call_an_edge() -> None:
    assert set(TABLE) == set(ProcessState)
    assert {call for calls in TABLE.values() for call in calls} == set(Call)
    assert all(sources(call) for call in Call)


def test_all_states_but_failed_lead_back_to_running() -> None:
    leads = {ProcessState.RUNNING}
    for _ in ProcessState:
        leads |= {state for state, calls in TABLE.items() if leads & set(calls.values())}
    assert leads == set(ProcessState) - {ProcessState.FAILED}
    assert leads >= STEADY


def test_the_numbers_are_those_of_cuda() -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    prefix = "CU_PROCESS_STATE_"
    assert {(state.name, state.value) for state in ProcessState} == {
        (one.name.removeprefix(prefix), int(one)) for one in driver.CUprocessState
    }


def test_the_fake_allows_what_the_table_allows_and_refuses_the_rest(tmp_path: Path) -> None:
    with sleepers(1) as (target,):
        for state, path in PATHS.items():
            for call in Call:
                driver = FakeDriver(tmp_path / f"{state.name}-{call.name}")
                for step in path:
                    make(driver, step, target.pid)
                assert driver.state(target.pid) is state
                then = after(state, call)
                if then is None:
                    with pytest.raises(DriverRefused, match=f"it is {state.name}; it must be"):
                        make(driver, call, target.pid)
                else:
                    make(driver, call, target.pid)
                assert driver.state(target.pid) is (then or state), f"{call} from {state}"


def test_nothing_leads_out_of_failed(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "book")
    write_script(script_of(tmp_path / "book"), [Rule("lock", Do.FAIL)])
    with sleepers(1) as (target,):
        with pytest.raises(DriverFailed):
            driver.lock(target.pid, 1000)
        for call in Call:
            with pytest.raises(DriverFailed, match="kill it"):
                make(driver, call, target.pid)
        assert driver.state(target.pid) is ProcessState.FAILED


def test_a_process_that_has_ended_is_gone_also_before_its_parent_asks(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "book")
    with sleepers(1) as (target,):
        target.kill()
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        for ask in (lambda: driver.state(target.pid), lambda: driver.lock(target.pid, 1000)):
            with pytest.raises(ProcessGone, match="its GPU memory is free"):
                ask()


def test_a_process_that_uses_no_cuda_is_refused_once_it_is_said_who_does(tmp_path: Path) -> None:
    book = tmp_path / "book"
    driver, folder = FakeDriver(book), users_of(book)
    folder.mkdir()
    with sleepers(1) as (other,), (folder / "device").open("w") as device:
        user = subprocess.Popen(["sleep", "600"], pass_fds=[device.fileno()])
        try:
            assert driver.state(user.pid) is ProcessState.RUNNING
            driver.lock(user.pid, 1000)
            with open_state(book) as read:
                assert list(read.states) == [f"{user.pid}:device"], "as it would be known by an image's process"
            for ask in (lambda: driver.state(other.pid), lambda: driver.lock(other.pid, 1000)):
                with pytest.raises(DriverRefused, match="CUDA_ERROR_INVALID_VALUE"):
                    ask()
        finally:
            user.kill()
            user.wait()
        with pytest.raises(ProcessGone):
            driver.state(user.pid)


def test_the_fake_says_of_its_machine_what_it_is_told(tmp_path: Path) -> None:
    driver = FakeDriver(tmp_path / "book")
    assert (driver.capabilities().driver, driver.capabilities().gpus) == ("fake", {})
    machine_of(tmp_path / "book").write_text(
        '{"driver": "CUDA 13.0", "gpus": {"GPU-1": "H100"}, "why_not_remap": "no"}'
    )
    has = driver.capabilities()
    assert (has.driver, has.gpus, has.remap, has.can_checkpoint) == ("CUDA 13.0", {"GPU-1": "H100"}, False, True)
