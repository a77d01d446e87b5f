"""What a gang does between two steps: all ranks agree on one thing and do it (see ``directives``).

They begin to agree when a step has its gradients, so that the answer is there when the step ends (decision 018): what
rank 0 hears later waits for the next safe point.

Go on, begin a checkpoint, park in place, or publish the state and leave. No rank leaves before the commit is confirmed
to all.
"""

import time
from typing import NoReturn

from ebbtide.client.messages import DesiredState, RankPhase
from ebbtide_train.session.checkpoints.durability import RETRY_S
from ebbtide_train.session.coordination.directives import Agreed
from ebbtide_train.session.errors import Cancelled, CheckpointFailed, Preempted
from ebbtide_train.session.loop.commit import checkpoint, commit
from ebbtide_train.session.loop.member import Member
from ebbtide_train.session.loop.park import park


def begin_agreement(member: Member) -> None:
    """On what this gang does at the coming safe point. All ranks call it in the same place of their steps."""
    due, durable = member.durability.due(), member.durability.step
    member.agreement = member.orders.begin(member.group, member.gate, checkpoint_due=due, durable=durable)


def safe_point(member: Member, *, last: bool) -> None:
    """Come together after a step; with ``last`` it was the job's last one, and its state is published.

    Raises:
        Preempted, Cancelled: the gang has left by order, with everything committed.
        CheckpointFailed: the job's last state could not be committed.
        GangBroken: nothing that this gang does can be committed any more; it has left its slots.
    """
    durability, orders = member.durability, member.orders
    member.say(RankPhase.RUNNING)
    agreed = _agreed(member)
    durability.step = max(durability.step, agreed.durable)
    member.occupancy.host.forget_if_durable(durability.step)  # all ranks run: they have just agreed
    if last:  # guard: the last step is committed before the job is done
        _last_commit(member)
        return
    if agreed.number <= orders.done:
        if agreed.checkpoint_due:
            checkpoint(member)
        return
    _obey(member, agreed)


def _agreed(member: Member) -> Agreed:
    """What was begun, or is begun now. Nothing of it is left afterwards: it holds the group, which a park must drop."""
    if member.agreement is None:
        begin_agreement(member)
    agreement, member.agreement = member.agreement, None
    assert agreement is not None
    return agreement()


def _obey(member: Member, agreed: Agreed) -> None:
    if agreed.want is DesiredState.RUN:
        member.carried_out(agreed.number, agreed.lease_epoch)
    elif agreed.want is DesiredState.PARK:
        want = park(member, agreed.number)
        if want is not DesiredState.RUN:
            leave(member, want)
    else:
        _stop(member, agreed.number, agreed.want)


def _stop(member: Member, number: int, want: DesiredState) -> None:
    """Publish and leave. While the commit fails the gang stays where it is, says so and tries again: leaving would
    lose steps, and so would more steps, since whoever cannot wait kills it after its grace."""
    # guard: a gang that is told to stop commits before it leaves; a commit that fails keeps the gang where it is
    while why := commit(member):
        member.note(park_refused=why)
        member.say(RankPhase.RUNNING)
        time.sleep(RETRY_S)
        agreed = member.orders.agree(member.group, member.gate, checkpoint_due=False)
        if agreed.number > number:  # guard: an order that is taken back is obeyed while commits fail
            member.note(park_refused="")
            _obey(member, agreed)
            return
    member.orders.carried_out(number, 0)
    leave(member, want)


def leave(member: Member, want: DesiredState) -> NoReturn:
    """Let go of the slots, with everything committed.

    Raises:
        Preempted, Cancelled: always.
    """
    member.occupancy.leave(member.prepared, member.tracked, drop_state=True)
    member.say(RankPhase.STOPPED)
    kind = Preempted if want is DesiredState.STOP else Cancelled
    member.left = kind(f"{member.settings.job}: left at step {member.finished} with everything committed")
    raise member.left


def _last_commit(member: Member) -> None:
    """Publish the finished state, however long the disk is full; obeys meanwhile, as at any safe point."""
    deadline_s = time.monotonic() + member.settings.last_commit_s
    while why := commit(member):
        [late] = member.group.max_of([int(member.settings.rank == 0 and time.monotonic() > deadline_s)])
        if late:
            raise CheckpointFailed(why)
        time.sleep(RETRY_S)
        agreed = member.orders.agree(member.group, member.gate, checkpoint_due=False)
        if agreed.number > member.orders.done:
            _obey(member, agreed)
