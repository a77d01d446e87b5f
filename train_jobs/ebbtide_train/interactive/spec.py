"""What a session is: the command, where it runs, whose it is, and when it counts as idle."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide_train.interactive.idle_detection.idle_rules import IdleRules
from ebbtide_train.interactive.idle_detection.owner_notices import Mail, Webhook

STOP_S = 10.0  # from SIGTERM to SIGKILL: what container runtimes leave by default


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """The same for every supervisor of one session."""

    name: str
    command: tuple[str, ...]
    cwd: str  # must be there on every node that it may run on
    env: Mapping[str, str] = field(default_factory=dict)  # all of it; the supervisor adds only the place on the slot
    owner: str = "unassigned"
    idle: IdleRules = field(default_factory=IdleRules)
    stop_s: float = STOP_S

    def digest(self) -> str:
        """Names the command: an image of another one is never revived in its place."""
        said = json.dumps([self.command, self.cwd])
        return hashlib.sha256(said.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What the one rank of a session's job is told."""

    spec: SessionSpec
    ways: tuple[Webhook | Mail, ...] = ()  # to tell its owner
