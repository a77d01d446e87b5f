"""Parking in place: a gang vacates its slots, waits without them, and comes back to where it was.

All ranks agree twice before any of them gives something up: that each of them can, and that each of them has a copy of
everything in host memory. Only then the slots are freed. What one rank cannot do, none does, and the gang runs on.

While it is parked the gang has no process group; rank 0 alone listens, and the others follow its word (see
``file_broadcast``).
"""

import json
import logging
import time
from collections.abc import Mapping

import torch

from ebbtide.client.messages import DesiredState, JobDirective, RankPhase
from ebbtide.snapshot.errors import NotEvictable
from ebbtide_train.session.checkpoints import author_saves
from ebbtide_train.session.checkpoints.durability import RETRY_S
from ebbtide_train.session.coordination.file_broadcast import POLL_S, broadcast, wait_for_broadcast
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.coordination.rendezvous import folder_of
from ebbtide_train.session.errors import GangBroken
from ebbtide_train.session.loop.commit import give_up, rng_states, version
from ebbtide_train.session.loop.member import Member
from ebbtide_train.session.parking.host_checkpoint import Owner, Portable
from ebbtide_train.session.state import rng

KEEPER = 0  # the rank whose host memory holds the state of the whole gang, since that is replicated

_logger = logging.getLogger(__name__)


def admit(member: Member) -> None:
    """Have the host memory lent that a park will need; not only when the slot is wanted. Nothing fails here.

    What is tracked, and what would be in the way, goes into this rank's reports.
    """
    assert member.tracked is not None
    member.note(tracked_bytes=member.tracked.size_bytes())
    if not member.settings.in_place:
        return
    own = rng.capture(member.device)  # as long as that of any other rank
    states = {str(rank): own for rank in range(member.settings.world)}
    _, why = _ask(member, states)
    member.hindered(why)
    if why:
        _logger.warning("rank %d of %s could not park in place now: %s", member.settings.rank, member.settings.job, why)


def look(member: Member) -> None:
    """Report what would keep this rank from parking in place, before it is known how much memory that would take."""
    assert member.tracked is not None
    if member.settings.in_place:
        member.hindered(member.occupancy.hindrance(member.tracked))


def park(member: Member, number: int) -> DesiredState:
    """Step aside in place and wait; gives what is wanted then: RUN, and the gang is back, or that it shall leave.

    Also RUN if a rank cannot park; the arbiter is told why.

    Raises:
        GangBroken: the ranks came back at different steps; or, on the first, what it holds can never be committed.
    """
    settings = member.settings
    assert member.tracked is not None and member.prepared is not None
    member.durability.wait_for_spill()  # guard: a park waits for the spill before it, which reads the same memory
    state, why = _copy_out(member)
    member.hindered(why)
    if why:  # guard: if one rank cannot park none does
        member.carried_out(number, 0, park_refused=why)
        return DesiredState.RUN
    member.occupancy.vacate(member.prepared)
    member.parks += 1
    member.orders.carried_out(number, 0)
    member.say(RankPhase.PARKED)
    path = folder_of(settings) / f"word-{settings.lease.epoch}-{member.parks}.json"
    if settings.rank == KEEPER:
        member.occupancy.host.hash_in_background()  # of the others' nobody but themselves could make anything
        word = _wait_parked(member, state)
        broadcast(path, word)
    else:
        word = wait_for_broadcast(path)
    member.orders.carried_out(word.number, 0)
    if word.want is not DesiredState.RUN:
        return word.want
    assert word.lease is not None
    member.orders.carried_out(word.number, word.lease.epoch)
    member.say(RankPhase.RESUMING)
    group = member.occupancy.come_back(member.prepared, word.lease)
    _check_together(group, member.finished)
    path.unlink(missing_ok=True)  # every rank has read it
    member.say(RankPhase.RUNNING)
    return DesiredState.RUN


def _copy_out(member: Member) -> tuple[dict[str, object], str]:
    """Copy everything to host memory, on all ranks or on none that matters; nothing is freed.

    Returns:
        The keeper's state, as it lies there; and, alike on every rank, why the gang cannot park, or nothing.
    """
    tracked, group = member.tracked, member.group
    assert tracked is not None
    saving = author_saves.wait_for_them()
    # Asked for before anything leaves, since objects may look into their tensors when they are asked for their state.
    portable, why = _ask(member, rng_states(member))
    why = saving or why
    if refused := _together(group, why):
        return {}, refused
    note = json.dumps({"job": member.settings.job, "rank": group.rank, "step": member.finished}).encode()
    state, why = member.occupancy.copy_out(tracked, portable, note, step=member.finished)
    if refused := _together(group, why):
        member.occupancy.host.forget()
        return {}, refused
    return state, ""


def _ask(member: Member, states: Mapping[str, torch.Tensor]) -> tuple[Portable | None, str]:
    """The state that this rank would keep for the gang, if it is the one; and why it cannot park, or nothing."""
    settings, tracked = member.settings, member.tracked
    assert tracked is not None
    if why := member.occupancy.hindrance(tracked):
        return None, why
    portable = None
    if settings.rank == KEEPER:
        owner = Owner(settings.job, settings.ledger, settings.lease.epoch)
        try:
            portable = Portable({**tracked.state(), "rng": states}, owner, member.durability.ref(version(member)))
        except NotEvictable as error:
            return None, str(error)
    return portable, member.occupancy.refusal(tracked, portable)


def _together(group: Group, why: str) -> str:
    """What stands in the way of any rank; alike on every rank."""
    texts = group.gather_text(why)
    return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts) if text)


def _wait_parked(member: Member, state: Mapping[str, object]) -> JobDirective:
    """Rank 0: spill, and listen until the gang shall do something else than stay parked."""
    durability, orders = member.durability, member.orders
    parked = version(member)
    told = durability.step, durability.error
    durability.begin(state, parked, spill=True)
    while True:
        if (now := (durability.step, durability.error)) != told:
            told = now
            member.say(RankPhase.PARKED)
        if durability.hopeless:  # guard: a gang whose commits can never count leaves while it is parked
            give_up(member, durability.hopeless)
        if durability.due_again(parked):
            durability.begin(state, parked, spill=True)
        word = orders.pending(member.gate)
        if word is None:
            time.sleep(POLL_S)
        elif word.want is DesiredState.PARK:
            orders.carried_out(word.number, 0)
            member.say(RankPhase.PARKED)
        elif word.want is DesiredState.RUN:
            return word
        else:
            durability.wait()
            # guard: a parked gang that is told to leave commits first
            while durability.write(state, parked):
                if durability.hopeless:
                    give_up(member, durability.hopeless)
                member.say(RankPhase.PARKED)  # with why not
                time.sleep(RETRY_S)  # leaving uncommitted would lose steps; whoever cannot wait kills us
            return word


def _check_together(group: Group, finished: int) -> None:
    highest, lowest = group.max_of([finished, -finished])
    if highest != -lowest:  # guard: ranks that come back at different steps go no further
        raise GangBroken(f"ranks came back at steps {-lowest} to {highest}")
