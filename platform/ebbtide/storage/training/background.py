"""Checkpoints written while training goes on: a copy in host memory first, then a thread that writes it.

What fails is told in the `Save` and logged, and never raised where training would be hurt by it: the checkpoint before
still counts. One save is under way at a time; who begins a second one waits, or is turned away, as it was told to.

In a gang all ranks must do the same: either all wait, or they agree beforehand on whether any of them is `busy`. The
thread's rounds need a process group of their own (gloo), since training uses the other one.

Not guaranteed: that memory is not short. If there is none for the copy, the state is written before `begin` returns,
and `Save.why_not_copied` says so.
"""

import logging
import math
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from enum import Enum
from typing import Any

from ebbtide.storage.errors import Refused, StorageError, WaitTimeout
from ebbtide.storage.training.host_copy import HostCopies, Staged
from ebbtide.storage.training.places import CheckpointId

_logger = logging.getLogger(__name__)

Write = Callable[[dict[str, Any]], CheckpointId]


class IfBusy(Enum):
    """What happens to a save that is begun while another one is under way."""

    WAIT = "wait"
    REFUSE = "refuse"


class Save:
    """One save, as whoever began it sees it.

    Attributes:
        why_not_copied: why it was written in the caller's time; empty if it was not.
    """

    def __init__(self) -> None:
        self.why_not_copied = ""
        self._answer: Future[CheckpointId] = Future()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._answer.done()

    @property
    def error(self) -> BaseException | None:
        """Why it failed; None if it did not, or is under way."""
        return self._answer.exception() if self._answer.done() else None

    def wait(self, timeout_s: float = math.inf) -> CheckpointId:
        """Which checkpoint it made, once it has.

        Raises:
            WaitTimeout: it is still under way.
            BaseException: why it failed.
        """
        if not wait([self._answer], None if timeout_s == math.inf else timeout_s).done:
            raise WaitTimeout("waiting for a checkpoint", why="it is still being written", after_s=timeout_s)
        return self._answer.result()

    def _end(self, write: Callable[[], CheckpointId]) -> None:
        try:
            self._answer.set_result(write())
        except BaseException as error:  # the outermost of a save: told to who asks, and training goes on
            if not isinstance(error, StorageError):
                _logger.exception("a checkpoint could not be written")
            else:
                _logger.warning("a checkpoint could not be written: %s", error)
            _forget_locals(error)
            self._answer.set_exception(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):  # in the caller's own thread: meant for all of it
                raise


class BackgroundSaver:
    """Saves in the background; for one thread, that of the training loop."""

    def __init__(self, copies: HostCopies, *, if_busy: IfBusy = IfBusy.WAIT, patience_s: float = math.inf) -> None:
        """Nothing is begun yet.

        Args:
            copies: makes the copies.
            if_busy: what happens to a save that is begun while another one is under way.
            patience_s: how long it waits at most; then it is turned away.
        """
        self._copies, self._if_busy, self._patience_s = copies, if_busy, patience_s
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, state: Mapping[str, Any], write: Write) -> Save:
        """Copy ``state``, and write the copy while the caller goes on. Raises nothing of what concerns the checkpoint.

        Args:
            state: see `HostCopies.stage`. It may change once this returns.
            write: what to do with the copy, such as ``lambda state: checkpoints.save(state, epoch=3, step=100)``.
        """
        save = Save()
        if self.busy and not self._waited():  # guard: a second background save waits for the first or is turned away
            refusal = Refused("a checkpoint is still being written, so this one is not begun; try again later")
            save._answer.set_exception(refusal)
            _logger.warning("%s", refusal)
            return save
        try:
            staged = self._copies.stage(state)
        # guard: a failure of a background save hurts no training
        except Exception as error:  # noqa: BLE001 - a lock, a state that holds itself: whatever the author put there
            # Whatever is wrong, the ranks that could make their copies must not wait for this one in vain.
            kind = "no memory for a copy" if isinstance(error, MemoryError) else f"no copy ({type(error).__name__})"
            save.why_not_copied = str(error) if isinstance(error, StorageError) else f"{kind}: {error}"
            _logger.warning("%s: the checkpoint is written while training waits", save.why_not_copied)
            save._end(lambda: write(dict(state)))
            return save
        thread = threading.Thread(target=_write, args=(save, staged, write), name="checkpoint", daemon=True)
        try:
            thread.start()
        # guard: without a thread a background save is written in the caller's time
        except RuntimeError as error:  # "can't start new thread": the process or the machine has too many
            save.why_not_copied = f"no thread to write it in: {error}"
            _logger.warning("%s: the checkpoint is written while training waits", save.why_not_copied)
            _write(save, staged, write)
        else:
            self._thread = thread
        return save

    def settle(self, timeout_s: float = math.inf) -> bool:
        """Wait until no save is under way; whether that came about in time."""
        if self._thread is not None:
            self._thread.join(min(timeout_s, threading.TIMEOUT_MAX))
        return not self.busy

    def _waited(self) -> bool:
        return self._if_busy is IfBusy.WAIT and self.settle(self._patience_s)


def _write(save: Save, staged: Staged, write: Write) -> None:
    def all_of_it() -> CheckpointId:
        try:
            return write(staged.state)
        finally:
            staged.release()  # before anybody hears of the end: the next copy takes the same memory

    save._end(all_of_it)


def _forget_locals(error: BaseException) -> None:
    """An error that is kept must not keep the copy alive, to which the frames of its traceback lead."""
    seen: set[int] = set()
    following: list[BaseException | None] = [error]
    while following:
        one = following.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            following += [one.__cause__, one.__context__]
