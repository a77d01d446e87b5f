"""`Snapshots` by the node's helper, which makes the images and talks to the GPU driver: what each answer means.

A session's name at the helper is its own and a random part, new with each start: an image that was removed elsewhere
leaves this node's helper with an entry of the old name, which must not be in the way.

Not guaranteed: that a session with a GPU comes back on another GPU than the one it left.
"""

import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from ebbtide.helper.client import Helper, Workload
from ebbtide.helper.errors import HelperError, OutcomeUnknown, Refused, Undone, Unreachable
from ebbtide_train.interactive import errors
from ebbtide_train.interactive.tree import Process

READ_BACK_S = 30.0  # a helper that was killed is started again and settles what was under way
_POLL_S = 0.2
_OFF = "checkpointed"  # the driver's word for a process that holds nothing on its GPUs


class HelperSnapshots:
    """One session's talk with the helper of its node."""

    def __init__(self, helper: Helper, session: str) -> None:
        self._helper, self._session = helper, session
        self._name = ""

    def register(self, leader: Process) -> None:
        """See `Snapshots`."""
        name = self._name or f"session:{self._session}:{uuid4().hex[:8]}"
        try:
            self._helper.register(name, leader.pid, leader.started)
        except HelperError as error:
            raise errors.CannotPark(f"it cannot be parked: {error}") from error
        self._name = name

    def image(self, leader: Process, image_dir: Path) -> None:
        """See `Snapshots`."""
        if not self._name:
            self.register(leader)  # the helper may have been started since
        off = self.leave_gpu(leader)
        try:
            self._helper.dump(self._name, image_dir)
        except OutcomeUnknown as error:
            raise errors.OutcomeUnknown(str(error)) from error
        except HelperError as error:
            if off:
                self.return_to_gpu(leader)
            raise errors.CannotPark(str(error)) from error

    def revive(self, image_dir: Path) -> Process:
        """See `Snapshots`."""
        try:
            found = self._helper.revive(image_dir)
            self._name = found.name
            leader = Process(found.pid, found.started)
            if self._driver_says() == _OFF:
                self.return_to_gpu(leader)
        except OutcomeUnknown as error:
            raise errors.OutcomeUnknown(str(error)) from error
        except HelperError as error:
            raise errors.CannotRevive(str(error)) from error
        return leader

    def discard(self, image_dir: Path) -> None:
        """See `Snapshots`."""
        with suppress(HelperError):
            self._helper.discard(image_dir)

    def forget(self) -> None:
        """See `Snapshots`."""
        if self._name:
            with suppress(HelperError):
                self._helper.forget(self._name)
            self._name = ""

    def leave_gpu(self, leader: Process) -> bool:
        """See `Snapshots`."""
        try:
            if self._helper.facts()["driver"]["why_not_checkpoint"] or not self._name:
                return False
            self._helper.lock([self._name])
        except OutcomeUnknown as error:
            return self._settled(error)
        except (Refused, Undone, Unreachable):
            return (
                False  # it has nothing on a GPU, or the driver cannot: the image is the way, and says so if it is not
            )
        try:
            self._helper.checkpoint([self._name])
        except OutcomeUnknown as error:
            return self._settled(error)
        except HelperError:
            self._unlock()
            return False
        return True

    def return_to_gpu(self, leader: Process) -> None:
        """See `Snapshots`."""
        try:
            self._helper.restore([self._name])
            self._helper.unlock([self._name])
        except OutcomeUnknown as error:
            raise errors.OutcomeUnknown(str(error)) from error
        except HelperError as error:
            raise errors.CannotRevive(f"the driver does not bring it back: {error}") from error

    def _settled(self, lost: OutcomeUnknown) -> bool:
        """Where the driver has it, after an answer was lost; never asks for anything again but to let it work on."""
        deadline_s = time.monotonic() + READ_BACK_S
        while time.monotonic() < deadline_s:
            with suppress(HelperError):
                found = self._state()
                if found.busy == "":
                    if found.driver == "locked":
                        self._helper.unlock([self._name])
                    return found.driver == _OFF
            time.sleep(_POLL_S)
        raise errors.OutcomeUnknown(f"nobody says where the driver has it: {lost}") from lost

    def _unlock(self) -> None:
        try:
            self._helper.unlock([self._name])
        except HelperError as error:
            raise errors.OutcomeUnknown(f"it is locked off its GPU, and nobody unlocks it: {error}") from error

    def _driver_says(self) -> str:
        return self._state().driver

    def _state(self) -> Workload:
        return self._helper.state(self._name)[0]
