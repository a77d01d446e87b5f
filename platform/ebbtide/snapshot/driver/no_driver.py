"""The adapter for machines where nothing can be checkpointed: says why, refuses everything, changes nothing."""

from ebbtide.snapshot.driver.errors import DriverRefused
from ebbtide.snapshot.driver.port import Capabilities, GpuMap
from ebbtide.snapshot.driver.process_states import Call, ProcessState

_REMEDY = "evict and stop with a portable checkpoint instead"


class NoDriver:
    """See `Driver`; refuses every call."""

    def __init__(self, why_not: str) -> None:
        """Say in ``why_not`` what is missing, for people."""
        self._why_not = why_not

    def capabilities(self) -> Capabilities:
        """Nothing at all."""
        why = self._why_not
        return Capabilities("", why_not_checkpoint=why, why_not_custom_storage=why, why_not_remap=why)

    def state(self, pid: int) -> ProcessState:
        """Refused: nobody knows."""
        raise DriverRefused("state", pid, self._why_not, _REMEDY)

    def lock(self, pid: int, timeout_ms: int) -> None:
        """Refused."""
        raise self._refusal(Call.LOCK, pid)

    def checkpoint(self, pid: int) -> None:
        """Refused."""
        raise self._refusal(Call.CHECKPOINT, pid)

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        """Refused."""
        raise self._refusal(Call.RESTORE, pid)

    def unlock(self, pid: int) -> None:
        """Refused."""
        raise self._refusal(Call.UNLOCK, pid)

    def _refusal(self, call: Call, pid: int) -> DriverRefused:
        return DriverRefused(call.value, pid, self._why_not, _REMEDY)
