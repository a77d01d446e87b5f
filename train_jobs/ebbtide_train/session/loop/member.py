"""One member of a gang: what a rank's session is made of, where it stands, and what it says of itself.

The session and its safe points share this; it decides nothing.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ebbtide.client.messages import RankPhase, RankReport
from ebbtide_train.session.checkpoints.durability import Durability
from ebbtide_train.session.coordination.directives import Agreed, Directives
from ebbtide_train.session.coordination.gate import Gate
from ebbtide_train.session.coordination.process_group import Group
from ebbtide_train.session.errors import Leaving
from ebbtide_train.session.parking.occupancy import Occupancy
from ebbtide_train.session.settings import SessionSettings
from ebbtide_train.session.state.ddp_wrapper import DdpWrapper
from ebbtide_train.session.state.train_state import TrainState

_ERROR_CHARS = 300  # of a reason in a report that is sent ten times a second


class Member:
    """The parts and the progress of one rank."""

    def __init__(self, settings: SessionSettings, gate: Gate, occupancy: Occupancy, durability: Durability) -> None:
        self.settings = settings
        self.gate = gate
        self.occupancy = occupancy
        self.durability = durability
        self.orders = Directives(settings.lease.epoch)
        self.prepared: DdpWrapper | None = None  # until the author has called prepare()
        self.tracked: TrainState | None = None
        self.finished = 0  # finished steps, over the whole life of the job
        self.restored = 0  # of these, with which this gang began
        self.dataset_len = 0  # 0: not known yet
        self.parks = 0  # of this gang, in place
        self.left: Leaving | None = None  # once the gang has left by order
        self.agreement: Callable[[], Agreed] | None = None  # of the coming safe point, once it has begun
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

    @property
    def device(self) -> torch.device:
        """Where this rank's model belongs."""
        return self.occupancy.device

    @property
    def group(self) -> Group:
        """The gang's group, which there is from ``prepare`` on, but not while it is parked."""
        assert self.occupancy.group is not None, "a safe point needs the gang's group"
        return self.occupancy.group

    def note(self, **changed: Any) -> None:
        """Change fields of the report; it goes out with the next `say`."""
        self._report = replace(self._report, **changed)

    def say(self, phase: RankPhase | None = None) -> None:
        """Report where this rank stands, in ``phase`` or in the one it is in."""
        self._report = replace(
            self._report,
            phase=self._report.phase if phase is None else phase,
            step=self.finished,
            durable_step=self.durability.step,
            commit_error=self.durability.error[:_ERROR_CHARS],
            directive=self.orders.done,
            lease_epoch=self.orders.epoch,
        )
        self.gate.report(self._report)

    def tell(self, why: str) -> None:
        """Say why something cannot be published at the moment."""
        self.durability.error = why
        self.say()

    def hindered(self, why: str) -> None:
        """Note what keeps this rank, or its gang, from parking in place; "": nothing does."""
        self.note(in_place_hindered=why[:_ERROR_CHARS])

    def carried_out(self, number: int, lease_epoch: int, *, park_refused: str = "") -> None:
        """A directive is done, or refused for that reason, and training goes on."""
        self.orders.carried_out(number, lease_epoch)
        self.note(park_refused=park_refused)
        self.say(RankPhase.RUNNING)
