"""A live run beside what the simulator says of it: GPU-seconds by use, preemptions, what users waited. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide_simulator.model.meter import Use

GROUPS: Mapping[str, Sequence[Use]] = {
    "training": (Use.TRAINING, Use.LOST),
    "serving": (Use.READY, Use.DRAINING),
    "switching": (Use.STARTING, Use.LOADING, Use.SAVING),
    "idle": (Use.FREE, Use.DOWN),
}
"""As the demo has them."""
WORTH = 0.10  # of the pool's GPU-seconds: a use with less, in both, is told and not judged
USE_WITHIN, PREEMPTIONS_WITHIN, TTFT_WITHIN = 0.10, 1, 0.20  # as the issue sets them


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one window, live or simulated."""

    slot_s: Mapping[Use, float]
    preemptions: int
    ttft_p50_s: float
    ttft_p99_s: float

    def use_s(self) -> dict[str, float]:
        """By the groups of uses."""
        return {name: sum(self.slot_s.get(use, 0.0) for use in uses) for name, uses in GROUPS.items()}


def beside(live: Figures, simulated: Figures) -> dict[str, Any]:
    """Both, and how far the simulator is off.

    A use is off by its difference relative to itself, live (``of_itself``, which is judged), and relative to all
    GPU-seconds of the pool (``of_pool``).
    """
    was, now = live.use_s(), simulated.use_s()
    pool_s = sum(was.values())
    uses = {
        name: {
            "live": was[name],
            "simulated": now[name],
            "of_itself": now[name] / was[name] - 1.0 if was[name] else None,
            "of_pool": (now[name] - was[name]) / pool_s,
            "judged": max(was[name], now[name]) >= WORTH * pool_s,
        }
        for name in GROUPS
    }
    return {
        "uses": uses,
        "finer": {
            use.value: {"live": live.slot_s.get(use, 0.0), "simulated": simulated.slot_s.get(use, 0.0)}
            for use in Use
            if live.slot_s.get(use) or simulated.slot_s.get(use)
        },
        "preemptions": {"live": live.preemptions, "simulated": simulated.preemptions},
        "ttft_p50_s": _pair(live.ttft_p50_s, simulated.ttft_p50_s),
        "ttft_p99_s": _pair(live.ttft_p99_s, simulated.ttft_p99_s),
    }


def _pair(was: float, now: float) -> dict[str, float]:
    return {"live": was, "simulated": now, "off": now / was - 1.0}


def bars(checked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of the windows that nothing was calibrated on: the worst of them counts."""
    found = {
        "fidelity_gpu_s": (max(map(_use_off, checked.values())), USE_WITHIN),
        "fidelity_preemptions": (max(map(_preemptions_off, checked.values())), PREEMPTIONS_WITHIN),
        "fidelity_ttft_p50": (max(abs(one["ttft_p50_s"]["off"]) for one in checked.values()), TTFT_WITHIN),
    }
    return {name: {"value": value, "at_most": most, "met": value <= most} for name, (value, most) in found.items()}


def _use_off(one: Mapping[str, Any]) -> float:
    """A use that was not there at all is off by all of itself."""
    return max(
        1.0 if use["of_itself"] is None else abs(use["of_itself"]) for use in one["uses"].values() if use["judged"]
    )


def _preemptions_off(one: Mapping[str, Any]) -> int:
    return abs(int(one["preemptions"]["simulated"]) - int(one["preemptions"]["live"]))
