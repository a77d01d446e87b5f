"""The GPU's memory while the line is played, as NVML says: in all and by process; a thread that only looks."""

import threading
from contextlib import suppress
from typing import Any

from benchmarks.gpu.line.journal import Journal

EVERY_S = 0.05
MOVED_MB = 16.0  # less than that is not noted
MB = 1e6


class Watch:
    """Notes the memory of GPU 0 whenever it moved. Where there is no NVML it says why, and notes nothing."""

    def __init__(self, journal: Journal) -> None:
        self.why_not = ""
        self._journal = journal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._nvml: Any = None
        self._gpu: Any = None
        try:
            import pynvml  # noqa: PLC0415 - a machine without GPUs may have none

            pynvml.nvmlInit()
            self._nvml, self._gpu = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:  # noqa: BLE001 - no package, no library or no driver: each raises its own
            self.why_not = f"NVML cannot be asked: {error!r}"

    def start(self) -> None:
        """Look from now on."""
        if self._gpu is not None:
            self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def used_mb(self) -> float | None:
        """Taken now, by all processes and the driver; None: there is nothing to ask."""
        if self._gpu is None:
            return None
        return float(self._nvml.nvmlDeviceGetMemoryInfo(self._gpu).used) / MB

    def processes(self) -> dict[int, float]:
        """Megabytes by pid, as far as NVML tells: in a virtual machine or container it may tell neither."""
        if self._gpu is None:
            return {}
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)
        except self._nvml.NVMLError:
            return {}
        return {int(one.pid): float(one.usedGpuMemory or 0) / MB for one in running}

    def facts(self) -> dict[str, Any]:
        """What the GPU is, and what this machine lets us see of it."""
        if self._gpu is None:
            return {"nvml": self.why_not}
        ask, gpu = self._nvml, self._gpu
        found: dict[str, Any] = {
            "gpu": _text(ask.nvmlDeviceGetName(gpu)),
            "driver": _text(ask.nvmlSystemGetDriverVersion()),
        }
        found["gpu_total_mb"] = round(ask.nvmlDeviceGetMemoryInfo(gpu).total / MB)
        found["gpu_idle_mb"] = round(self.used_mb() or 0.0)
        with suppress(ask.NVMLError):
            found["mig"] = bool(ask.nvmlDeviceGetMigMode(gpu)[0])
        with suppress(ask.NVMLError):
            found["compute_mode"] = int(ask.nvmlDeviceGetComputeMode(gpu))
        with suppress(ask.NVMLError):
            found["persistence"] = bool(ask.nvmlDeviceGetPersistenceMode(gpu))
        found["others_on_the_gpu"] = self.processes()
        return found

    def _look(self) -> None:
        last: tuple[float, frozenset[int]] | None = None
        while not self._stop.wait(EVERY_S):
            try:
                used, pids = self.used_mb() or 0.0, self.processes()
            except self._nvml.NVMLError:
                continue
            if last is None or abs(used - last[0]) > MOVED_MB or frozenset(pids) != last[1]:
                self._journal.sample(used, pids)
                last = used, frozenset(pids)


def _text(found: str | bytes) -> str:
    return found.decode() if isinstance(found, bytes) else found
