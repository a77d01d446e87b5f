"""Deadlines for calls that have none: each runs in a thread of its own, and whoever waits stops waiting in time.

A call that did not come back goes on; nobody can call it off. While it does, its process gets no other call, only
`Driver.state`. Its thread stays behind, at most two for each process; it does not keep the interpreter from ending.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotYet

from ebbtide.snapshot.driver.errors import DriverError, DriverUnknown
from ebbtide.snapshot.driver.port import Driver
from ebbtide.snapshot.driver.process_states import Call, ProcessState

_REMEDY = "read its state back, and kill the process if it stays so"


class BoundedDriver:
    """Asks a driver about several processes at once. Shared by threads, which ask about different processes."""

    def __init__(self, driver: Driver) -> None:
        """Make it once for a driver: it knows which calls are still under way."""
        self.driver = driver
        self._under_way: dict[tuple[str, int], Future[ProcessState | None]] = {}

    def states(self, pids: tuple[int, ...], wait_s: float) -> dict[int, ProcessState | DriverError]:
        """Where these processes stand, or why that is not known; after ``wait_s`` seconds at the latest."""
        asks = {pid: lambda pid=pid: self.driver.state(pid) for pid in pids}
        answers = self._ask("state", "state", asks, wait_s)
        return {pid: answer for pid, answer in answers.items() if answer is not None}

    def calls(self, call: Call, asks: Mapping[int, Callable[[], None]], wait_s: float) -> dict[int, DriverError | None]:
        """Make one call for each process, all at the same time.

        Args:
            call: for the texts of errors.
            asks: makes the call, by pid.
            wait_s: after so many seconds a call that has not come back is given up: `DriverUnknown`.

        Returns:
            By pid, what was raised; None: it worked.
        """
        answers = self._ask("change", call.value, asks, wait_s)
        return {pid: answer if isinstance(answer, DriverError) else None for pid, answer in answers.items()}

    def under_way(self, pid: int) -> bool:
        """Whether a call that changes this process has not come back yet."""
        return self._still("change", pid)

    def _still(self, kind: str, pid: int, wait_s: float = 0.0) -> bool:
        """A question that somebody else has just asked is waited for; its answer may be too old for us."""
        future = self._under_way.get((kind, pid))
        return future is not None and not wait([future], max(0.0, wait_s)).done

    def _ask(
        self, kind: str, call: str, asks: Mapping[int, Callable[[], ProcessState | None]], wait_s: float
    ) -> dict[int, ProcessState | DriverError | None]:
        end_s = time.monotonic() + wait_s
        answers: dict[int, ProcessState | DriverError | None] = {}
        asked: dict[int, Future[ProcessState | None]] = {}
        for pid, ask in asks.items():
            if self._still(kind, pid, wait_s=end_s - time.monotonic() if kind == "state" else 0.0):
                answers[pid] = DriverUnknown(call, pid, "an earlier call has not come back", _REMEDY)
                continue
            asked[pid] = self._under_way[kind, pid] = Future()
            name = f"driver-{call}-{pid}"
            threading.Thread(target=_answer, args=(asked[pid], ask, call, pid), name=name, daemon=True).start()
        for pid, future in asked.items():
            try:
                answers[pid] = future.result(timeout=max(0.0, end_s - time.monotonic()))
            except NotYet:
                answers[pid] = DriverUnknown(call, pid, f"no answer within {wait_s:g} s", _REMEDY)
                continue
            except DriverError as error:
                answers[pid] = error
            self._under_way.pop((kind, pid), None)
        return answers


def _answer(future: Future[ProcessState | None], ask: Callable[[], ProcessState | None], call: str, pid: int) -> None:
    try:
        future.set_result(ask())
    except DriverError as error:
        future.set_exception(error)
    except Exception as error:  # noqa: BLE001 - the thread's outermost frame; half a gang must not be left locked
        future.set_exception(DriverUnknown(call, pid, f"{type(error).__name__}: {error}", _REMEDY))
