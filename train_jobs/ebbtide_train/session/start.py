"""Where a gang begins: at the one commit that all its ranks see, with the job's promises unchanged."""

import time
from typing import Any

import torch

from ebbtide_train.session import rng
from ebbtide_train.session.checkpoint import CheckpointStore
from ebbtide_train.session.errors import CheckpointMismatch, GangBroken
from ebbtide_train.session.member import Member
from ebbtide_train.session.ref import Ref
from ebbtide_train.session.step_log import GangLine, finished_by_last_gang, note_gang
from ebbtide_train.session.tracked import Tracked
from ebbtide_train.session.word import POLL_S

_STALE_REF_S = 60.0  # attribute caches of network filesystems hold a file's old content for up to this long (nfs(5))


def agree_on_start(member: Member, store: CheckpointStore) -> Ref | None:
    """All ranks go on from the commit that rank 0 sees; rank 0 counts what was lost since.

    Raises:
        GangBroken: this rank still sees another commit after a minute.
    """
    group, settings = member.group, member.settings
    ref = store.read_ref()
    found, lost = 0, 0
    if group.rank == 0:
        found = 0 if ref is None else ref.step
        lost = max(0, finished_by_last_gang(settings.run_dir) - found)
        note_gang(settings.run_dir, GangLine(settings.lease.epoch, group.world, found, lost, time.time()))
    step, lost = group.max_of([found, lost])
    deadline = time.monotonic() + _STALE_REF_S
    while step != (0 if ref is None else ref.step):
        if time.monotonic() > deadline:
            raise GangBroken(f"rank 0 found a commit of step {step}, rank {group.rank} finds {ref}")
        time.sleep(POLL_S)
        ref = store.read_ref()
    member.note(lost_steps=lost)
    return ref


def restore(member: Member, store: CheckpointStore, ref: Ref, tracked: Tracked) -> torch.Tensor | None:
    """Take the commit's state back; gives this rank's generators as they were then, if the gang is of the same size.

    Raises:
        CheckpointMismatch: the commit is of something else. Nothing was loaded.
    """
    settings = member.settings
    for name, here, there in (
        ("seed", settings.seed, ref.seed),
        ("global_batch", settings.global_batch, ref.global_batch),
    ):
        if here != there:
            raise CheckpointMismatch(
                f"{name} is {here}, the committed checkpoint was made with {there}: the samples "
                "of every step would change; set it back, or use a new run directory"
            )
    state = store.load(ref)
    tracked.load(state)
    member.dataset_len = ref.dataset_len
    member.finished = ref.step
    member.durability.start_from(ref.step)
    states: Any = state["rng"]
    packed: torch.Tensor | None = states.get(str(settings.rank)) if ref.world == settings.world else None
    return packed


def start_rng(member: Member, packed: torch.Tensor | None) -> None:
    """At the loop's first turn, so that whatever the author drew before does not count."""
    if packed is not None:
        rng.restore(packed, member.device)
    else:
        rng.seed_rank(member.settings.seed, step=member.finished, rank=member.settings.rank)
