"""What it means that the CUDA driver did not say yes; pure.

The code alone does not say whether a process was touched, so its state is read back after each refusal, and that
decides.
"""

from ebbtide.snapshot.driver.errors import (
    DriverError,
    DriverFailed,
    DriverRefused,
    DriverUnknown,
    LockTimeout,
    ProcessGone,
)
from ebbtide.snapshot.driver.process_states import Call, ProcessState, sources

_REMEDIES = {
    "CUDA_ERROR_NOT_SUPPORTED": "managed memory, CUDA IPC, NVLS, MIG and MPS cannot be checkpointed; use another tier",
    "CUDA_ERROR_OUT_OF_MEMORY": "free memory on its GPU or on the host, or use another tier",
    "CUDA_ERROR_INVALID_CONTEXT": "this process lacks a context on one of its GPUs: it must see all GPUs of the node",
    "CUDA_ERROR_NOT_PERMITTED": "the caller needs the same user id or CAP_SYS_PTRACE, and a pid namespace with it",
    "CUDA_ERROR_INVALID_VALUE": "it may not use CUDA, or the map of GPUs does not fit; use another tier",
}
# The driver has looked and not begun.
_NOT_BEGUN = frozenset({"CUDA_ERROR_ILLEGAL_STATE", "CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_NOT_INITIALIZED"})


def check_result(call: Call, pid: int, code: str, state: ProcessState | None, *, lives: bool) -> DriverError:
    """The error to raise.

    Args:
        call: what the driver did not say yes to.
        pid: about whom.
        code: CUDA's name of what it said.
        state: as read back; None: the driver does not say.
        lives: whether there is such a process still.
    """
    if not lives:
        return ProcessGone(call.value, pid, f"there is no such process ({code})", "its GPU memory is free")
    if state is ProcessState.FAILED:
        return DriverFailed(call.value, pid, f"{code}, and it is FAILED", "kill it, use the last durable state")
    if state is None:
        return DriverUnknown(call.value, pid, f"{code}, and the driver does not say where it is", "read it back later")
    need = sources(call)
    if call is Call.LOCK and code == "CUDA_ERROR_NOT_READY" and state in need:
        return LockTimeout(call.value, pid, "its work on the GPU did not end in time", "ask again later")
    remedy = _REMEDIES.get(code, "use another tier")
    if state in need:
        return DriverRefused(call.value, pid, code, remedy)
    if code in _NOT_BEGUN:
        wanted = " or ".join(one.name for one in need)
        return DriverRefused(call.value, pid, f"{code}: it is {state.name}", f"it must be {wanted}")
    return DriverUnknown(call.value, pid, f"{code}, yet it is {state.name} now", "go on from what its state says")
