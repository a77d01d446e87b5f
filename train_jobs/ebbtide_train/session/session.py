"""The session of one rank: what an author's loop talks to.

::

    session = ebbtide_train.current_session()
    model = session.prepare(model, optimizer, scheduler)   # goes on from the last committed checkpoint
    for step in session.steps(total=1000):                 # each turn ends at a safe point
        for batch in step.batches(dataset):                # this rank's share of the job's global batch
            step.backward(loss_of(model(batch.x), batch.y))
        optimizer.step(); scheduler.step(); optimizer.zero_grad(set_to_none=True)

At a safe point all ranks agree (see ``orders``) on one of: go on, write a checkpoint, park in place, or publish a
checkpoint and leave. No rank leaves before the commit is confirmed to all.

Guaranteed, for a deterministic model at an unchanged number of workers: losses and parameters equal, bit for bit,
those of a run that was never disturbed. Not guaranteed: that for state that nobody registered (`track`), for
generators the author made, or when ``bucket_cap_mb`` changes between runs.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ebbtide.client.messages import JobDirective, RankPhase, RankReport, Want
from ebbtide.snapshot.evict import Evicted
from ebbtide_train.session import rng
from ebbtide_train.session.checkpoint import CheckpointStore
from ebbtide_train.session.durability import Durability, Version
from ebbtide_train.session.errors import (
    Cancelled,
    CheckpointFailed,
    CheckpointMismatch,
    GangBroken,
    Leaving,
    Preempted,
    SessionMisuse,
)
from ebbtide_train.session.gate import Gate
from ebbtide_train.session.group import Group
from ebbtide_train.session.meeting import folder_of, sweep
from ebbtide_train.session.occupancy import LockFor, NoLock, Occupancy
from ebbtide_train.session.orders import Agreed, Orders
from ebbtide_train.session.portable import copied
from ebbtide_train.session.prepared import Prepared
from ebbtide_train.session.ref import Ref
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.step import Step
from ebbtide_train.session.step_log import (
    GangLine,
    StepLine,
    StepLog,
    finished_by_last_gang,
    note_gang,
)
from ebbtide_train.session.tracked import Stateful, Tracked
from ebbtide_train.session.word import POLL_S, wait_for_word, write_word

_STALE_REF_S = 60.0  # attribute caches of network filesystems hold a file's old content for up to this long (nfs(5))
_RETRY_S = 1.0  # between attempts to commit when a gang must leave
_ERROR_CHARS = 300  # of a reason in a report that is sent ten times a second


class TrainingSession:
    """One rank's session. Made by whoever runs the train function; use it through `activate`."""

    def __init__(
        self,
        settings: SessionSettings,
        gate: Gate,
        *,
        lock_for: LockFor = lambda lease, rank: NoLock(),
        store: CheckpointStore | None = None,
    ) -> None:
        self.settings = settings
        self._gate = gate
        self._occupancy = Occupancy(settings, lock_for)
        self._store = store or CheckpointStore(settings.run_dir, keep=settings.keep_checkpoints)
        self._durability = Durability(settings, self._store)
        self._orders = Orders(settings.lease.epoch)
        self._log: StepLog | None = None
        self._prepared: Prepared | None = None
        self._tracked: Tracked | None = None
        self._restored_rng: dict[str, torch.Tensor] = {}
        self._dataset_len = 0
        self._parks = 0
        self._left: Leaving | None = None
        self.finished = 0  # finished steps, over the whole life of the job
        self._report = RankReport(
            job=settings.job,
            incarnation=settings.incarnation,
            rank=settings.rank,
            world=settings.world,
            node=settings.node,
            pid=os.getpid(),
            lease_epoch=settings.lease.epoch,
            directive=0,
            phase=RankPhase.STARTING,
            step=0,
            durable_step=0,
        )

    # ---- for the author ----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where this rank's model belongs."""
        return self._occupancy.device

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self.settings.rank

    @property
    def world(self) -> int:
        """How many ranks the gang has now; another number after a restart."""
        return self.settings.world

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Stateful | None = None, **extras: Stateful
    ) -> Prepared:
        """Restore the last committed checkpoint into these objects and wrap the model for this gang.

        ``extras`` are further objects with ``state_dict`` and ``load_state_dict`` (an averaged model, a generator's
        holder): stored, restored and evicted like the rest.

        Raises:
            CheckpointMismatch: the checkpoint is of something else. Nothing was loaded.
        """
        if self._prepared is not None:
            raise SessionMisuse("prepare() was called twice: give it the one model that the loop trains")
        tracked = Tracked(model, optimizer, scheduler, extras)
        group = self._occupancy.form_group(self._orders.epoch)
        ref = self._agree_on_start(group)
        if ref is not None:
            self._restore(ref, tracked)
        prepared = Prepared(model)
        self._occupancy.wrap(prepared, init_sync=True)
        self._tracked, self._prepared = tracked, prepared
        return prepared

    def steps(self, *, total: int) -> Iterator[Step]:
        """The steps that are left of ``total``; after each, a safe point. Ends with everything committed.

        Raises:
            Preempted, Cancelled: the gang leaves by order; let it pass.
            CheckpointFailed: the final checkpoint could not be committed.
        """
        if self._prepared is None:
            raise SessionMisuse("call session.prepare(model, optimizer) before session.steps()")
        self._start_rng()
        self._say(RankPhase.RUNNING)
        while self.finished < total:
            started = time.perf_counter()
            step = Step(self.finished, self.settings, self._prepared, self.device)
            yield step
            self._finish(step, time.perf_counter() - started)
            del step  # its tensors must be gone when the gang parks
            self._safe_point(last=self.finished >= total)

    # ---- for the runner ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the slot and seed every generator alike; before the author makes a model."""
        settings = self.settings
        settings.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if settings.rank == 0:
            sweep(settings)
        self._say(RankPhase.STARTING)
        self._occupancy.take_slot(settings.lease)
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS: needed for reproducible results
            torch.use_deterministic_algorithms(True)
        rng.seed_job(settings.seed)
        self._log = StepLog(settings.run_dir, rank=settings.rank, lease_epoch=settings.lease.epoch)

    def close(self, *, returned: bool) -> None:
        """Let go of everything; with ``returned`` the train function came to its end.

        Raises:
            Leaving: the gang has left by order but the train function swallowed that and returned.
        """
        self._durability.wait()
        if self._left is None:
            self._occupancy.leave(self._prepared, self._tracked, drop_state=returned)
            if returned:
                self._say(RankPhase.DONE)
        if self._log is not None:
            self._log.close()
        if returned and self._left is not None:
            raise self._left

    # ---- start -------------------------------------------------------------------------------------------------

    def _agree_on_start(self, group: Group) -> Ref | None:
        """All ranks go on from the commit that rank 0 sees; rank 0 counts what was lost since."""
        ref = self._store.read_ref()
        found, lost = 0, 0
        if group.rank == 0:
            found = 0 if ref is None else ref.step
            lost = max(0, finished_by_last_gang(self.settings.run_dir) - found)
            line = GangLine(self.settings.lease.epoch, group.world, found, lost, time.time())
            note_gang(self.settings.run_dir, line)
        step, lost = group.max_of([found, lost])
        deadline = time.monotonic() + _STALE_REF_S
        while step != (0 if ref is None else ref.step):
            if time.monotonic() > deadline:
                raise GangBroken(f"rank 0 found a commit of step {step}, rank {group.rank} finds {ref}")
            time.sleep(POLL_S)
            ref = self._store.read_ref()
        self._report = replace(self._report, lost_steps=lost)
        return ref

    def _restore(self, ref: Ref, tracked: Tracked) -> None:
        settings = self.settings
        for name, here, there in (
            ("seed", settings.seed, ref.seed),
            ("global_batch", settings.global_batch, ref.global_batch),
        ):
            if here != there:
                raise CheckpointMismatch(
                    f"{name} is {here}, the committed checkpoint was made with {there}: the samples "
                    "of every step would change; set it back, or use a new run directory"
                )
        state = self._store.load(ref)
        tracked.load(state)
        states: Any = state["rng"]
        self._restored_rng = states if ref.world == settings.world else {}
        self._dataset_len = ref.dataset_len
        self.finished = ref.step
        self._durability.start_from(ref.step)

    def _start_rng(self) -> None:
        """At the loop's first turn: whatever the author drew before does not count."""
        packed = self._restored_rng.pop(str(self.rank), None)
        if packed is not None:
            rng.restore(packed, self.device)
        else:
            rng.seed_rank(self.settings.seed, step=self.finished, rank=self.rank)
        self._restored_rng = {}

    # ---- safe points -------------------------------------------------------------------------------------------

    def _finish(self, step: Step, step_s: float) -> None:
        loss, samples = step.finish()
        if self._dataset_len not in (0, step.dataset_len):
            raise CheckpointMismatch(
                f"the dataset has {step.dataset_len} samples, this job began with {self._dataset_len}: the order of "
                "samples would change; use a new run directory for new data"
            )
        self._dataset_len = step.dataset_len
        assert self._log is not None
        settings = self.settings
        self._log.append(
            StepLine(step.index, settings.rank, settings.world, loss.hex(), tuple(samples), time.time(), step_s)
        )
        self.finished = step.index + 1
        self._report = replace(self._report, step_s=step_s)

    def _safe_point(self, *, last: bool) -> None:
        group = self._group()
        self._say(RankPhase.RUNNING)
        due, durable = self._durability.due(), self._durability.step
        agreed = self._orders.agree(group, self._gate, checkpoint_due=due, durable=durable)
        self._durability.step = max(self._durability.step, agreed.durable)
        if last:
            self._last_commit()
            return
        if agreed.number <= self._orders.done:
            if agreed.checkpoint_due:
                self._checkpoint()
            return
        self._obey(agreed)

    def _obey(self, agreed: Agreed) -> None:
        if agreed.want is Want.RUN:
            self._carried_out(agreed.number, agreed.lease_epoch)
        elif agreed.want is Want.PARK:
            self._park(agreed.number)
        else:
            self._stop(agreed.number, agreed.want)

    def _park(self, number: int) -> None:
        """Step aside in place, wait, and come back or leave."""
        group = self._group()
        assert self._tracked is not None and self._prepared is not None
        self._durability.wait()  # a spill may still read the host pool
        refusals = group.gather_text(self._occupancy.refusal(self._tracked))
        if any(refusals):
            why = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(refusals) if text)
            self._carried_out(number, 0, park_refused=why)
            return
        states = self._rng_states(group)
        evicted = self._occupancy.vacate(self._prepared, self._tracked)
        self._parks += 1
        self._orders.carried_out(number, 0)
        self._say(RankPhase.PARKED)
        path = folder_of(self.settings) / f"word-{self.settings.lease.epoch}-{self._parks}.json"
        if self.rank == 0:
            word = self._wait_parked(evicted, states)
            write_word(path, word)
        else:
            word = wait_for_word(path)
        self._orders.carried_out(word.number, 0)
        if word.want is not Want.RUN:
            self._leave(word.want)
        assert word.lease is not None
        self._orders.carried_out(word.number, word.lease.epoch)
        self._say(RankPhase.RESUMING)
        group = self._occupancy.come_back(evicted, self._prepared, word.lease)
        self._check_together(group)
        path.unlink(missing_ok=True)  # every rank has read it
        self._say(RankPhase.RUNNING)

    def _wait_parked(self, evicted: Evicted, states: dict[str, torch.Tensor]) -> JobDirective:
        """Rank 0: spill, and listen until the gang shall do something else than stay parked."""
        assert self._tracked is not None
        state = {**self._tracked.state(evicted.in_pool), "rng": states}
        version = self._version()
        told = self._durability.step, self._durability.error
        self._durability.begin(state, version)
        while True:
            if (now := (self._durability.step, self._durability.error)) != told:
                told = now
                self._say(RankPhase.PARKED)
            if self._durability.due_again(version):
                self._durability.begin(state, version)
            word = self._orders.pending(self._gate)
            if word is None:
                time.sleep(POLL_S)
            elif word.want is Want.PARK:
                self._orders.carried_out(word.number, 0)
                self._say(RankPhase.PARKED)
            elif word.want is Want.RUN:
                return word
            else:
                self._durability.wait()
                while self._durability.write(state, version):
                    time.sleep(_RETRY_S)  # leaving uncommitted would lose steps; whoever cannot wait kills us
                return word

    def _stop(self, number: int, want: Want) -> None:
        """Publish and leave. While the commit fails the gang stays where it is, says so and tries again: leaving would
        lose steps, and so would more steps, since whoever cannot wait kills it after its grace."""
        while why := self._commit():
            self._report = replace(self._report, park_refused=why)
            self._say(RankPhase.RUNNING)
            time.sleep(_RETRY_S)
            agreed = self._orders.agree(self._group(), self._gate, checkpoint_due=False)
            if agreed.number > number:
                self._report = replace(self._report, park_refused="")
                self._obey(agreed)
                return
        self._orders.carried_out(number, 0)
        self._leave(want)

    def _leave(self, want: Want) -> None:
        self._occupancy.leave(self._prepared, self._tracked, drop_state=True)
        self._say(RankPhase.STOPPED)
        kind = Preempted if want is Want.STOP else Cancelled
        self._left = kind(f"{self.settings.job}: left at step {self.finished} with everything committed")
        raise self._left

    def _last_commit(self) -> None:
        """Publish the finished state, however long the disk is full; obeys meanwhile, as at any safe point."""
        deadline_s = time.monotonic() + self.settings.last_commit_s
        while why := self._commit():
            [late] = self._group().max_of([int(self.rank == 0 and time.monotonic() > deadline_s)])
            if late:
                raise CheckpointFailed(why)
            time.sleep(_RETRY_S)
            agreed = self._orders.agree(self._group(), self._gate, checkpoint_due=False)
            if agreed.number > self._orders.done:
                self._obey(agreed)

    def _checkpoint(self) -> None:
        """Begin to publish this very state while training goes on; ``durable_step`` says when that is done."""
        states = self._rng_states(self._group())
        assert self._tracked is not None
        if self.rank == 0:
            self._durability.begin(copied({**self._tracked.state(), "rng": states}), self._version())

    def _commit(self) -> str:
        """Checkpoint now, on all ranks together; returns why it failed, or the empty string, alike on every rank."""
        group = self._group()
        assert self._tracked is not None
        states = self._rng_states(group)
        why = ""
        if group.rank == 0:
            why = self._durability.write({**self._tracked.state(), "rng": states}, self._version())
        why = group.gather_text(why)[0]  # no rank goes on before rank 0 has committed or given up
        if not why:
            self._durability.step = self.finished
        self._say(self._report.phase)
        return why

    def _rng_states(self, group: Group) -> dict[str, torch.Tensor]:
        return {str(rank): packed for rank, packed in enumerate(group.gather(rng.capture(self.device)))}

    def _version(self) -> Version:
        return Version(self.finished, self._orders.epoch, self._dataset_len)

    def _check_together(self, group: Group) -> None:
        highest, lowest = group.max_of([self.finished, -self.finished])
        if highest != -lowest:
            raise GangBroken(f"ranks came back at steps {-lowest} to {highest}")

    def _group(self) -> Group:
        assert self._occupancy.group is not None, "a safe point needs the gang's group"
        return self._occupancy.group

    def _carried_out(self, number: int, lease_epoch: int, *, park_refused: str = "") -> None:
        self._orders.carried_out(number, lease_epoch)
        self._report = replace(self._report, park_refused=park_refused)
        self._say(RankPhase.RUNNING)

    def _say(self, phase: RankPhase) -> None:
        self._report = replace(
            self._report,
            phase=phase,
            step=self.finished,
            durable_step=self._durability.step,
            commit_error=self._durability.error[:_ERROR_CHARS],
            directive=self._orders.done,
            lease_epoch=self._orders.epoch,
        )
        self._gate.report(self._report)
