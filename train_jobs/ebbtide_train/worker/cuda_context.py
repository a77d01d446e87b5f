"""A rank's CUDA context, taken off its GPU and put back by the node's helper (`ebbtide.helper`).

Each rank asks for itself. Elsewhere all ranks are locked before any is taken off, since one that is locked while
another waits for it in a collective freezes both for ever; here the process groups are gone before anybody asks.

The first try is a rehearsal when the gang starts, while there is next to nothing on the GPU: what this driver refuses
in this place (MIG, another tool that holds the process, a helper without the right) is known before anybody needs the
slot. Tested with a fake driver only.
"""

import time
from collections.abc import Callable, Sequence

from ebbtide.helper.client import Helper, Workload
from ebbtide.helper.errors import HelperError, OutcomeUnknown, Refused, Unreachable
from ebbtide.system.modes import Place, took
from ebbtide_train.session.errors import GangBroken

RUNNING, LOCKED, CHECKPOINTED = (
    "running",
    "locked",
    "checkpointed",
)  # as `ebbtide.helper.operations.gpu_checkpoint.stand` says them
READ_BACK_S = 120.0  # of asking where the process is after an answer was lost; a helper that died is back in seconds
POLL_S = 0.2
INSTEAD = "the gang stops and restarts instead"
Verb = Callable[[Sequence[str]], list[Workload]]


class CudaContext:
    """See `session.device_context.DeviceContext`."""

    def __init__(
        self,
        helper: Helper,
        name: str,
        *,
        pid: int,
        started: int,
        warm_up: Callable[[], None],
        let_go: Callable[[], None],
        read_back_s: float = READ_BACK_S,
    ) -> None:
        """Nothing is asked yet.

        Args:
            helper: of this node.
            name: of this rank, the same in every gang of the job.
            pid: this process.
            started: when it began, in clock ticks since boot.
            warm_up: makes the context, if there is none.
            let_go: waits for all work on the GPU, and gives memory back that nothing uses.
            read_back_s: how long to ask what became of a call whose answer was lost.
        """
        self._helper, self._name, self._pid, self._started = helper, name, pid, started
        self._warm_up, self._let_go, self._read_back_s = warm_up, let_go, read_back_s
        self._why = "whether the CUDA context can leave the GPU was not tried"
        self._off = False

    @property
    def occupies(self) -> bool:
        """See `DeviceContext`."""
        return not self._off

    def rehearse(self) -> None:
        """See `DeviceContext`."""
        try:
            self._helper.register(self._name, self._pid, self._started)
        except HelperError as error:
            self._why = f"the CUDA context would stay on the slot: {error}"
            took(Place.FREEZE, f"none: {error}")
            return
        self._warm_up()
        self._why = self._take_off()
        if not self._why:
            self._put_back()
        took(Place.FREEZE, f"none: {self._why}" if self._why else "by the helper: tried, and back")

    def refusal(self) -> str:
        """See `DeviceContext`. A helper that has gone since the rehearsal refuses too."""
        if self._why:
            return f"{self._why}; {INSTEAD}"
        try:
            self._helper.register(self._name, self._pid, self._started)  # again is no error
        except HelperError as error:
            return f"the CUDA context would stay on the slot: {error}; {INSTEAD}"
        return ""

    def freeze(self) -> None:
        """See `DeviceContext`."""
        self._let_go()
        if why := self._take_off():
            raise GangBroken(
                f"this process could not be taken off its GPU, and ends: {why}; what it has parked is in host memory, "
                "from where the next gang goes on"
            )
        self._off = True

    def thaw(self) -> None:
        """See `DeviceContext`."""
        if self._off:
            self._put_back()
            self._off = False

    def close(self) -> None:
        """Have the helper forget this process; if it cannot be told, the next gang's name takes its place."""
        try:
            self._helper.forget(self._name)
        except HelperError:
            return

    def _take_off(self) -> str:
        """Why it is where it was; empty if it is off.

        Raises:
            GangBroken: it is neither.
        """
        try:
            self._until(self._helper.lock, LOCKED)
        except (Refused, Unreachable) as error:  # nothing was touched
            return str(error)
        except HelperError as error:
            return self._whole(error)
        try:
            self._until(self._helper.checkpoint, CHECKPOINTED)
        except HelperError as error:
            return self._whole(error)
        return ""

    def _whole(self, error: HelperError) -> str:
        """The process runs, after ``error``; gives that in words."""
        try:
            if self._stands() == LOCKED:
                self._until(self._helper.unlock, RUNNING)
            if self._stands() == RUNNING:
                return str(error)
        except HelperError as worse:
            raise GangBroken(
                f"nobody can say where this process's CUDA context is: {worse} (after: {error})"
            ) from error
        raise GangBroken(f"the CUDA context is where nobody can use it: {error}") from error

    def _put_back(self) -> None:
        try:
            self._until(self._helper.restore, LOCKED)
            self._until(self._helper.unlock, RUNNING)
        except HelperError as error:
            raise GangBroken(
                f"this process's CUDA context does not come back to its GPU: {error}; what it has parked is in host "
                "memory, from where the next gang goes on"
            ) from error

    def _until(self, verb: Verb, goal: str) -> None:
        """Ask once; where the answer is lost, look what became of it.

        Raises:
            HelperError: it is not done.
        """
        try:
            verb([self._name])
        except OutcomeUnknown:
            if self._stands() != goal:
                raise

    def _stands(self) -> str:
        """Where the driver says that this process is, once nothing is under way on it.

        Raises:
            HelperError: nobody answers.
        """
        deadline_s = time.monotonic() + self._read_back_s
        while True:
            try:
                [found] = self._helper.state(self._name)
                if not found.busy:
                    return found.driver
            except HelperError:
                if time.monotonic() > deadline_s:
                    raise
            if time.monotonic() > deadline_s:
                raise OutcomeUnknown(f"something is under way on {self._name} for too long", "kill the process")
            time.sleep(POLL_S)
