"""Lock, checkpoint, restore, unlock: the driver's verbs on registered trees, journaled.

Each verb is for all processes of these trees that use a GPU (see `gpu_processes`), and looks again when it has gone
through: one that has begun meanwhile must not be left out. One that ends meanwhile is left out; only a registered
process itself that ends is a loss. The order for a gang, deadlines and the reading back are
`ebbtide.snapshot.driver.gang`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ebbtide.helper.errors import HelperError, Lost, OutcomeUnknown, Refused, Undone
from ebbtide.helper.journal.journal_state import Entry
from ebbtide.helper.journal.operation import Operation, Workplace
from ebbtide.helper.journal.workload_states import Op, Step
from ebbtide.helper.operations.gpu_processes import GpuTree, User, look_at_gpus
from ebbtide.helper.protocol.requests import DriverRequest, Lock, Restore
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.errors import (
    DriverError,
    DriverFailed,
    DriverRefused,
    GangError,
    GangLost,
    GangRefused,
    GangUnsettled,
    ProcessGone,
    ProcessLost,
)
from ebbtide.snapshot.driver.gang import Pace, move
from ebbtide.snapshot.driver.gang_plan import WAYS, Verb
from ebbtide.snapshot.driver.gpu_map import whole_map
from ebbtide.snapshot.driver.port import GpuMap
from ebbtide.snapshot.driver.process_states import ProcessState
from ebbtide.system.process import is_alive

_TURNS = 5  # a tree in which processes begin and end faster than a driver locks them does not come to rest by itself


def move_all(place: Workplace, driver: BoundedDriver, request: DriverRequest, entries: Sequence[Entry]) -> None:
    """Do a verb for all of these workloads: all of it, or back, or an error that says where each is.

    Raises:
        Refused: nothing was touched: one has ended, uses no GPU, or its GPUs cannot be what is asked.
        Undone: all are whole and where they were.
        OutcomeUnknown: some are not where they should be, or the driver does not say.
        Lost: some are lost.
    """
    verb = Verb(request.verb)
    trees = look_at_gpus(driver, entries)
    _check(verb, trees)
    here = driver.driver.capabilities().gpus
    maps = {entry.name: _map(request, entry, here) for entry in entries}
    operations = [
        Operation.on(place, Op(request.verb), entry, processes=[[user.pid, user.started] for user in tree.users])
        for entry, tree in zip(entries, trees, strict=True)
    ]
    pace = Pace(lock_s=request.timeout_ms / 1000) if isinstance(request, Lock) else Pace()
    try:
        _Trees(verb, driver, entries, maps, pace).carry_out(trees)
    except GangError as error:
        step = Step.UNDONE if isinstance(error, GangRefused) else Step.READ_BACK
        for operation, tree in zip(operations, look_at_gpus(driver, entries), strict=True):
            operation.note(step, state=tree.word or "gone", why=str(error))
        raise _ours(error) from error
    for operation in operations:
        operation.note(Step.DONE)


def stand(driver: BoundedDriver, entries: Sequence[Entry]) -> dict[str, str]:
    """Where the driver says that each workload is, in lower case, by name; see `GpuTree.word`."""
    return {tree.name: tree.word for tree in look_at_gpus(driver, entries)}


@dataclass(frozen=True, slots=True)
class _Trees:
    """One verb for some trees."""

    verb: Verb
    driver: BoundedDriver
    entries: Sequence[Entry]
    maps: Mapping[str, GpuMap]
    pace: Pace

    def carry_out(self, trees: Sequence[GpuTree]) -> None:
        """Make calls until a look shows all users at the goal.

        Raises:
            GangError: as `move` does.
        """
        goal, began = WAYS[self.verb].goal, trees
        for turn in range(_TURNS):
            users = {user.pid: user for tree in trees for user in tree.users if self._counts(tree, user)}
            if turn and all(user.state is goal for user in users.values()):
                return
            try:
                self._move(self.verb, trees, users)
            except GangError as error:
                if error.moved:  # the same map would lead them to the GPUs that they have left
                    raise self._scattered(error) from error
                if not self._only_ended(error):
                    if turn:
                        self._lead_back(error, began, self._look_again())
                    raise
            trees = self._look_again()
        self._lead_back(self._restless(trees), began, trees)

    def _counts(self, tree: GpuTree, user: User) -> bool:
        """What has begun since a tree was taken off runs, and is no reason not to bring the others back."""
        return self.verb is not Verb.RESTORE or user.state is not ProcessState.RUNNING or user.pid == tree.root

    def _move(self, verb: Verb, trees: Sequence[GpuTree], users: Mapping[int, User]) -> None:
        maps = {user.pid: self.maps[tree.name] for tree in trees for user in tree.users if self.maps[tree.name]}
        move(
            verb,
            self.driver,
            tuple(users),
            pace=self.pace,
            gpu_maps=maps if verb is Verb.RESTORE else None,
            is_same=lambda pid: is_alive(pid, users[pid].started),
        )

    def _look_again(self) -> Sequence[GpuTree]:
        trees = look_at_gpus(self.driver, self.entries)
        gone: dict[int, DriverError] = {
            tree.root: ProcessGone(self.verb.value, tree.root, "the root of its tree has ended", "kill what is left")
            for tree in trees
            if tree.is_gone
        }
        if gone:
            states = {user.pid: _known(user) for tree in trees for user in tree.users}
            raise GangLost(self.verb.value, {**dict.fromkeys(gone), **states}, gone, "Kill what is left of its tree")
        return trees

    def _only_ended(self, error: GangError) -> bool:
        """Whether nothing is lost but processes that have ended by themselves, and the others may be asked again."""
        lost = [cause for cause in error.causes.values() if isinstance(cause, ProcessLost)]
        roots = {entry.pid for entry in self.entries}
        return bool(lost) and all(isinstance(cause, ProcessGone) and cause.pid not in roots for cause in lost)

    def _scattered(self, error: GangError) -> GangError:
        """Some were put on their new GPUs, and taken off those again since others were refused."""
        what = "it was taken off another GPU than the others, which no map puts right"
        lost: dict[int, DriverError] = {pid: DriverFailed(self.verb.value, pid, what, "kill it") for pid in error.moved}
        return GangLost(self.verb.value, error.states, {**error.causes, **lost}, "Kill the tree, fall back")

    def _restless(self, trees: Sequence[GpuTree]) -> GangError:
        late = [user for tree in trees for user in tree.users if user.state is not WAYS[self.verb].goal]
        what = f"processes of it begin to use the GPU, or end, again and again; {_TURNS} looks found others each time"
        causes: dict[int, DriverError] = {
            user.pid: DriverRefused(self.verb.value, user.pid, what, "wait until it has started up") for user in late
        }
        return GangRefused(self.verb.value, {user.pid: _known(user) for user in late}, causes, "Ask again later")

    def _lead_back(self, error: GangError, began: Sequence[GpuTree], trees: Sequence[GpuTree]) -> NoReturn:
        """After a turn that went through, the verb has failed for others: those that it has moved go back as well."""
        if not isinstance(error, GangRefused):
            raise error
        if self.verb in (Verb.RESTORE, Verb.UNLOCK):  # those that are back stay so: their GPUs are theirs
            raise GangUnsettled(self.verb.value, error.states, error.causes, "Ask again, or kill the tree") from error
        goal, undo = WAYS[self.verb].goal, Verb.UNLOCK if self.verb is Verb.LOCK else Verb.RESTORE
        # A lock lets also those go that it found locked: their asker has died, or they would wait for ever.
        stay = {user.pid for tree in began for user in tree.users if user.state is goal and undo is Verb.RESTORE}
        users = {user.pid: user for tree in trees for user in tree.users if user.state is goal and user.pid not in stay}
        try:
            self._move(undo, trees, users)
        except GangError as worse:
            causes = {**error.causes, **worse.causes}
            raise GangUnsettled(self.verb.value, worse.states, causes, "Read the states back and ask again") from worse
        raise error


def _check(verb: Verb, trees: Sequence[GpuTree]) -> None:
    for tree in trees:
        if tree.is_gone:
            raise Refused(f"process {tree.root} of {tree.name} is not there", "register what runs now")
        if verb is not Verb.LOCK:
            continue
        if tree.unclear:
            raise Refused(
                f"{tree.name} cannot be taken off its GPU: {tree.unclear}",
                "end that process, or start it anew (spawn) and not by a fork of one that uses CUDA",
            )
        if not tree.users:
            raise Refused(f"no process of {tree.name} uses a GPU: {tree.why_not}", "nothing is to be taken off")


def _map(request: DriverRequest, entry: Entry, here: Mapping[str, str]) -> GpuMap:
    if not isinstance(request, Restore):
        return {}
    try:
        return whole_map(request.gpu_map, entry.gpus, here)
    except ValueError as error:
        raise Refused(
            f"{entry.name} cannot be restored so: {error}", "name a GPU of this node and of the same chip"
        ) from None


def _known(user: User) -> ProcessState | None:
    return user.state if isinstance(user.state, ProcessState) else None


def _ours(error: GangError) -> HelperError:
    kind = Undone if isinstance(error, GangRefused) else Lost if isinstance(error, GangLost) else OutcomeUnknown
    remedy = {Undone: "use another tier", Lost: "kill the rest, fall back to the last durable state"}
    return kind(str(error), remedy.get(kind, "read back with state; kill what stays so"))
