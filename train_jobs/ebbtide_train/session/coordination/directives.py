"""Which directives count: newer than the last one carried out, and of a lease that is not stale.

Also the agreement at a safe point: rank 0 puts what it heard into one int64 all-reduce and every rank then does the
same thing.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebbtide.client.messages import DesiredState, JobDirective
from ebbtide_train.session.coordination.gate import Gate

_CODES = {DesiredState.RUN: 0, DesiredState.PARK: 1, DesiredState.STOP: 2, DesiredState.CANCEL: 3}
_WANTS = {code: want for want, code in _CODES.items()}
_logger = logging.getLogger(__name__)


class Ranks(Protocol):
    """The part of a group that an agreement needs; the group itself would bring torch along."""

    @property
    def rank(self) -> int: ...

    def begin_max_of(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to find the largest of each value over all ranks; what is returned waits for it."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks do at this safe point."""

    number: int
    want: DesiredState
    lease_epoch: int
    checkpoint_due: bool
    durable: int = 0  # finished steps that are published, as rank 0 knows


class Directives:
    """One rank's memory of what it has carried out and of the highest lease epoch it saw."""

    def __init__(self, lease_epoch: int) -> None:
        self.done = 0  # number of the last directive carried out
        self.epoch = lease_epoch
        self._refused = 0

    def pending(self, gate: Gate) -> JobDirective | None:
        """The gate's directive if it is new and not stale."""
        directive = gate.directive()
        if (
            directive is None
            or directive.number <= self.done  # guard: an order that was carried out is not carried out again
        ):
            return None
        stale = directive.lease is not None and directive.lease.epoch < self.epoch
        if (
            stale  # guard: an order of an earlier lease is refused
            # guard: an order to run without a lease is refused
            or (directive.want is DesiredState.RUN and directive.lease is None)
        ):
            if directive.number > self._refused:
                self._refused = directive.number
                _logger.warning("refused %s: this gang has seen lease epoch %d", directive, self.epoch)
            return None
        return directive

    def agree(self, group: Ranks, gate: Gate, *, checkpoint_due: bool, durable: int = 0) -> Agreed:
        """One all-reduce; only rank 0's gate, clock and commits count."""
        return self.begin(group, gate, checkpoint_due=checkpoint_due, durable=durable)()

    def begin(self, group: Ranks, gate: Gate, *, checkpoint_due: bool, durable: int = 0) -> Callable[[], Agreed]:
        """The same, beside what this rank does next; what is returned waits for it. What is heard later, waits."""
        values = [0, 0, 0, 0]
        if group.rank == 0:
            heard = self.pending(gate)
            number, want = (self.done, DesiredState.RUN) if heard is None else (heard.number, heard.want)
            epoch = heard.lease.epoch if heard is not None and heard.lease is not None else self.epoch
            values = [number * 4 + _CODES[want], epoch, int(checkpoint_due), durable]
        found = group.begin_max_of(values)

        def agreed() -> Agreed:
            code, epoch, due, durable = found()
            return Agreed(code // 4, _WANTS[code % 4], epoch, bool(due), durable)

        return agreed

    def carried_out(self, number: int, lease_epoch: int) -> None:
        """Take note; neither ever falls."""
        self.done = max(self.done, number)
        self.epoch = max(self.epoch, lease_epoch)
