"""What is believed of a driver that answers, that is in trouble, and that is not there."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ebbtide.agent.errors import GpuUnreadable
from ebbtide.agent.nvml import GpuProcesses
from ebbtide.system import modes


class NVMLError(Exception):
    """As pynvml has it."""


class Driver(ModuleType):
    """A machine with one GPU. ``lost``: every question about it fails; ``starts``: whether NVML does."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.starts, self.lost = True, False
        self.pids: list[int] = []
        self.mig: int | None = 0

    def nvmlInit(self) -> None:
        if not self.starts:
            raise NVMLError("driver/library version mismatch")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return self._handle(index == 0)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return self._handle(uuid == "GPU-1")

    def nvmlDeviceGetUUID(self, _handle: int) -> str:
        return "GPU-1"

    def nvmlDeviceGetMigMode(self, _handle: int) -> tuple[int, int]:
        if self.mig is None:
            raise NVMLError("not supported")
        return self.mig, self.mig

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids]

    def _handle(self, known: bool) -> int:
        if self.lost or not known:
            raise NVMLError("GPU is lost" if self.lost else "not found")
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    return driver


def test_a_gpu_has_the_uuid_and_the_processes_that_the_driver_names(driver: Driver) -> None:
    gpus = GpuProcesses()
    assert gpus.uuid(0) == "GPU-1" and gpus.pids("GPU-1") == frozenset()
    driver.pids = [7, 8]
    assert gpus.pids("GPU-1") == frozenset({7, 8})


def test_a_logical_gpu_has_neither(driver: Driver) -> None:
    gpus = GpuProcesses()
    assert gpus.uuid(1) == "" and gpus.pids("host-1") is None and gpus.pids("") is None


@pytest.mark.proves(
    "a GPU that the driver does not answer for is not taken for empty",
    "a GPU that the driver does not answer for keeps its name",
)
def test_a_gpu_that_the_driver_does_not_answer_for_keeps_its_name_and_is_not_taken_for_empty(driver: Driver) -> None:
    gpus = GpuProcesses()
    assert gpus.uuid(0) == "GPU-1"
    driver.lost = True
    assert gpus.uuid(0) == "GPU-1", "else its lock would have another name, which nobody holds"
    with pytest.raises(GpuUnreadable, match="GPU-1: GPU is lost"):
        gpus.pids("GPU-1")
    driver.lost = False
    assert gpus.pids("GPU-1") == frozenset()


def test_without_a_driver_locks_alone_are_the_proof(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.starts = False
    assert GpuProcesses().uuid(0) == "" and GpuProcesses().pids("GPU-1") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert GpuProcesses().uuid(0) == "" and GpuProcesses().pids("GPU-1") is None


@pytest.mark.parametrize(
    ("mig", "said"), [(1, "GPU 0: on"), (0, "GPU 0: off"), (None, "GPU 0: not told (not supported)")]
)
def test_the_log_names_the_mode(
    driver: Driver, mig: int | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modes, "_told", set())
    driver.mig, driver.pids = mig, [7]
    gpus = GpuProcesses()
    gpus.pids(gpus.uuid(0))
    told = capsys.readouterr().err
    assert f"ebbtide mode: mig = {said}" in told
    assert "nvml = processes are named, their memory is not told" in told
