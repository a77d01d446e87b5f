"""The session of one rank: what an author's loop talks to.

::

    session = ebbtide_train.current_session()
    model = session.prepare(model, optimizer, scheduler)   # goes on from the last committed checkpoint
    for step in session.steps(total=1000):                 # each turn ends at a safe point
        for batch in step.batches(dataset):                # this rank's share of the job's global batch
            step.backward(loss_of(model(batch.x), batch.y))
        optimizer.step(); scheduler.step(); optimizer.zero_grad(set_to_none=True)

What happens at a safe point, ``safe_point`` says; where a gang begins, ``start``.

Guaranteed, for a deterministic model at an unchanged number of workers: losses and parameters equal, bit for bit,
those of a run that was never disturbed. Not guaranteed: that for state that nobody registered (`track`), for
generators the author made, or when ``bucket_cap_mb`` changes between runs.
"""

import os
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ebbtide.client.messages import DesiredState, RankPhase
from ebbtide.snapshot import nccl
from ebbtide.snapshot.eviction.host_memory import HostMemory, OwnMemory
from ebbtide_train.session.checkpoints.checkpoint_store import CheckpointStore, must_be_plain
from ebbtide_train.session.checkpoints.durability import Durability
from ebbtide_train.session.coordination.gate import Gate
from ebbtide_train.session.coordination.rendezvous import sweep
from ebbtide_train.session.errors import BEGIN_ANEW, CheckpointMismatch, SessionMisuse
from ebbtide_train.session.loop.member import Member
from ebbtide_train.session.loop.park import admit, look
from ebbtide_train.session.loop.safe_point import begin_agreement, leave, safe_point
from ebbtide_train.session.loop.start import agree_on_start, restore, start_rng
from ebbtide_train.session.loop.step import Step
from ebbtide_train.session.parking.device_context import DeviceContext
from ebbtide_train.session.parking.leftover_regions import LeftoverRegions, NothingLeft
from ebbtide_train.session.parking.occupancy import LockFor, NoLock, Occupancy
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.state import rng
from ebbtide_train.session.state.ddp_wrapper import DdpWrapper
from ebbtide_train.session.state.train_state import Stateful, TrainState
from ebbtide_train.session.step_log import StepLine, StepLog

# A GPU's slot falls only when this process ends. A server that is well unlinks old checkpoints in milliseconds; what is
# not removed then, the next gang removes.
SETTLE_S = 2.0


class TrainingSession:
    """One rank's session. Made by whoever runs the train function; use it through `activate`."""

    def __init__(
        self,
        settings: SessionSettings,
        gate: Gate,
        *,
        lock_for: LockFor = lambda lease, rank: NoLock(),
        store: CheckpointStore | None = None,
        memory: HostMemory | None = None,
        left_behind: LeftoverRegions | None = None,
        context: DeviceContext | None = None,
    ) -> None:
        """Nothing is taken yet.

        Args:
            settings: of this rank.
            gate: to the arbiter.
            lock_for: its slot lock under a lease.
            store: of its checkpoints.
            memory: where state is parked; by default that of this process, and it goes with it.
            left_behind: what earlier gangs have parked; only rank 0 looks.
            context: of this process on its GPU; by default nobody can take it off.
        """
        self.settings = settings
        self._left_behind = left_behind or NothingLeft()
        self._store = store or CheckpointStore(settings.run_dir, keep=settings.keep_checkpoints)
        occupancy = Occupancy(settings, lock_for, memory or OwnMemory(), context)
        self._member = Member(settings, gate, occupancy, Durability(settings, self._store))
        self._log: StepLog | None = None
        self._restored_rng: torch.Tensor | None = None
        self._mesh: DeviceMesh | None = None
        self._asked = False  # whether the author's code has asked for this session
        self._begun = False  # and run its loop
        self.total = 0  # steps that the loop runs to

    # ---- for the author ----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where this rank's model belongs."""
        return self._member.device

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self.settings.rank

    @property
    def world(self) -> int:
        """How many ranks the gang has now; another number after a restart."""
        return self.settings.world

    @property
    def finished(self) -> int:
        """Finished steps, over the whole life of the job."""
        return self._member.finished

    @property
    def restored(self) -> int:
        """Finished steps with which this gang began."""
        return self._member.restored

    def mesh(self) -> DeviceMesh:
        """All ranks of this gang in a row, to shard a model with: ``fully_shard(module, mesh=session.mesh())``.

        Call it before `prepare`, which takes the sharded model as any other. Another one after each restart.
        """
        if self._mesh is None:
            member = self._member
            if member.prepared is not None:
                raise SessionMisuse("session.mesh() came after prepare(): shard the model first, then prepare it")
            member.occupancy.form_group(member.orders.epoch, alone_too=True)
            self._mesh = init_device_mesh(self.device.type, (self.world,))
        return self._mesh

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Stateful | None = None,
        *,
        find_unused_parameters: bool = False,
        **extras: Stateful,
    ) -> DdpWrapper:
        """Restore the last committed checkpoint into these objects and wrap the model for this gang.

        ``find_unused_parameters`` is DDP's: a step may leave parameters out; that costs an exchange in each step.
        ``extras`` are further objects with ``state_dict`` and ``load_state_dict`` (an averaged model, a generator's
        holder): stored, restored and evicted like the rest.

        Raises:
            CheckpointMismatch: the checkpoint is of something else. Nothing was loaded.
            SessionMisuse: their state holds something that no checkpoint can hold.
        """
        member = self._member
        if member.prepared is not None:
            raise SessionMisuse("prepare() was called twice: give it the one model that the loop trains")
        member.note(at_session=True)
        member.say()
        tracked = TrainState(model, optimizer, scheduler, extras)
        prepared = DdpWrapper(model, unused_parameters=find_unused_parameters)
        if tracked.split and (self._mesh is None or not prepared.split):
            raise SessionMisuse("this model is split over processes: shard it by fully_shard(..., mesh=session.mesh())")
        # guard: a state that no checkpoint can hold is refused before the first step
        must_be_plain(tracked.state(), world=self.world)
        if self._mesh is None:
            member.occupancy.form_group(member.orders.epoch)
        ref = agree_on_start(member, self._store, self._left_behind)
        if ref is not None:
            self._restored_rng = restore(member, self._store, ref, tracked)
        member.occupancy.wrap(prepared, init_sync=True)
        member.tracked, member.prepared = tracked, prepared
        admit(member) if ref is not None else look(member)
        return prepared

    def steps(self, *, total: int) -> Iterator[Step]:
        """The steps that are left of ``total``; after each, a safe point. Ends with everything committed.

        Raises:
            Preempted, Cancelled: the gang leaves by order; let it pass.
            CheckpointFailed: the final checkpoint could not be committed.
        """
        member = self._member
        if member.prepared is None:
            raise SessionMisuse("call session.prepare(model, optimizer) before session.steps()")
        if (want := member.gate.begin()) is not DesiredState.RUN:
            leave(member, want)
        packed, self._restored_rng = self._restored_rng, None
        start_rng(member, packed)
        self._begun, self.total = True, total
        member.say(RankPhase.RUNNING)
        first = member.restored = member.finished
        while member.finished < total:
            started = time.perf_counter()
            step = Step(member.finished, self.settings, member.prepared, self.device, partial(begin_agreement, member))
            yield step
            self._finish(step, time.perf_counter() - started)
            del step  # its tensors must be gone when the gang parks
            if member.finished == first + 1:
                admit(member)  # optimizers make most of their state in their first step
            safe_point(member, last=member.finished >= total)

    def _finish(self, step: Step, step_s: float) -> None:
        loss, samples = step.finish()
        member, settings = self._member, self.settings
        assert member.prepared is not None
        member.prepared.end_step()
        if member.dataset_len not in (0, step.dataset_len):  # guard: the data set of a job does not change its length
            raise CheckpointMismatch(
                f"the dataset has {step.dataset_len} samples, this job began with {member.dataset_len}: the order of "
                f"samples would change; for new data begin anew: {BEGIN_ANEW}"
            )
        member.dataset_len = step.dataset_len
        assert self._log is not None
        self._log.append(
            StepLine(step.index, settings.rank, settings.world, loss.hex(), tuple(samples), time.time(), step_s)
        )
        member.finished = step.index + 1
        member.note(step_s=step_s)

    # ---- for the runner ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the slot and seed every generator alike; before the author makes a model."""
        # Read by torch at its first allocation (c10/core/impl/alloc_cpu.cpp): tensors in huge pages leave the CPU's
        # memory, and come back, several times faster (ebbtide.snapshot.eviction.host_copy).
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        settings = self.settings
        if self.device.type == "cuda" and (settings.in_place or settings.deterministic):
            for name, value in nccl.DEFAULTS.items():
                os.environ.setdefault(name, value)
        settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if settings.rank == 0:
            sweep(settings)
        self._member.say(RankPhase.STARTING)
        self._member.occupancy.take_slot(settings.lease)
        if settings.in_place:
            self._member.occupancy.rehearse()
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS: needed for reproducible results
            torch.use_deterministic_algorithms(True)
        rng.seed_job(settings.seed)
        self._log = StepLog(settings.run_dir, rank=settings.rank, lease_epoch=settings.lease.epoch)

    def asked_for(self) -> None:
        """The author's code has asked for this session."""
        self._asked = True

    def must_have_trained(self) -> None:
        """The train function has returned: it must have run the loop.

        Raises:
            SessionMisuse: it has not; the message has the lines that are missing.
        """
        if self._member.left is not None or self._begun:
            return
        what = "without its steps" if self._asked else "and never asked for its session"
        raise SessionMisuse(
            f"the train function returned {what}: nothing was trained; it needs `session = "
            "ebbtide_train.current_session()`, `model = session.prepare(model, optimizer)` and `for step in "
            "session.steps(total=N):`"
        )

    def close(self, *, returned: bool) -> None:
        """Let go of everything; with ``returned`` the train function came to its end.

        Raises:
            Leaving: the gang has left by order but the train function swallowed that and returned.
        """
        member = self._member
        if member.left is None:  # first: others may be waiting for the slot
            # guard: a slot is left before old checkpoints are removed
            member.occupancy.leave(member.prepared, member.tracked, drop_state=returned)
            if returned:
                member.say(RankPhase.DONE)
        if self._log is not None:
            self._log.close()
        member.occupancy.context.close()
        member.durability.wait(self.settings.last_commit_s)
        self._store.settle(SETTLE_S)
        self._store.close()
        if returned and member.left is not None:  # guard: a preemption that the author swallowed is raised again
            raise member.left
