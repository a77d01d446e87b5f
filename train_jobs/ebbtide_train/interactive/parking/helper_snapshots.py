"""`Snapshots` by the node's helper, which makes the images and talks to the GPU driver: what each answer means.

A session's name at the helper is its own and a random part, new with each start: an image that was removed elsewhere
leaves this node's helper with an entry of the old name, which must not be in the way.

An answer that was lost is read back: by the driver's word for a tree, by what the helper says is under way for an
image. Only what is seen not to have happened is asked for once more.

Not guaranteed: that a session comes back on another GPU than the one it left: the driver must be able to, and says so.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from ebbtide.helper.client import Helper
from ebbtide.helper.errors import HelperError, Lost, OutcomeUnknown
from ebbtide.helper.protocol.requests import IMAGE_S
from ebbtide_train.interactive import errors
from ebbtide_train.interactive.ports import InTheWay
from ebbtide_train.interactive.process_tree.tree import Process

READ_BACK_S = 30.0  # a helper that was killed is started again and settles what was under way
_POLL_S = 0.2
_NONE = ("", "unused")  # no driver, or no process of it uses a GPU
_UNKNOWN = "unknown"
_RUNNING, _LOCKED, _OFF = "running", "locked", "checkpointed"  # the driver's words for all of its processes that do


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
        taken_off = not self._is_off() and self.leave_gpu(leader)
        try:
            self._helper.dump(self._name, image_dir)
        except OutcomeUnknown as error:
            raise errors.OutcomeUnknown(str(error)) from error
        except HelperError as error:
            if taken_off:
                self.return_to_gpu(leader, {})
            raise errors.CannotPark(str(error)) from error

    def revive(self, image_dir: Path) -> Process:
        """See `Snapshots`."""
        with suppress(HelperError):  # the next question says it, too
            self._await_rest(image_dir)
        try:
            found = self._helper.revive(image_dir)
        except OutcomeUnknown as error:
            raise errors.OutcomeUnknown(str(error), over=self._is_over(image_dir)) from error
        except HelperError as error:
            raise errors.CannotRevive(str(error)) from error
        self._name = found.name
        return Process(found.pid, found.started)

    def settled(self, image_dir: Path) -> None:
        """See `Snapshots`."""
        deadline_s = time.monotonic() + READ_BACK_S
        while True:
            try:
                self._await_rest(image_dir)
                return
            except HelperError:
                if time.monotonic() >= deadline_s:
                    return
            time.sleep(_POLL_S)

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
            stands = self._helper.state(self._name)[0].driver if self._name else ""
        except HelperError:
            return False  # the image is the way, and says so if it is not
        if stands in (*_NONE, _OFF):
            return stands == _OFF
        if stands.startswith(_UNKNOWN):
            raise errors.CannotPark(f"nobody says where it is on its GPU: {stands}")
        try:
            self._until(self._lock, _LOCKED)
            self._until(self._checkpoint, _OFF)
        except Lost as error:
            raise errors.SessionCrashed(f"the driver has lost it: {error}") from error
        except HelperError as error:
            self._lead_back(error)
            raise errors.CannotPark(f"it stays on its GPU: {error}") from error
        return True

    def return_to_gpu(self, leader: Process, gpu_map: Mapping[str, str]) -> None:
        """See `Snapshots`."""
        try:
            if (stands := self._stands()) in (*_NONE, _RUNNING):
                return
            if stands != _LOCKED:
                self._until(lambda: self._helper.restore([self._name], gpu_map), _LOCKED)
            self._until(self._unlock, _RUNNING)
        except OutcomeUnknown as error:
            raise errors.OutcomeUnknown(str(error)) from error
        except HelperError as error:
            raise errors.CannotRevive(f"the driver does not bring it back: {error}") from error

    def in_the_way(self) -> InTheWay:
        """See `Snapshots`."""
        try:
            found = self._helper.hindrances(self._name) if self._name else None
        except HelperError as error:
            return InTheWay(park=str(error), image=str(error))
        if found is None:
            return InTheWay(park="the node's helper does not know it", image="the node's helper does not know it")
        image = "; ".join(found.image)
        return InTheWay(park=found.unclear if found.gpu else image, image=image)

    # ---- one verb at a time

    def _lock(self) -> object:
        return self._helper.lock([self._name])

    def _checkpoint(self) -> object:
        return self._helper.checkpoint([self._name])

    def _unlock(self) -> object:
        return self._helper.unlock([self._name])

    def _until(self, verb: Callable[[], object], goal: str) -> None:
        """Ask; where the answer is lost, look what became of it, and ask once more for what is not done.

        Raises:
            HelperError: it is not done.
        """
        try:
            verb()
        except OutcomeUnknown:
            # Verbs go on from where the driver says that each process is: what is done is not done again.
            if self._stands() != goal:
                verb()

    def _lead_back(self, error: HelperError) -> None:
        """It runs, after ``error``.

        Raises:
            errors.OutcomeUnknown: nobody can say.
        """
        try:
            if (stands := self._stands()) not in (*_NONE, _RUNNING, _LOCKED):
                self._until(lambda: self._helper.restore([self._name]), _LOCKED)
            if stands not in (*_NONE, _RUNNING):
                self._until(self._unlock, _RUNNING)
        except HelperError as worse:
            raise errors.OutcomeUnknown(f"it is off its GPU in part, and stays so: {worse} (after: {error})") from worse

    def _is_off(self) -> bool:
        with suppress(HelperError):
            return self._helper.state(self._name)[0].driver == _OFF
        return False

    def _stands(self) -> str:
        """Where the driver has it, once nothing is under way on it.

        Raises:
            HelperError: nobody answers in time.
        """
        deadline_s = time.monotonic() + READ_BACK_S
        while True:
            try:
                found = self._helper.state(self._name)[0]
                if not found.busy:
                    return found.driver
            except HelperError:
                if time.monotonic() >= deadline_s:
                    raise
            if time.monotonic() >= deadline_s:
                raise OutcomeUnknown(f"something is under way on {self._name} for too long", "end the session")
            time.sleep(_POLL_S)

    def _await_rest(self, image_dir: Path) -> None:
        """Wait while something is under way on an image, which may have been begun for a supervisor before this one.

        Raises:
            HelperError: nobody answers.
        """
        end_s = time.monotonic() + IMAGE_S
        while str(image_dir) in self._helper.facts()["busy"] and time.monotonic() < end_s:
            time.sleep(_POLL_S)

    def _is_over(self, image_dir: Path) -> bool:
        """Whether nothing is under way on an image any more; False if nobody says so in time."""
        deadline_s = time.monotonic() + READ_BACK_S
        while time.monotonic() < deadline_s:
            with suppress(HelperError):
                if str(image_dir) not in self._helper.facts()["busy"]:
                    return True
            time.sleep(_POLL_S)
        return False
