"""The supervisor of a session: obeys the pool, looks after the process tree, and never loses what it cannot replace.

It asks nobody before it has looked: a session that cannot be put into an image is never given up for being idle, and
runs on when the pool asks for its slot. Then the pool alone may end it, after the grace.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from ebbtide.client.messages import DesiredState, JobDirective, Lease
from ebbtide_train.interactive.errors import CannotPark, CannotRevive, CannotStart, OutcomeUnknown, SessionCrashed
from ebbtide_train.interactive.idle_detection.idle_rules import Action
from ebbtide_train.interactive.idle_detection.idle_watch import IdleWatch
from ebbtide_train.interactive.parking import tree_park
from ebbtide_train.interactive.parking.hindrance_watch import HindranceWatch
from ebbtide_train.interactive.parking.tree_occupancy import TreeOccupancy
from ebbtide_train.interactive.ports import LockFor, Snapshots, Wishes
from ebbtide_train.interactive.process_tree.process_env import gpu_of
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.interactive.spec import SessionSpec
from ebbtide_train.interactive.supervision.session_record import Beginning, Found, How, Life, Record, begin
from ebbtide_train.interactive.supervision.session_states import SessionState, advance
from ebbtide_train.interactive.supervision.status_reports import StatusReports
from ebbtide_train.output_tail import tail
from ebbtide_train.session.coordination.directives import Directives
from ebbtide_train.session.coordination.gate import Gate

POLL_S = 0.1  # as often as the gate hears something new
EXIT_LOOK_S = 0.5  # the file is on the shared directory; half a second more of a slot is nothing at a session's end
ASK_AGAIN_S = 5.0  # an arbiter that restarts answers within that
TAIL_CHARS = 1500  # of its log, in the outcome of a session that failed


class End(Enum):
    """Why a supervisor returns."""

    FINISHED = "finished"  # its command has ended with 0
    FAILED = "failed"  # with another code, or it could not be started, or it is lost
    LEFT = "left"  # its image goes on under another supervisor
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a session, or this supervisor's part of it, ended; ``text`` is for people."""

    end: End
    text: str
    code: int | None = None


class SessionSupervisor:
    """One session on one node, under the leases of one gang."""

    def __init__(
        self,
        spec: SessionSpec,
        place: SessionFolder,
        *,
        lease: Lease,
        incarnation: str,
        node: str,
        gate: Gate,
        lock_for: LockFor,
        snapshots: Snapshots,
        wishes: Wishes,
        idle: IdleWatch,
        slot_env: Callable[[Lease], dict[str, str]],
    ) -> None:
        self._spec, self._place, self._lease = spec, place, lease
        self._gate, self._snapshots, self._wishes, self._idle = gate, snapshots, wishes, idle
        self._slot_env = slot_env
        self._orders = Directives(lease.epoch)
        self._voice = StatusReports(
            gate, self._orders, place, job=spec.name, incarnation=incarnation, node=node, lease=lease
        )
        self._occupation = TreeOccupancy(place, lock_for)
        self._record = Record(life=Life.STARTING, command=spec.digest())
        self._hindrances = HindranceWatch(snapshots.in_the_way)
        self._in_place = False  # it is off the GPU and its processes stay
        self._touched_s = 0.0  # when it was put aside
        self._exit_look_s = 0.0
        self._ask_s = 0.0
        self.state = SessionState.NEW

    def run(self) -> Verdict:
        """Keep the session until it is over or leaves.

        Raises:
            SessionCrashed: its processes were killed under it; nothing of it is left here, the slot is free.
            CannotRevive, CannotStart: it does not run here; the slot is free.
        """
        try:
            verdict = self._begin()
            while verdict is None:
                verdict = self._turn()
                if verdict is None:
                    time.sleep(POLL_S)
            return verdict
        except BaseException:
            # Whatever went wrong: no process of it is left alone, and the lock goes last.
            self._occupation.end(0.0)
            self._occupation.release()
            raise
        finally:
            self._hindrances.close()

    # ---- its beginning

    def _begin(self) -> Verdict | None:
        self._place.make()
        self._voice.note(command=list(self._spec.command), owner=self._spec.owner)
        beginning = self._how()
        if beginning.why:
            self._voice.note(remark=beginning.why)
        if beginning.how is How.TELL:
            return self._tell(beginning)
        self._occupation.take(self._lease)
        if beginning.how is How.REVIVE:
            self._to(SessionState.RESUMING)
            self._revive(beginning.image)
            return None
        self._to(SessionState.STARTING)
        self._start()
        return None

    def _how(self) -> Beginning:
        known = self._place.read("record")
        before = None if known is None else Record.from_json(known)
        if before is not None and before.life is Life.IMAGING:
            # A helper goes on when a supervisor dies: what it had begun may come to stand, and would be all of the
            # session.
            self._snapshots.settled(self._place.image(before.images + 1))
        exited = self._place.read("exit")
        found = Found(
            began=self._place.read("leader") is not None,
            code=None if exited is None else int(exited["code"]),
            newer=before is not None and self._place.is_complete(before.images + 1),
        )
        beginning = begin(before, found, command=self._spec.digest())
        if before is not None and beginning.how is not How.START:
            self._record = replace(before, code=found.code, images=max(before.images, beginning.image))
        return beginning

    def _tell(self, beginning: Beginning) -> Verdict:
        self._to(SessionState.OVER)
        return self._ended(self._record.code, beginning.why)

    def _start(self) -> None:
        for number in self._place.numbers():
            self._snapshots.discard(self._place.image(number))
        self._place.remove("exit")
        self._place.remove("leader")
        env = {**self._spec.env, **self._slot_env(self._lease)}
        self._place.write("spec", {"command": list(self._spec.command), "cwd": self._spec.cwd, "env": env})
        self._write(Life.STARTING)
        self._occupation.start()
        self._write(Life.RUNNING)
        self._runs()

    # ---- while it runs

    def _turn(self) -> Verdict | None:
        order = self._orders.pending(self._gate)
        if order is not None:
            return self._obey(order)
        if self.state is SessionState.RUNNING:
            return self._look_after()
        self._wait_for_touch()
        return None

    def _look_after(self) -> Verdict | None:
        tree = self._occupation.tree
        assert tree is not None, "what runs has a tree"
        leader_lives = tree.leader.alive()
        if not leader_lives or time.monotonic() >= self._exit_look_s:
            self._exit_look_s = time.monotonic() + EXIT_LOOK_S
            exited = None
            with suppress(OSError):  # a shared directory that fails ends nobody
                exited = self._place.read("exit")
            if exited is not None:
                return self._finish(int(exited["code"]))
        if not leader_lives or not self._occupation.guarded():
            who = "watchdog" if leader_lives else "leader"
            self._to(SessionState.ENDING)
            raise SessionCrashed(f"session {self._spec.name}: its {who} process was killed")
        if self._voice.hindered(self._hindrances.found):
            self._say()
        if self._idle.look(tree) is Action.PUT_ASIDE:
            self._put_aside_as_idle()
        return None

    def _finish(self, code: int) -> Verdict:
        self._to(SessionState.ENDING)
        self._occupation.end(self._spec.stop_s)
        return self._ended(code)

    def _put_aside_as_idle(self) -> None:
        refused = self._put_aside()
        if refused:
            self._idle.refused(refused)
            self._voice.note(remark=f"idle, and stays on its slot: {refused}")
            return
        self._ask_s = 0.0
        self._ask_to_be_parked()

    # ---- off its slot and back

    def _put_aside(self, *, to_disk: bool = False) -> str:
        """Take it off its slot; why that cannot be, or "" when it is. ``to_disk``: it must outlive this process."""
        self._touched_s = self._place.touched_s()
        self._hindrances.pause()
        self._to(SessionState.LEAVING)
        self._record = replace(self._record, gpu=gpu_of(self._lease))
        tree = self._occupation.tree
        assert tree is not None, "what runs has a tree"
        try:
            self._in_place = not to_disk and self._snapshots.leave_gpu(tree.leader)
            if not self._in_place:
                self._image()
        except CannotPark as error:
            self._hindrances.begin()
            self._to(SessionState.RUNNING, park_refused=str(error))
            return str(error)
        except (SessionCrashed, OutcomeUnknown):
            self._to(SessionState.ENDING)
            raise
        self._to(SessionState.ASIDE)
        return ""

    def _image(self) -> None:
        number = self._record.images + 1
        for late in self._place.numbers():
            if late >= number:  # came to stand when nobody waited for it any more: what runs is not what is in it
                self._snapshots.discard(self._place.image(late))
        try:
            self._write(Life.IMAGING)
        except OSError as error:
            raise CannotPark(f"the shared directory does not take a record of it: {error}") from error
        try:
            tree_park.image(self._snapshots, self._place, self._occupation, number)
        except CannotPark:
            # What refuses an image may refuse this too (a full disk); without an image the two records say the same.
            with suppress(OSError):
                self._write(Life.RUNNING)
            raise
        self._record = replace(self._record, images=number)
        self._write(Life.IMAGED)
        self._voice.note(image_bytes=self._place.image_bytes(number))
        for older in self._place.numbers():
            if older < number:
                self._snapshots.discard(self._place.image(older))

    def _revive(self, number: int) -> None:
        self._write(Life.RUNNING)  # first: from the moment that it runs, the image is older than it
        try:
            tree_park.revive(self._snapshots, self._place, self._occupation, number, self._moved())
        except (CannotRevive, CannotStart):
            self._write(Life.IMAGED)
            self._to(SessionState.OVER)
            raise
        self._runs()

    def _come_back(self, lease: Lease) -> None:
        self._lease = lease
        self._to(SessionState.RESUMING)
        if self._in_place:
            self._return_to_gpu()
        else:
            self._revive(self._record.images)

    def _return_to_gpu(self) -> None:
        tree = self._occupation.tree
        assert tree is not None, "in place means that its processes stay"
        try:
            self._snapshots.return_to_gpu(tree.leader, self._moved())
        except (CannotRevive, OutcomeUnknown) as error:
            # Off its GPU it is whole, in host memory. Only this supervisor has it; an image outlives the supervisor.
            try:
                self._image()
            except CannotPark as worse:
                raise CannotRevive(f"{error}; nor can it become an image: {worse}") from error
            self._in_place = False
            self._to(SessionState.OVER)
            raise CannotRevive(f"{error}; it goes on from image {self._record.images}") from error
        self._in_place = False
        self._runs()

    def _moved(self) -> dict[str, str]:
        """From the GPU that it left to the one that it has now, where those are two."""
        was, now = self._record.gpu, gpu_of(self._lease)
        return {was: now} if was and now and was != now else {}

    def _runs(self) -> None:
        self._to(SessionState.RUNNING)
        self._idle.begin()
        tree = self._occupation.tree
        assert tree is not None, "what runs has a tree"
        try:
            self._snapshots.register(tree.leader)
        except CannotPark as error:
            self._voice.note(remark=str(error))
        self._hindrances.begin()

    def _wait_for_touch(self) -> None:
        if self._place.touched_s() == self._touched_s:
            if self.state is SessionState.ASIDE:
                self._ask_to_be_parked()
            return
        if self.state is SessionState.ASIDE:
            self._come_back(self._lease)  # the slot is still ours
        elif self._wishes.resume("touched by its owner"):
            self._touched_s = self._place.touched_s()

    def _ask_to_be_parked(self) -> None:
        if time.monotonic() >= self._ask_s:
            self._ask_s = time.monotonic() + ASK_AGAIN_S
            self._wishes.park(self._idle.why())

    # ---- orders

    def _obey(self, order: JobDirective) -> Verdict | None:
        if order.want is DesiredState.CANCEL:
            return self._cancel(order)
        if order.want is DesiredState.RUN:
            assert order.lease is not None, "orders without a lease are not pending"
            self._orders.carried_out(order.number, order.lease.epoch)
            if self.state is SessionState.PARKED:
                self._occupation.take(order.lease)
                self._come_back(order.lease)
            elif self.state is SessionState.ASIDE:
                self._come_back(order.lease)
            else:
                self._say()
            return None
        if self.state is SessionState.RUNNING:
            self._orders.carried_out(order.number, 0)
            if self._put_aside(to_disk=order.want is DesiredState.STOP):
                return None
        self._orders.carried_out(order.number, 0)
        if order.want is DesiredState.STOP:
            return self._leave()
        self._let_go()
        return None

    def _let_go(self) -> None:
        """The slot is the pool's again."""
        if self.state is SessionState.ASIDE:
            self._occupation.release()
            self._to(SessionState.PARKED)
        else:
            self._say()

    def _leave(self) -> Verdict | None:
        if self._in_place:
            try:
                self._image()
            except CannotPark as error:
                self._voice.say(self.state, images=self._record.images, lives=True, park_refused=str(error))
                return None
            self._in_place = False
        self._occupation.release()
        self.state = advance(self._spec.name, self.state, SessionState.OVER)
        self._voice.say(self.state, images=self._record.images, lives=False, stopped=True)
        return Verdict(End.LEFT, f"its image {self._record.images} goes on under another keeper")

    def _cancel(self, order: JobDirective) -> Verdict:
        self._to(SessionState.ENDING)
        self._occupation.end(self._spec.stop_s)
        self._orders.carried_out(order.number, 0)
        self._write(Life.ENDED, outcome="cancelled")
        return self._over(Verdict(End.CANCELLED, "cancelled"))

    # ---- its end

    def _ended(self, code: int | None, why: str = "") -> Verdict:
        printed = tail([str(self._place.output)], chars=TAIL_CHARS)
        if code == 0:
            verdict = Verdict(End.FINISHED, "its command ended with 0", 0)
        else:
            said = why or f"its command ended with {code}" + (" (killed by a signal)" if (code or 0) < 0 else "")
            verdict = Verdict(End.FAILED, f"{said}\n{printed}" if printed else said, code)
        self._record = replace(self._record, code=code)
        self._write(Life.ENDED, outcome=verdict.text[:TAIL_CHARS])
        return self._over(verdict)

    def _over(self, verdict: Verdict) -> Verdict:
        for number in self._place.numbers():
            self._snapshots.discard(self._place.image(number))
        self._snapshots.forget()
        self._occupation.release()
        if self.state is not SessionState.OVER:
            self._to(SessionState.OVER)
        self._voice.note(outcome=verdict.text, code=verdict.code)
        return verdict

    # ---- words

    def _to(self, state: SessionState, *, park_refused: str = "") -> None:
        self.state = advance(self._spec.name, self.state, state)
        self._say(park_refused=park_refused)

    def _say(self, *, park_refused: str = "") -> None:
        aside_whole = self.state in (SessionState.ASIDE, SessionState.PARKED) and not self._in_place
        lives = not aside_whole and self.state is not SessionState.RESUMING
        self._voice.say(self.state, images=self._record.images, lives=lives, park_refused=park_refused)

    def _write(self, life: Life, *, outcome: str = "") -> None:
        self._record = replace(self._record, life=life, outcome=outcome)
        self._place.write("record", self._record.as_json())
