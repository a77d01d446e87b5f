"""Where a gang begins: at the one checkpoint that all its ranks see, with the job's promises unchanged."""

import time
from typing import Any

import torch

from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId
from ebbtide_train.session.checkpoints.checkpoint_ref import Ref
from ebbtide_train.session.checkpoints.checkpoint_store import STALE_S, CheckpointStore
from ebbtide_train.session.coordination.file_broadcast import POLL_S
from ebbtide_train.session.errors import BEGIN_ANEW, CheckpointMismatch, GangBroken
from ebbtide_train.session.loop.member import Member
from ebbtide_train.session.parking.leftover_regions import LeftoverRegions
from ebbtide_train.session.parking.takeover import settle, take_over
from ebbtide_train.session.state import rng
from ebbtide_train.session.state.train_state import TrainState
from ebbtide_train.session.step_log import GangLine, finished_by_last_gang, note_gang


def agree_on_start(member: Member, store: CheckpointStore, left_behind: LeftoverRegions) -> Ref | None:
    """All ranks go on from the checkpoint that rank 0 finds; rank 0 counts what was lost since.

    Before that, rank 0 makes a checkpoint of what the last gang has left parked, if it is further than any.

    Raises:
        CheckpointMismatch: nobody can tell where to go on, or the checkpoint is damaged.
        GangBroken: this rank does not see rank 0's checkpoint after a minute.
    """
    group, settings = member.group, member.settings
    epoch, step, lost = 0, 0, 0
    if group.rank == 0:  # guard: the first rank begins the gang's epoch before any rank reads
        rescued = take_over(settings, left_behind, member.tell)
        found = store.begin(settings.lease.epoch, settings.ledger)
        settle(settings, left_behind)
        epoch, step = (0, 0) if found is None else (found.epoch, found.step)
        # guard: steps that must be run again are counted
        lost = max(0, finished_by_last_gang(settings.run_dir) - step)
        nodes = tuple(slot.node for slot in settings.lease.slots)
        nccl = member.occupancy.nccl or {}
        line = GangLine(settings.lease.epoch, group.world, step, lost, time.time(), nodes, rescued, nccl)
        note_gang(settings.run_dir, line)
    epoch, step, lost = group.max_of([epoch, step, lost])
    member.note(lost_steps=lost)
    if not epoch:
        return None  # the pool's epochs begin with 1
    wanted = CheckpointId(epoch, step)
    deadline = time.monotonic() + STALE_S
    while (ref := store.ref(wanted)) is None:
        if time.monotonic() > deadline:
            if group.rank == 0:
                raise CheckpointMismatch(f"checkpoint {wanted}, from which this gang was to go on, is gone")
            raise GangBroken(f"rank 0 has opened checkpoint {wanted}, rank {group.rank} does not see it")
        time.sleep(POLL_S)
    return ref


def restore(member: Member, store: CheckpointStore, ref: Ref, tracked: TrainState) -> torch.Tensor | None:
    """Take the commit's state back; gives this rank's generators as they were then, if the gang is of the same size.

    Raises:
        CheckpointMismatch: the commit is of something else. Nothing was loaded.
    """
    settings = member.settings
    for name, here, there in (
        ("seed", settings.seed, ref.seed),
        ("global_batch", settings.global_batch, ref.global_batch),
    ):
        if here != there:  # guard: the seed of a job does not change; the global batch of a job does not change
            raise CheckpointMismatch(
                f"{name} is {here}, the committed checkpoint was made with {there}: the samples "
                f"of every step would change; set it back, or begin anew: {BEGIN_ANEW}"
            )
    state = store.load(ref, tracked.layouts(settings.world) if tracked.split else None)
    tracked.load(state)
    member.dataset_len = ref.dataset_len
    member.restored = ref.step
    member.finished = ref.step  # guard: a gang goes on with the step after the one that it restored
    member.durability.start_from(ref.step)
    states: Any = state["rng"]
    packed: torch.Tensor | None = states.get(str(settings.rank)) if ref.world == settings.world else None
    return packed


def start_rng(member: Member, packed: torch.Tensor | None) -> None:
    """At the loop's first turn, so that whatever the author drew before does not count."""
    if packed is not None:  # guard: a rank's generators go on where they were
        rng.restore(packed, member.device)
    else:
        rng.seed_rank(member.settings.seed, step=member.finished, rank=member.settings.rank)
