"""What the driver says about the GPUs and the processes on them, where there is a driver to ask.

Not guaranteed: in a container of its own pid namespace the pids are the host's; that there are any still counts. And
that Ray numbers the GPUs as NVML does: it does unless CUDA_VISIBLE_DEVICES was set for the raylet.
"""

import logging
from typing import Any

from ebbtide.agent.errors import GpuUnreadable
from ebbtide.system.modes import Place, took

_log = logging.getLogger(__name__)


class GpuProcesses:
    """Answers which processes hold memory on a GPU; knows nothing on a machine without NVML."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._uuids: dict[int, str] = {}  # that NVML itself gave; a logical GPU's is not among them
        try:
            import pynvml  # noqa: PLC0415 - optional: machines without a GPU do not have it

            pynvml.nvmlInit()
            self._nvml = pynvml
            took(Place.NVML, "asked who is on each GPU")
        except ImportError:
            took(Place.NVML, "none on this machine: slot locks alone prove that a slot is free")
        except pynvml.NVMLError as error:
            took(Place.NVML, f"it does not start ({error}): slot locks alone prove that a slot is free")

    def uuid(self, index: int) -> str:
        """The uuid of GPU ``index``; "" if there is no such GPU, or nobody to ask.

        It names the slot's lock, so what NVML said once stands, also while the driver is in trouble.
        """
        # guard: a GPU that the driver does not answer for keeps its name
        if self._nvml is None or index in self._uuids:
            return self._uuids.get(index, "")
        try:
            gpu = self._nvml.nvmlDeviceGetHandleByIndex(index)
            found = self._nvml.nvmlDeviceGetUUID(gpu)
        except self._nvml.NVMLError as error:
            _log.info("NVML knows no GPU %d (%s): it counts as a logical one", index, error)
            return ""
        self._uuids[index] = found.decode() if isinstance(found, bytes) else str(found)
        took(Place.MIG, f"GPU {index}: {self._mig(gpu)}")
        return self._uuids[index]

    def _mig(self, gpu: Any) -> str:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(gpu)
        except self._nvml.NVMLError as error:
            return f"not told ({error})"  # a GPU that cannot be cut has no mode
        return "on: no driver can freeze a process on an instance" if current else "off"

    def pids(self, uuid: str) -> frozenset[int] | None:
        """The processes with a compute context on GPU ``uuid``; None: there is nobody to ask.

        Raises:
            GpuUnreadable: it is a real GPU, and the driver (lost, updated under us, in trouble) does not say.
        """
        if self._nvml is None or not uuid:
            return None
        try:
            device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            if running:
                told = "told" if all(one.usedGpuMemory for one in running) else "not told"
                took(Place.NVML, f"processes are named, their memory is {told}")
            return frozenset(one.pid for one in running)
        except self._nvml.NVMLError as error:
            if uuid in self._uuids.values():  # guard: a GPU that the driver does not answer for is not taken for empty
                raise GpuUnreadable(f"NVML does not say who is on GPU {uuid}: {error}") from error
            return None
