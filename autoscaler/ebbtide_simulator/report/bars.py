"""What our policy is held to, on whatever it is simulated with. Pure."""

from collections.abc import Mapping
from typing import Any

from ebbtide_simulator.policies.contenders import LYRA, ORACLE, OURS, STATIC

# The goals that this project set itself before it measured: shares of requests, of foresight's or static's training,
# and of the pool.
SLO = 0.995
SLO_BEHIND_STATIC = 0.001
VS_ORACLE = 0.90
VS_STATIC_FLAT = 1.0  # where demand never ebbs there is nothing to lend: then no worse than static is all there is
WASTE = 0.02
# Set for the week at 512, where perfect foresight trains 3.59 times as much (results/policy/512-week.json). In
# shallower tides less can be had: the bar is then VS_ORACLE of foresight's own ratio, see _to_be_had.
VS_STATIC = 2.5


def bars(slots: int, policies: Mapping[str, Mapping[str, Any]], *, flat: bool = False) -> dict[str, Any]:
    """Each bar by its id: the value, what it is held to, whether that is met; without its rival a bar is left out.

    One that cannot be measured has no value, is not met, and says why.

    Args:
        slots: of the pool; they are part of a bar's id.
        policies: figures over the seeds, by contender.
        flat: what is asked for hardly changes.
    """
    if OURS not in policies:
        return {}
    ours, static, lyra = policies[OURS], policies.get(STATIC), policies.get(LYRA)
    slo = ours["slo_attainment"]["mean"]
    least = SLO if static is None else max(SLO, static["slo_attainment"]["mean"] - SLO_BEHIND_STATIC)
    found = {
        f"slo_attainment_{slots}": _at_least(slo, least),
        f"waste_share_{slots}": _at_most(ours["waste_share"]["mean"], WASTE),
        f"jobs_preempted_beyond_bound_{slots}": _at_most(ours["jobs_preempted_beyond_bound"]["mean"], 0.0),
        "double_allocated_gpu_s": _at_most(ours["double_allocated_gpu_s"]["mean"], 0.0),
    }
    vs_static = VS_STATIC_FLAT if flat else _to_be_had(policies.get(ORACLE))
    for name, rival, bar in (("goodput_vs_oracle", ORACLE, VS_ORACLE), ("goodput_vs_static", STATIC, vs_static)):
        if name in ours:
            found[f"{name}_{slots}"] = _compared(ours[name], bar, f"{rival} trains nothing to compare with")
    if lyra is not None:
        for name in ("queue_s", "jct_s"):
            found[f"{name}_vs_lyra_{slots}"] = _no_longer(ours[name]["mean"], lyra[name]["mean"])
    return found


def _to_be_had(oracle: Mapping[str, Any] | None) -> float:
    """Training to static's that ours is held to."""
    most = None if oracle is None else oracle.get("goodput_vs_static")
    return VS_STATIC if most is None else min(VS_STATIC, VS_ORACLE * float(most["mean"]))


def _compared(figure: Mapping[str, float] | None, bar: float, why: str) -> dict[str, Any]:
    if figure is None:
        return {"value": None, "at_least": bar, "met": False, "why": why}
    return _at_least(figure["mean"], bar)


def _no_longer(ours: Mapping[str, float] | None, lyra: Mapping[str, float] | None) -> dict[str, Any]:
    """Than with Lyra, of the same jobs."""
    if ours is None or lyra is None:
        return {"value": None, "at_most": None, "met": False, "why": "no job came after the warm-up"}
    return _at_most(ours["mean"], lyra["mean"])


def _at_least(value: float, bar: float) -> dict[str, Any]:
    return {"value": value, "at_least": bar, "met": value >= bar}


def _at_most(value: float, bar: float) -> dict[str, Any]:
    return {"value": value, "at_most": bar, "met": value <= bar}
