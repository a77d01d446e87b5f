"""Asking a fake driver by the name of the call; also run in subprocesses, so it imports little."""

from ebbtide.snapshot.driver.process_states import Call, ProcessState
from ebbtide_testing.gpu_driver.fake_driver import FakeDriver

PATHS = {
    ProcessState.RUNNING: (),
    ProcessState.LOCKED: (Call.LOCK,),
    ProcessState.CHECKPOINTED: (Call.LOCK, Call.CHECKPOINT),
    ProcessState.CHECKPOINTING: (Call.LOCK, Call.OPEN_CHECKPOINT),
    ProcessState.RESTORING: (Call.LOCK, Call.CHECKPOINT, Call.OPEN_RESTORE),
}
"""How each state is reached."""


def make(driver: FakeDriver, call: Call, pid: int) -> None:
    """One call, by name. An operation is completed from its state alone, as by the process that opened it."""
    match call:
        case Call.LOCK:
            driver.lock(pid, 1000)
        case Call.RESTORE:
            driver.restore(pid, {})
        case Call.OPEN_RESTORE:
            driver.open_restore(pid, {})
        case Call.COMPLETE:
            driver._call(call, pid)  # by rights only the operation that was opened does this
        case _:
            getattr(driver, call.value)(pid)
