"""A driver without a GPU: the same states and refusals on real processes, and every failure on demand.

It touches no process; it only keeps the books, in a file that outlives the caller (see `fake_driver_state`). Several of
them over one file are one driver. What goes wrong, and when, is in a script (see `fake_script`).

Every process uses CUDA, unless a test says which do (see `fake_users`): the others are refused then, as in earnest.
A process has a GPU memory if somebody made the file ``memory_of(pid)``; custom storage moves its bytes. GPUs there are
none, unless the file ``machine_of(state_file)`` names some: JSON, ``{"driver": ..., "gpus": {uuid: chip}}``.

What it does not show: that work on a GPU stops, and time.
"""

import json
import os
import signal
import time
from pathlib import Path

from ebbtide.snapshot.driver.errors import DriverFailed, DriverRefused, DriverUnknown, LockTimeout, ProcessGone
from ebbtide.snapshot.driver.port import Capabilities, GpuMap
from ebbtide.snapshot.driver.process_start import started_ticks
from ebbtide.snapshot.driver.process_states import Call, ProcessState, after, sources
from ebbtide_testing.gpu_driver.fake_driver_state import open_state
from ebbtide_testing.gpu_driver.fake_operation import FakeOperation
from ebbtide_testing.gpu_driver.fake_script import READ, Do, Rule, When, read_script, script_of
from ebbtide_testing.gpu_driver.fake_users import held_by, users_of

_REMEDY = "this is a test's doing, see the script of the fake driver"


class FakeDriver:
    """See `StorageDriver`. All state is in files: it may be made anew at any time."""

    def __init__(self, state_file: Path, capabilities: Capabilities | None = None) -> None:
        """Take up the books at ``state_file``, which need not exist.

        Args:
            state_file: the books; the script lies beside it, at ``script_of(state_file)``.
            capabilities: what to say about itself; by default, that it can do everything.
        """
        self._file = state_file
        self._capabilities = capabilities

    def capabilities(self) -> Capabilities:
        """What it was told."""
        if self._capabilities is not None:
            return self._capabilities
        machine = machine_of(self._file)
        return Capabilities(**json.loads(machine.read_text())) if machine.exists() else Capabilities("fake")

    def state(self, pid: int) -> ProcessState:
        """See `Driver.state`."""
        self._obey(READ, pid, When.BEFORE)
        who = self._who(READ, pid)
        with open_state(self._file) as book:
            return book.state(who)

    def lock(self, pid: int, timeout_ms: int) -> None:
        """See `Driver.lock`; takes no time."""
        if timeout_ms <= 0:
            raise ValueError(f"a lock's timeout is {timeout_ms} ms; without one it could wait for ever")
        self._call(Call.LOCK, pid)

    def checkpoint(self, pid: int) -> None:
        """See `Driver.checkpoint`."""
        self._call(Call.CHECKPOINT, pid)

    def restore(self, pid: int, gpu_map: GpuMap) -> None:
        """See `Driver.restore`; the map is kept in the books."""
        self._call(Call.RESTORE, pid, gpu_map)

    def unlock(self, pid: int) -> None:
        """See `Driver.unlock`."""
        self._call(Call.UNLOCK, pid)

    def open_checkpoint(self, pid: int) -> "FakeOperation":
        """See `StorageDriver.open_checkpoint`."""
        self._call(Call.OPEN_CHECKPOINT, pid)
        return FakeOperation(self.memory_of(pid), fill=True, complete=lambda: self._call(Call.COMPLETE, pid))

    def open_restore(self, pid: int, gpu_map: GpuMap) -> "FakeOperation":
        """See `StorageDriver.open_restore`."""
        self._call(Call.OPEN_RESTORE, pid, gpu_map)
        return FakeOperation(self.memory_of(pid), fill=False, complete=lambda: self._call(Call.COMPLETE, pid))

    def memory_of(self, pid: int) -> Path:
        """The file that is the GPU memory of a process. It has its size, and no bytes in it, while it is away."""
        return self._file.with_name(f"{self._file.name}.{self._who(READ, pid)}.gpu")

    def _call(self, call: Call, pid: int, gpu_map: GpuMap | None = None) -> None:
        if pid == os.getpid() and call in (Call.OPEN_CHECKPOINT, Call.OPEN_RESTORE):
            raise DriverRefused(call.value, pid, "a process cannot do this to itself", "ask another process")
        self._obey(call.value, pid, When.BEFORE)
        who = self._who(call.value, pid)
        with open_state(self._file) as book:
            now = book.state(who)
            if now is ProcessState.FAILED:
                raise DriverFailed(call.value, pid, "it is FAILED", "kill it")
            then = after(now, call)
            if then is None:
                need = " or ".join(state.name for state in sources(call))
                raise DriverRefused(call.value, pid, f"it is {now.name}", f"it must be {need}")
            book.set_state(who, then)
            book.calls.append((call.value, pid))
            if gpu_map is not None:
                book.gpus[who] = dict(gpu_map)
        self._obey(call.value, pid, When.AFTER)

    def _who(self, call: str, pid: int) -> str:
        started = started_ticks(pid)
        if started is None:
            raise ProcessGone(call, pid, "there is no such process", "its GPU memory is free: settle its books")
        users = users_of(self._file)
        if not users.is_dir():
            return f"{pid}:{started}"
        held = held_by(pid, users)
        if held is None:
            raise DriverRefused(call, pid, "CUDA_ERROR_INVALID_VALUE", "it does not use CUDA")
        return f"{pid}:{held}"

    def _obey(self, call: str, pid: int, when: When) -> None:
        for rule in self._due(call, pid, when):
            self._do(rule, pid)

    def _due(self, call: str, pid: int, when: When) -> list[Rule]:
        """The rules that strike now; that they did is on file before they do."""
        script = read_script(script_of(self._file))
        due = []
        with open_state(self._file) as book:
            for place, rule in enumerate(script):
                if (rule.call, rule.when) == (call, when) and rule.pid in (None, pid):
                    seen = book.seen.get(str(place), 0)
                    book.seen[str(place)] = seen + 1
                    if rule.skip <= seen < rule.skip + rule.times:
                        due.append(rule)
        return due

    def _do(self, rule: Rule, pid: int) -> None:
        match rule.do:
            case Do.DIE:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # the signal may arrive a moment later; nothing after it may run
            case Do.HANG:
                time.sleep(rule.seconds)
            case Do.TIMEOUT:
                raise LockTimeout(rule.call, pid, "its work did not end in time", _REMEDY)
            case Do.REFUSE:
                raise DriverRefused(rule.call, pid, "the driver does not want it", _REMEDY)
            case Do.UNKNOWN:
                raise DriverUnknown(rule.call, pid, "no answer", "read its state back")
            case Do.FAIL:
                who = self._who(rule.call, pid)
                with open_state(self._file) as book:
                    book.set_state(who, ProcessState.FAILED)
                raise DriverFailed(rule.call, pid, "it is FAILED now", "kill it")


def machine_of(state_file: Path) -> Path:
    """The file that says what a fake driver with this state file has: fields of `Capabilities`."""
    return state_file.with_name(state_file.name + ".machine")
