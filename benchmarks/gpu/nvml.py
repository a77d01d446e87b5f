"""How much memory of a GPU is taken, as NVML says, without a context of our own on it; by ctypes alone."""

import ctypes
import time
from typing import Any


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Unreadable(Exception):
    """NVML cannot be asked here."""


class Gpu:
    """One GPU."""

    def __init__(self, uuid: str) -> None:
        """``uuid`` as NVML writes it. Raises Unreadable."""
        try:
            self._nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise Unreadable(f"there is no NVML: {error}") from error
        self._handle = ctypes.c_void_p()
        self._ask(self._nvml.nvmlInit_v2)
        self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode(), ctypes.byref(self._handle))

    def used_bytes(self) -> int:
        """By all processes and the driver itself, now."""
        found = _Memory()
        self._ask(self._nvml.nvmlDeviceGetMemoryInfo, self._handle, ctypes.byref(found))
        return int(found.used)

    def falls_to(self, level_bytes: int, *, within_s: float) -> float | None:
        """When no more than so much was taken, on the monotonic clock; None if that does not come about in time."""
        deadline_s = time.monotonic() + within_s
        while self.used_bytes() > level_bytes:
            if time.monotonic() > deadline_s:
                return None
            time.sleep(0.002)
        return time.monotonic()

    @staticmethod
    def _ask(call: Any, *arguments: Any) -> None:
        if code := call(*arguments):
            raise Unreadable(f"{call.__name__} gave {code}")
