"""What NVML says of the use of one GPU. The slot is the session's alone, so all use of it is the session's."""

from typing import Any


class NvmlMeter:
    """The GPU ``uuid``. Without NVML, or of a logical GPU, nobody can say, and then only the CPU counts."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._nvml: Any = None
        try:
            import pynvml  # noqa: PLC0415 - optional: machines without a GPU do not have it
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def use(self) -> float | None:
        """Share of the driver's last sample, a sixth of a second to one second, in which a kernel ran."""
        if self._nvml is None or not self._uuid:
            return None
        try:
            device = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            return float(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100.0
        except self._nvml.NVMLError:
            return None
