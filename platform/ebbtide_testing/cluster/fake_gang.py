"""A model of a training job: its driver with the Train controller, and the ranks of its gang.

The controller asks for a grant while no worker is left, starts a gang, and when one rank dies takes the others down
and only then reports that it has none. The ranks meet at a safe point after every step; there they follow what rank 0
heard. A parked rank has given up its memory and then its slot lock; a rank that comes back takes the lock first.

Not modelled: the training, more than one gang at a time, a rank that lies.
"""

from dataclasses import dataclass
from random import Random

from ebbtide.client.messages import (
    ControllerOrders,
    ControllerPhase,
    ControllerReport,
    DesiredState,
    JobDirective,
    Lease,
    RankPhase,
    RankReport,
)
from ebbtide.pool.ids import NodeId, SlotId, slot_id
from ebbtide_testing.cluster.fake_cluster import FakeCluster
from ebbtide_testing.cluster.fake_machines import Process

LOCK_TIMEOUT_S = 20.0


@dataclass(eq=False, slots=True)
class FakeRank:
    """One rank."""

    number: int
    process: Process
    slot: SlotId
    lease_epoch: int
    phase: RankPhase = RankPhase.STARTING
    directive: int = 0
    begun: bool = False  # its first turn: until then it may be ended at any moment, and no step is lost


class FakeGang:
    """All ranks of one start."""

    def __init__(self, driver: "FakeDriver", lease: Lease) -> None:
        self.driver, self.lease = driver, lease
        self.cluster = driver.cluster
        self.gang_epoch = lease.epoch
        self.done = 0  # number of the last directive carried out
        self.heard: JobDirective | None = None
        self.hangs = False  # never comes to a safe point again
        self.lost_steps = driver.lost_steps
        self.over = False
        self.left = False  # in good order
        self.ranks = []
        for number, ref in enumerate(lease.slots):
            process = self.cluster.machines.spawn(driver.job, lease.epoch, ref.node, number)
            process.on_death = self._rank_died
            rank = FakeRank(number, process, slot_id(NodeId(ref.node), ref.index), lease.epoch)
            self.ranks.append(rank)
            self._later(*driver.start_s, lambda rank=rank: self._take(rank, lease.epoch))
            self._later(0.1, 0.5, lambda rank=rank: self._beats(rank))
        if any(not rank.process.alive for rank in self.ranks):
            self._rank_died()

    def _later(self, least_s: float, most_s: float, what: object) -> None:
        self.cluster.clock.call_later(self.cluster.random.uniform(least_s, most_s), what)  # type: ignore[arg-type]

    def alive(self) -> bool:
        """Whether a process of it is left."""
        return any(rank.process.alive for rank in self.ranks)

    def _rank_died(self) -> None:
        if not self.over:
            self.over = True
            self._later(0.2, 2.0, self.kill)  # the controller notices and takes the others down

    def kill(self) -> None:
        """End what is left."""
        self.over = True
        for rank in self.ranks:
            self.cluster.machines.kill(rank.process)

    # ---- taking slots, training

    def _take(self, rank: FakeRank, epoch: int) -> None:
        def taken(came: bool) -> None:
            if not came:
                self.cluster.machines.kill(rank.process)
                return
            if rank.phase is RankPhase.STOPPED:  # it was told to leave while it waited for its lock
                return
            rank.phase, rank.lease_epoch, rank.begun = RankPhase.RUNNING, epoch, True
            if all(r.phase is RankPhase.RUNNING for r in self.ranks):
                for r in self.ranks:
                    r.directive = max(r.directive, self.done)
                self._later(0.1, 0.3, lambda: self._safe_point(epoch))

        if rank.process.alive and not self.over and rank.phase is not RankPhase.STOPPED:
            rank.process.epoch = epoch
            self.cluster.machines.take(rank.process, rank.slot, LOCK_TIMEOUT_S, taken)

    def _safe_point(self, epoch: int) -> None:
        if self.over or self.hangs or epoch != self.lease.epoch or self.driver.never_steps:
            return
        if self.driver.poison:
            self.cluster.machines.kill(self.ranks[-1].process)
            return
        self.driver.step += 1
        order = self._pending()
        if self.driver.step >= self.driver.total:
            self.driver.publish(full=False)
            self._leave(RankPhase.DONE, self.done)
        elif order is None:
            if self.cluster.random.random() < 0.02:
                self.driver.publish()
            self._later(0.1, 0.3, lambda: self._safe_point(epoch))
        elif order.want is DesiredState.PARK:
            self._park(order)
        elif order.want is DesiredState.RUN:
            self.done = order.number
            for rank in self.ranks:
                rank.directive = order.number
            self._later(0.1, 0.3, lambda: self._safe_point(epoch))
        else:
            self._publish(order)

    def _pending(self) -> JobDirective | None:
        """As the real session: only a newer number counts, and no stale lease."""
        order = self.heard
        if order is None or order.number <= self.done:
            return None
        if order.lease is not None and order.lease.epoch < self.lease.epoch:
            return None
        return order

    def _publish(self, order: JobDirective) -> None:
        self.done = order.number

        def committed() -> None:
            if self.over:
                return
            if self.driver.publish():
                self._leave(RankPhase.STOPPED, order.number)
            else:  # it holds its slots and tries again: to leave would lose what it could not write
                self._later(*self.driver.commit_s, committed)

        self._later(*self.driver.commit_s, committed)

    def _leave(self, phase: RankPhase, number: int) -> None:
        """All ranks let go and exit, each at its own pace."""
        self.left = True
        for rank in self.ranks:
            rank.process.on_death = None
            self._later(0.0, 0.5, lambda rank=rank: self._lets_go(rank, phase, number))
            self._later(0.6, 1.5, lambda rank=rank: self.cluster.machines.kill(rank.process))
        if phase is RankPhase.DONE:
            self.driver.finished = True

    def _lets_go(self, rank: FakeRank, phase: RankPhase, number: int) -> None:
        """As the real session: it says that it has left when its lock is free, not before."""
        self.cluster.machines.release(rank.process, rank.slot)
        rank.phase, rank.directive = phase, max(rank.directive, number)

    # ---- parking

    def _park(self, order: JobDirective) -> None:
        self.done = order.number
        if self.driver.refuses_to_park:
            for rank in self.ranks:
                rank.directive = order.number
            self._later(0.1, 0.3, lambda epoch=self.lease.epoch: self._safe_point(epoch))
            return
        for rank in self.ranks:
            self._later(0.05, 1.0, lambda rank=rank: self._vacate(rank, order.number))
        self._later(0.2, 0.3, self._gate)

    def _vacate(self, rank: FakeRank, number: int) -> None:
        if rank.process.alive and not self.over:
            self.cluster.machines.release(rank.process, rank.slot)
            rank.phase, rank.directive = RankPhase.PARKED, number

    def _gate(self) -> None:
        """What a parked gang waits for."""
        if self.over or self.hangs:
            return
        order = self._pending()
        if order is None or any(rank.phase is not RankPhase.PARKED for rank in self.ranks):
            self._later(0.1, 0.2, self._gate)
            return
        if order.want is DesiredState.RUN and order.lease is not None:
            self.done, self.lease = order.number, order.lease
            for rank in self.ranks:
                rank.phase, rank.directive = RankPhase.RESUMING, order.number
                self._later(0.05, 1.0, lambda rank=rank: self._take(rank, self.lease.epoch))
        elif order.want is DesiredState.PARK:
            self.done = order.number
            for rank in self.ranks:
                rank.directive = order.number
            self._later(0.1, 0.2, self._gate)
        else:
            self._publish(order)

    # ---- talking

    def _beats(self, rank: FakeRank) -> None:
        if not rank.process.alive:
            return
        refused = self.driver.why_not_park if self.driver.refuses_to_park and rank.phase is RankPhase.RUNNING else ""
        report = RankReport(
            job=self.driver.job,
            incarnation=self.driver.incarnation,
            rank=rank.number,
            world=len(self.ranks),
            node=rank.slot.rpartition(":")[0],
            pid=rank.process.pid,
            lease_epoch=rank.lease_epoch,
            directive=rank.directive,
            phase=rank.phase,
            step=self.driver.step,
            durable_step=self.driver.durable,
            step_s=0.2,
            lost_steps=self.lost_steps,
            commit_error="no space left on device" if self.driver.no_space else "",
            park_refused=refused if self.heard is not None and self.heard.want is DesiredState.PARK else "",
        )

        def answered(directive: JobDirective | None) -> None:
            if directive is not None and rank.number == 0:
                self.heard = directive
            if directive is not None and not rank.begun and directive.want in (DesiredState.STOP, DesiredState.CANCEL):
                rank.phase, rank.directive = RankPhase.STOPPED, max(rank.directive, directive.number)
            self._later(0.1, 0.3, lambda: self._beats(rank))

        self.cluster.link.call(lambda arbiter: arbiter.report_rank(report), answered)


class FakeDriver:
    """One submission of a job, from its driver's start to its end."""

    def __init__(
        self, cluster: FakeCluster, random: Random, job: str, incarnation: str, *, total: int, step: int = 0
    ) -> None:
        self.cluster, self.random = cluster, random
        self.job, self.incarnation, self.total = job, incarnation, total
        self.step = self.durable = step
        self.lost_steps = 0  # of the gang before, which the next one has to run again
        self.finished = False
        self.cancelled = False
        self.alive = True
        self.gang: FakeGang | None = None
        self.gang_epoch = 0
        self.failures = 0
        self.failed_epoch = 0
        self.refuses_to_park = False
        self.why_not_park = "says no"
        self.never_steps = False  # its gangs start and never finish a step
        self.poison = False  # a rank dies at the first safe point of every gang
        self.commit_s = (0.1, 2.0)  # to publish a checkpoint
        self.no_space = False  # nothing can be published
        self.published = [step]  # steps of the checkpoints that are kept
        self.repeated = 0  # finished steps that were lost, of all gangs
        self.was_corrupted = False
        self.start_s = (1.0, 8.0)  # of a rank
        self._beats()

    def publish(self, *, full: bool = True) -> bool:
        """A checkpoint of the present step; says whether it came about. ``full``: not if there is no space."""
        if full and self.no_space:
            return False
        self.durable = self.step
        self.published = [*self.published[-1:], self.step]
        return True

    def corrupt(self) -> bool:
        """The newest checkpoint cannot be read any more; the next gang falls back to the one before. Says if so."""
        if len(self.published) < 2:
            return False
        self.published.pop()
        self.was_corrupted = True
        self.durable = self.published[-1]
        if self.gang is None:
            self._fall_back()
        return True

    def _fall_back(self) -> None:
        """The next gang runs what no checkpoint has."""
        self.lost_steps, self.step = self.step - self.durable, self.durable
        self.repeated += self.lost_steps

    def kill(self) -> None:
        """SIGKILL of the driver: Ray takes its workers with it, a moment later."""
        self.alive = False
        gang = self.gang
        if gang is not None:
            gang.over = True
            self.cluster.clock.call_later(self.random.uniform(0.0, 1.0), gang.kill)

    def _beats(self) -> None:
        if not self.alive:
            return
        if self.gang is not None and not self.gang.alive():
            if not self.gang.left:
                self.failures += 1
                self.failed_epoch = self.gang.gang_epoch
            self.gang = None
            if not self.finished:
                self._fall_back()
        if self.gang is None and (self.finished or self.cancelled):
            outcome = "finished" if self.finished else "cancelled"
            self.cluster.link.call(
                lambda arbiter: arbiter.job_ended(self.job, self.incarnation, outcome, ""), lambda _: None
            )
            self.alive = False
            return
        phase = ControllerPhase.GANG if self.gang is not None else ControllerPhase.NO_GANG
        report = ControllerReport(
            self.job,
            self.incarnation,
            phase,
            self.gang_epoch,
            self.failures,
            durable_step=self.durable,
            log_tail="Traceback: it is hopeless" if self.failures else "",
            failed_epoch=self.failed_epoch,
        )
        self.cluster.link.call(lambda arbiter: arbiter.report_controller(report), self._answered)

    def _answered(self, orders: ControllerOrders | None) -> None:
        if orders is not None and self.alive:
            self.cancelled = self.cancelled or orders.cancelled
            if orders.kill_gang and self.gang is not None:
                self.gang.left = self.gang.left or orders.not_failed
                self.gang.kill()
            lease = orders.lease
            if self.gang is None and lease is not None and not self.cancelled and lease.epoch > self.gang_epoch:
                self.gang_epoch = lease.epoch
                self.gang = FakeGang(self, lease)
        self.cluster.clock.call_later(self.random.uniform(0.2, 0.4), self._beats)
