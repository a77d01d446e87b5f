"""NVML, where there is one, in trouble, or not at all."""

import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from ebbtide.diagnostics.host import nvml_reading
from ebbtide.diagnostics.host.nvml_reading import NvmlReading, read_nvml


class NVMLError(Exception):
    pass


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fake of the library with one GPU."""
    module = ModuleType("pynvml")
    module.NVMLError = NVMLError  # type: ignore[attr-defined]
    for name, answer in {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlDeviceGetName": b"NVIDIA H200",
        "nvmlSystemGetDriverVersion": "580.95.05",
        "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=1 << 38),
    }.items():
        setattr(module, name, lambda *_arguments, answer=answer: answer)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def failing(*_arguments: object) -> None:
    raise NVMLError("Driver/library version mismatch")


def test_a_gpu_is_told(pynvml: ModuleType) -> None:
    assert read_nvml() == NvmlReading(("NVIDIA H200",), "580.95.05", (1 << 38,))


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetName"])
def test_a_driver_in_trouble_is_told(pynvml: ModuleType, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(pynvml, call, failing)
    assert "version mismatch" in read_nvml().error


def test_a_driver_that_hangs_is_told(pynvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(nvml_reading, "_DEADLINE_S", 0.05)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: release.wait(60))
    assert read_nvml() == NvmlReading(error="NVML: no answer within 0.05 s")
    release.set()


def test_a_machine_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml().error == "the Python package nvidia-ml-py is not installed"
