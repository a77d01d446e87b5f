"""Making the gang's present state the one that counts: all ranks give their part, rank 0 writes."""

import torch

from ebbtide.storage.arenas import Arenas
from ebbtide.storage.training.host_copy import HostCopies
from ebbtide_train.session import rng
from ebbtide_train.session.durability import Version
from ebbtide_train.session.member import Member

_copies = HostCopies(Arenas())  # of this process: what one copy has touched, the next one uses again


def checkpoint(member: Member) -> None:
    """Begin to publish this very state while training goes on; ``durable_step`` says when that is done."""
    states = rng_states(member)
    assert member.tracked is not None
    if member.settings.rank == 0:
        copy = _copies.stage({**member.tracked.state(), "rng": states})
        member.durability.begin(copy.state, version(member))


def commit(member: Member) -> str:
    """Checkpoint now, on all ranks together; returns why it failed, or the empty string, alike on every rank."""
    group = member.group
    assert member.tracked is not None
    states = rng_states(member)
    why = ""
    if group.rank == 0:
        why = member.durability.write({**member.tracked.state(), "rng": states}, version(member))
    why = group.gather_text(why)[0]  # no rank goes on before rank 0 has committed or given up
    if not why:
        member.durability.step = member.finished
    member.say()
    return why


def rng_states(member: Member) -> dict[str, torch.Tensor]:
    """The generators of all ranks; a collective."""
    return {str(rank): packed for rank, packed in enumerate(member.group.gather(rng.capture(member.device)))}


def version(member: Member) -> Version:
    """What a checkpoint of the present state is of."""
    return Version(member.finished, member.dataset_len)
