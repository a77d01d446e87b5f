"""What goes wrong and when: a schedule that is a pure function of its seed.

The schedule is a sequence of rounds. A round is half a minute of actions at random moments; after it everything that
was broken is mended, and the judge looks at the pool at rest. Round ``n`` depends on the seed and on ``n`` alone, so a
run of any length begins like every other run of its seed, and a failing round can be run by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.integration.kills.processes import Role

ROUND_S = 30.0
ACTIONS = (4, 9)  # of one round, tides apart: enough to meet each other, few enough to tell afterwards who did it
PAUSE_S = (1.0, 15.0)
MACHINES = ("a", "b")

MORTAL = (
    Role.ARBITER,
    Role.REPLICA,
    Role.ENGINE,
    Role.WORKER,
    Role.GATEWAY,
    Role.DRIVER,
    Role.TRAIN_CONTROLLER,
    Role.SERVE_CONTROLLER,
    Role.AGENT,
    Role.RAYLET,
    Role.GCS_REDIS,
)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that happens ``at_s`` seconds into its round; ``values`` are plain JSON types."""

    at_s: float
    kind: str
    values: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.at_s:5.1f} s {self.kind} {dict(self.values)}"


def round_of(seed: int, number: int) -> tuple[Action, ...]:
    """The actions of one round, by time."""
    draw = Random(f"{seed}/{number}")
    actions = list(_tide(draw))
    mishaps = draw.randint(*ACTIONS)
    broken_machine = False
    for _ in range(mishaps):
        kind = draw.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
        values = _KINDS[kind][1](draw)
        takes_a_machine = kind == "power cut" or values.get("role") == Role.RAYLET.name
        if takes_a_machine and broken_machine:
            continue  # the other machine stays, or nothing that is promised could go on
        broken_machine = broken_machine or takes_a_machine
        actions.append(Action(round(draw.uniform(0.5, ROUND_S), 2), kind, values))
    return tuple(sorted(actions, key=lambda action: action.at_s))


def calm_of(seed: int, for_s: float) -> tuple[Action, ...]:
    """The actions of a stretch in which users come and nothing goes wrong, so that processes live long enough to grow.

    They come all the time, so one replica stays; a flood every half minute brings others, and takes slots from the job.
    """
    draw = Random(f"{seed}/calm")
    actions = [Action(0.0, "trickle", {"every_s": 0.5, "tokens": 20})]
    at_s = draw.uniform(1.0, ROUND_S)
    while at_s < for_s - ROUND_S:
        flood = {"count": draw.randint(8, 24), "tokens": draw.choice([100, 400])}
        actions.append(Action(round(at_s, 2), "flood", flood))
        actions.append(Action(round(at_s + draw.uniform(0.5, 5.0), 2), "hang up", {"count": draw.randint(1, 4)}))
        at_s += draw.uniform(0.5, 1.5) * ROUND_S
    return tuple(sorted(actions, key=lambda action: action.at_s))


def _tide(draw: Random) -> list[Action]:
    """Traffic of one round: it rises, sometimes floods, and sometimes ebbs before the end."""
    rise_s = draw.uniform(0.0, ROUND_S / 3)
    trickle = {"every_s": round(draw.choice([0.2, 0.5, 1.0, 2.0]), 2), "tokens": draw.choice([5, 20, 60])}
    actions = [Action(round(rise_s, 2), "trickle", trickle)]
    if draw.random() < 0.5:
        flood = {"count": draw.randint(4, 24), "tokens": draw.choice([20, 100, 400])}
        actions.append(Action(round(draw.uniform(rise_s, ROUND_S), 2), "flood", flood))
    if draw.random() < 0.5:
        actions.append(Action(round(draw.uniform(rise_s + 3.0, ROUND_S), 2), "ebb"))
    if draw.random() < 0.3:
        actions.append(Action(round(draw.uniform(rise_s, ROUND_S), 2), "hang up", {"count": draw.randint(1, 8)}))
    return actions


def _kill(draw: Random) -> dict[str, object]:
    return {"role": draw.choice(MORTAL).name}


def _pause(draw: Random) -> dict[str, object]:
    return {"role": draw.choice(MORTAL).name, "for_s": round(draw.uniform(*PAUSE_S), 1)}


def _storm(draw: Random) -> dict[str, object]:
    return {"count": draw.randint(3, 6), "gap_s": round(draw.uniform(0.3, 3.0), 1)}


def _power_cut(draw: Random) -> dict[str, object]:
    return {"machine": draw.choice(MACHINES), "back_after_s": round(draw.uniform(1.0, 15.0), 1)}


def _config(draw: Random) -> dict[str, object]:
    if draw.random() < 0.3:
        return {"rollback": True}
    return {"tokens_per_s": draw.choice([40, 50, 60]), "idle_after_s": draw.choice([1.0, 1.5, 3.0])}


def _drain(draw: Random) -> dict[str, object]:
    return {"machine": draw.choice(MACHINES), "for_s": round(draw.uniform(3.0, 20.0), 1)}


def _freeze(draw: Random) -> dict[str, object]:
    return {"for_s": round(draw.uniform(1.0, 12.0), 1)}


_KINDS: Mapping[str, tuple[float, Callable[[Random], dict[str, object]]]] = {
    "kill": (6.0, _kill),
    "pause": (3.0, _pause),
    "arbiter storm": (0.7, _storm),
    "power cut": (0.7, _power_cut),
    "config": (1.0, _config),
    "drain": (1.0, _drain),
    "freeze": (0.7, _freeze),
}
"""By name: how often, relative to the others, and how its values are drawn."""
