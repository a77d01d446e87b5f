"""How a training job would step aside: `choose` on each of its nodes, kept to what a gang can be asked to do today.

A gang leaves in one way on all its nodes. It can be asked to park in place, to publish a checkpoint and stop, or is
killed at its deadline; every other tier is named with why it is passed over. Pure; answers are remembered, since an
arbiter asks the same question ten times a second.

Not guaranteed: the estimates, see ``tier_choice``. Room on the shared directory is not looked at here: a job that
cannot publish its checkpoints says so itself, and that counts.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ebbtide.snapshot.tiers.cost_model import DEADLINE_S, REMAINDER_BYTES, RESTART_S, Choice, Facts, Tier, Wish
from ebbtide.snapshot.tiers.formatting import IN_WORDS, seconds
from ebbtide.snapshot.tiers.obstacles import Hindrance, Means, Obstacle
from ebbtide.snapshot.tiers.tier_choice import choose
from ebbtide.snapshot.tiers.transfer_rates import Lane, Rate, Rates

ASKED = (Tier.EVICT_AND_CUDA, Tier.STOP_AND_RESTART, Tier.KILL)
"""What an arbiter can have a gang do, in no order; the last is what happens at the deadline."""

NOT_ASKED = "no gang can be asked for it yet"
_AT_MOST = " (at most: by the size that its file declares; its own counts once it runs)"
_REMEMBERED = 2048  # jobs times the few questions that are asked of each in turn
_LANES = frozenset(lane.value for lane in Lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A job on one node, or a node that it could get.

    Attributes:
        workers: of the job, there.
        gpus: real ones that these workers use; 0: a machine where CPU tensors count as device memory.
        helper: whether one is there that can have the CUDA driver freeze processes.
        budget_bytes: of host memory that parked workers may have there, and others have not taken.
        host_free_bytes: that the node can still give; None: nobody said, and the budget counts alone.
        rates: measured bytes per second, by the name of their lane; unknown names are left out.
    """

    workers: int
    gpus: int = 0
    helper: bool = False
    budget_bytes: int
    host_free_bytes: int | None = None
    rates: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """The job, and what is known of the preemption.

    Attributes:
        worker_bytes: tracked state of one worker.
        measured: its ranks said so; else its file does, with a bound.
        in_place: whether its author lets it park.
        hindered: why its ranks could not park when they last looked; "": nothing is known.
        unwritten: why its last checkpoint could not be published; "": it was.
        step_s: until a safe point.
        restart_s: from "start" to the first step, the reading of the checkpoint left out.
        kill_loses_s: of work, at most; None: everything.
        expected_s: how long it will have to do without; None: nobody knows.
    """

    worker_bytes: int
    measured: bool = False
    in_place: bool = True
    hindered: str = ""
    unwritten: str = ""
    grace_s: float = DEADLINE_S
    step_s: float = 0.0
    restart_s: float = RESTART_S
    kill_loses_s: float | None = 60.0
    expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAside:
    """The answer, for all its nodes together.

    Attributes:
        tier: what it is asked first.
        fallbacks: what it is asked next, in that order; ends with a kill, unless that is all there is.
        free_s: from the decision until the last slot is free.
        resume_s: from "here are your slots" to the next step.
        restart_costs_s: how much later than from a park it trains again after a restart.
        reason: with the numbers, of the slowest node.
        rejected: every other tier and why.
    """

    tier: Tier
    fallbacks: tuple[Tier, ...]
    free_s: float
    resume_s: float
    restart_costs_s: float
    reason: str
    rejected: tuple[tuple[Tier, str], ...] = ()
    only_late: bool = False  # nothing but the grace is in the way of a park, nor does anything else hold

    @property
    def parks(self) -> bool:
        """Whether a park is worth an order; where all is too slow by reckoning, the fastest may still come in time."""
        return self.tier is Tier.EVICT_AND_CUDA or self.only_late

    @property
    def tiers(self) -> tuple[str, ...]:
        """The names of all that it can be asked, in that order."""
        return tuple(tier.value for tier in (self.tier, *self.fallbacks))

    @property
    def why_not_park(self) -> str:
        """What keeps it from parking in place; "": nothing does."""
        return dict(self.rejected).get(Tier.EVICT_AND_CUDA, "")

    @property
    def words(self) -> str:
        """One line: what it will do, and what comes next if it cannot."""
        then = f"; if it cannot: {', '.join(IN_WORDS[tier] for tier in self.fallbacks)}" if self.fallbacks else ""
        return f"{IN_WORDS[self.tier]}: {self.reason}{then}"

    @property
    def warning(self) -> str:
        """What its author should know before it matters; "": nothing."""
        if self.tier is Tier.EVICT_AND_CUDA:
            return ""
        cost = "it loses work" if self.tier is Tier.KILL else f"coming back takes about {seconds(self.resume_s)}"
        return f"it cannot park in place, {cost}: {self.why_not_park}"

    def as_json(self) -> dict[str, object]:
        """For `ebbtide status --json`; fields are only ever added."""
        return {
            "tier": self.tier.value,
            "fallbacks": [tier.value for tier in self.fallbacks],
            "free_s": round(self.free_s, 3),
            "resume_s": round(self.resume_s, 3),
            "reason": self.reason,
            "words": self.words,
            "rejected": {tier.value: why for tier, why in self.rejected},
            "warning": self.warning,
        }


@lru_cache(maxsize=_REMEMBERED)
def step_aside(asks: Asks, places: tuple[There, ...]) -> StepAside:
    """How the job leaves these nodes, at least one. Always gives an answer: the last resort is a kill."""
    assert places, "a job is on one node at least"
    wish = Wish(deadline_s=asks.grace_s, expected_s=asks.expected_s)
    choices = tuple(choose(_facts(asks, place), wish) for place in places)
    against = {tier: _against(tier, choices) for tier in Tier}
    order = sorted(
        (tier for tier in ASKED if not against[tier]),
        key=lambda tier: (_free_s(tier, choices), _resume_s(tier, choices)),  # a kill frees after its deadline: last
    )
    stop_s, park_s = _resume_s(Tier.STOP_AND_RESTART, choices), _resume_s(Tier.EVICT_AND_CUDA, choices)
    return StepAside(
        tier=order[0],
        fallbacks=tuple(order[1:]),
        free_s=_free_s(order[0], choices),
        resume_s=_resume_s(order[0], choices),
        restart_costs_s=max(0.0, stop_s - park_s),
        reason=_reason(order[0], choices) + ("" if asks.measured or order[0] is Tier.KILL else _AT_MOST),
        only_late=order[0] is Tier.KILL and _holds_in_the_end(asks, places),
        rejected=tuple((tier, why) for tier, why in against.items() if why),
    )


def _holds_in_the_end(asks: Asks, places: tuple[There, ...]) -> bool:
    """Whether nothing but time is in the way of a park."""
    patient = Wish(deadline_s=sys.maxsize)
    return not any(Tier.EVICT_AND_CUDA in choose(_facts(asks, place), patient).hindrances for place in places)


def _free_s(tier: Tier, choices: tuple[Choice, ...]) -> float:
    return max(choice.estimates[tier].free_s for choice in choices)


def _resume_s(tier: Tier, choices: tuple[Choice, ...]) -> float:
    return max(choice.estimates[tier].resume_s for choice in choices)


def _against(tier: Tier, choices: tuple[Choice, ...]) -> str:
    """All that is in a tier's way on any node, each once."""
    found = dict.fromkeys(each.what for choice in choices for each in choice.hindrances.get(tier, ()))
    return "; ".join(found) or ("" if tier in ASKED else NOT_ASKED)


def _reason(tier: Tier, choices: tuple[Choice, ...]) -> str:
    cost = max(choices, key=lambda one: one.estimates[tier].free_s).estimates[tier]
    if tier is Tier.KILL:
        return f"nothing else holds, {cost.way}"
    later = f"slots free after {seconds(cost.free_s)}, back after {seconds(_resume_s(tier, choices))}"
    return f"{cost.way}; {later}"


def _facts(asks: Asks, place: There) -> Facts:
    free = place.host_free_bytes
    return Facts(
        tracked_bytes=asks.worker_bytes * place.workers,
        remainder_bytes=REMAINDER_BYTES * place.gpus,
        host_free_bytes=place.budget_bytes if free is None else free,
        host_budget_bytes=place.budget_bytes,
        disk_free_bytes=sys.maxsize,  # see the top of the page
        gpus=place.gpus,
        safe_point_s=asks.step_s,
        restart_s=asks.restart_s,
        kill_loses_s=asks.kill_loses_s,
        rates=_rates(place.rates),
        obstacles=tuple(_obstacles(asks, place)),
    )


def _rates(said: tuple[tuple[str, float], ...]) -> Rates:
    measured: Mapping[Lane, Rate] = {
        Lane(name): Rate(speed, "measured on the node", measured=True) for name, speed in said if name in _LANES
    }
    return Rates(measured)


def _obstacles(asks: Asks, place: There) -> Iterator[Obstacle]:
    def against(means: Means, what: str, remedy: str) -> Obstacle:
        return Obstacle(frozenset({means}), Hindrance(what, remedy))

    if not asks.in_place:
        yield against(Means.EVICT, "it is told not to (in_place: false)", "remove in_place: false")
    if asks.hindered:
        yield against(Means.EVICT, f"its ranks say: {asks.hindered}", "mend what they name")
    if place.gpus and not place.helper:
        what = "no helper is there that could take what remains off its GPUs"
        yield against(Means.DRIVER, what, "start the node's helper: docs/preemption.md")
    if asks.unwritten:
        what = f"its last checkpoint could not be published: {asks.unwritten}"
        yield against(Means.STORAGE, what, "see `ebbtide doctor`: it looks at the directory")
    yield against(Means.CRIU, "its ranks are Ray workers, whose sockets no image can hold", "run it as a session")
