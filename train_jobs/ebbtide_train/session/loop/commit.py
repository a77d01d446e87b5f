"""Making the gang's present state the one that counts: all ranks give their part, rank 0 writes."""

import os
from typing import NoReturn

import torch

from ebbtide.storage.checkpoints.manager.host_staging import HostCopies
from ebbtide.storage.device.device_queue import Pinning
from ebbtide.storage.errors import StorageError
from ebbtide.storage.memory.arena_pool import Arenas
from ebbtide_train.session.checkpoints.durability import Version
from ebbtide_train.session.checkpoints.sharded_checkpoint import copied_parts, parts_of
from ebbtide_train.session.errors import GangBroken
from ebbtide_train.session.loop.member import Member
from ebbtide_train.session.state import rng

_copies: dict[int, HostCopies] = {}
"""Of this process, by its id (it may be a fork): what one copy has touched, the next one uses again."""


def checkpoint(member: Member) -> None:
    """Begin to publish this very state while training goes on; ``durable_step`` says when that is done.

    Raises:
        GangBroken: nothing that this gang does can be committed any more.
    """
    go_on_if_it_counts(member)
    assert member.tracked is not None
    states = rng_states(member)
    copies = host_copies(member.device)
    if member.tracked.split:
        beside = member.group.beside()
        parts = copied_parts({**member.tracked.state(), "rng": states}, beside, copies)
        member.durability.begin_together(beside, parts, version(member))
    elif member.settings.rank == 0:
        try:
            copy = copies.stage({**member.tracked.state(), "rng": states})
        except (MemoryError, StorageError) as error:  # guard: without a copy for a checkpoint training goes on
            member.durability.failed(error)  # training goes on; it is tried again when the next one is due
        else:
            member.durability.begin(copy.state, version(member))


def host_copies(device: torch.device) -> HostCopies:
    """Those of this process; page-locked for a GPU, since training waits for the copy from there."""
    pid = os.getpid()
    if pid not in _copies:
        _copies[pid] = HostCopies(Arenas(register=Pinning() if device.type == "cuda" else None))
    return _copies[pid]


def commit(member: Member) -> str:
    """Checkpoint now, on all ranks together; returns why it failed, or the empty string, alike on every rank.

    Raises:
        GangBroken: and it always will; the slots are left.
    """
    group = member.group
    assert member.tracked is not None
    states = rng_states(member)
    why = ""
    if member.tracked.split:
        parts = parts_of({**member.tracked.state(), "rng": states}, group)
        why = member.durability.write_together(group, parts, version(member))
    elif group.rank == 0:
        why = member.durability.write({**member.tracked.state(), "rng": states}, version(member))
    why = group.gather_text(why)[0]  # no rank goes on before rank 0 has committed or given up
    if not why:
        member.durability.step = member.finished
    member.say()
    if why:  # guard: a gang whose commits can never count leaves when it is told to stop
        go_on_if_it_counts(member)
    return why


def go_on_if_it_counts(member: Member) -> None:
    """All ranks go on only if what they do may still be committed; a collective.

    Raises:
        GangBroken: it cannot, on all ranks alike; see `give_up`.
    """
    if why := member.group.gather_text(member.durability.hopeless)[0]:
        give_up(member, why)


def give_up(member: Member, why: str) -> NoReturn:
    """Leave the slot at once, and let whoever runs the gang hear why: nothing is gained by any further step.

    Raises:
        GangBroken: always.
    """
    member.durability.wait()
    # guard: a gang that gives up lets go of its slot's memory and lock
    member.occupancy.leave(member.prepared, member.tracked, drop_state=True)
    where = f"{member.settings.job}: left at step {member.finished}"
    raise GangBroken(f"{where}, since nothing after the last commit can count: {why}")


def rng_states(member: Member) -> dict[str, torch.Tensor]:
    """The generators of all ranks; a collective."""
    return {str(rank): packed for rank, packed in enumerate(member.group.gather(rng.capture(member.device)))}


def version(member: Member) -> Version:
    """What a checkpoint of the present state is of."""
    return Version(member.finished, member.dataset_len)
