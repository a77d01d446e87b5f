"""Parking in place: a gang vacates its slots, waits without them, and comes back to where it was.

While it is parked the gang has no process group; rank 0 alone listens, and the others follow its word (see ``word``).
"""

import time
from collections.abc import Mapping
from functools import partial

import torch

from ebbtide.client.messages import JobDirective, RankPhase, Want
from ebbtide.snapshot.evict import Evicted
from ebbtide_train.session.commit import give_up, rng_states, version
from ebbtide_train.session.durability import RETRY_S
from ebbtide_train.session.errors import GangBroken
from ebbtide_train.session.group import Group
from ebbtide_train.session.meeting import folder_of
from ebbtide_train.session.member import Member
from ebbtide_train.session.tracked import mapped
from ebbtide_train.session.word import POLL_S, wait_for_word, write_word


def park(member: Member, number: int) -> Want:
    """Step aside in place and wait; gives what is wanted then: RUN, and the gang is back, or that it shall leave.

    Also RUN if a rank cannot park; the arbiter is told why.

    Raises:
        GangBroken: the ranks came back at different steps; or, on the first, what it holds can never be committed.
    """
    group, settings = member.group, member.settings
    assert member.tracked is not None and member.prepared is not None
    member.durability.wait_for_spill()
    refusals = group.gather_text(member.occupancy.refusal(member.tracked))
    if any(refusals):
        why = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(refusals) if text)
        member.carried_out(number, 0, park_refused=why)
        return Want.RUN
    states = rng_states(member)
    # Before, since objects may make tensors whenever they are asked for their state: those are not away afterwards.
    state = member.tracked.state() if settings.rank == 0 else {}
    evicted = member.occupancy.vacate(member.prepared, member.tracked)
    state = mapped(state, partial(_where_it_is, evicted))
    member.parks += 1
    member.orders.carried_out(number, 0)
    member.say(RankPhase.PARKED)
    path = folder_of(settings) / f"word-{settings.lease.epoch}-{member.parks}.json"
    if settings.rank == 0:
        word = _wait_parked(member, {**state, "rng": states})
        write_word(path, word)
    else:
        word = wait_for_word(path)
    member.orders.carried_out(word.number, 0)
    if word.want is not Want.RUN:
        return word.want
    assert word.lease is not None
    member.orders.carried_out(word.number, word.lease.epoch)
    member.say(RankPhase.RESUMING)
    group = member.occupancy.come_back(evicted, member.prepared, word.lease)
    _check_together(group, member.finished)
    path.unlink(missing_ok=True)  # every rank has read it
    member.say(RankPhase.RUNNING)
    return Want.RUN


def _where_it_is(evicted: Evicted, tensor: torch.Tensor) -> torch.Tensor:
    """In the host pool; or a copy of one that stayed: made by a `state_dict`, or in the state of a scheduler."""
    try:
        return evicted.in_pool(tensor)
    except KeyError:
        return tensor.detach().to("cpu", copy=True)


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
        if durability.hopeless:
            give_up(member, durability.hopeless)
        if durability.due_again(parked):
            durability.begin(state, parked, spill=True)
        word = orders.pending(member.gate)
        if word is None:
            time.sleep(POLL_S)
        elif word.want is Want.PARK:
            orders.carried_out(word.number, 0)
            member.say(RankPhase.PARKED)
        elif word.want is Want.RUN:
            return word
        else:
            durability.wait()
            while durability.write(state, parked):
                if durability.hopeless:
                    give_up(member, durability.hopeless)
                member.say(RankPhase.PARKED)  # with why not
                time.sleep(RETRY_S)  # leaving uncommitted would lose steps; whoever cannot wait kills us
            return word


def _check_together(group: Group, finished: int) -> None:
    highest, lowest = group.max_of([finished, -finished])
    if highest != -lowest:
        raise GangBroken(f"ranks came back at steps {-lowest} to {highest}")
