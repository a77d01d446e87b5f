"""What a person should know at a glance: what stands still, since when and why. Pure.

``status`` prints these lines above its tables; each is a :class:`Alert` with the time since when it holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.rules.drain import let_go
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.freeze_cause import FreezeCause as FreezeCause  # others ask for it here
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.observe.traffic import GATEWAY_FRESH_S

AGENT_SILENT_S = 5.0  # agents report once a second and at every change


@dataclass(frozen=True, slots=True)
class Standstill:
    """What the arbiter itself knows of why it does not move; ``by`` is None while it moves."""

    why: str = ""
    since_s: float = 0.0
    by: FreezeCause | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that does not go on as usual. ``about``: arbiter, gateway, agent, node, metrics or mode."""

    about: str
    name: str
    since_s: float  # seconds since 1970; 0: not known
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayContact:
    """What is known of the gateway besides its reports."""

    last_s: float = 0.0  # when any gateway was heard last; 0: never
    trouble: str = ""  # why it could not be told its settings
    trouble_since_s: float = 0.0


def standstill(state: PoolState, broken: Standstill, settling_since_s: float) -> Standstill:
    """Why nothing is decided now: the ledger or a promise first, then a person, then a start that is not over."""
    if broken.why:
        return broken
    if state.frozen:
        return Standstill(state.frozen, state.frozen_since_s, FreezeCause.PERSON)
    if settling_since_s:
        why = "the arbiter has just started; it decides when every ready replica has reported, or in 10 s"
        return Standstill(why, settling_since_s, FreezeCause.START)
    return Standstill()


def alerts_of(
    state: PoolState, seen: Observation, now_s: float, *, mode: PoolMode, mode_since_s: float, gateway: GatewayContact
) -> tuple[Alert, ...]:
    """All of them, a standstill apart."""
    found: list[Alert] = []
    if mode is PoolMode.OBSERVE:
        why = "observe mode: decisions are written down and nothing is moved; `ebbtide events` shows what would be done"
        found.append(Alert("mode", mode, mode_since_s, why))
    found += _gateways(seen, now_s, gateway)
    found += _agents(state, seen, now_s)
    found += [
        Alert("node", node, 0.0, f"draining: {why}; `ebbtide undrain {node[:8]}` ends it")
        for node, why in state.draining.items()
    ]
    return tuple(found)


def _gateways(seen: Observation, now_s: float, gateway: GatewayContact) -> Iterator[Alert]:
    if gateway.trouble:
        why = f"the gateway could not be told its settings, it is tried again: {gateway.trouble}"
        yield Alert("gateway", "", gateway.trouble_since_s, why)
    silent = {name: heard for name, heard in seen.gateways.items() if now_s - heard.at_s > GATEWAY_FRESH_S}
    if len(silent) == len(seen.gateways):
        since_s = max(gateway.last_s, seen.started_s if not gateway.last_s else 0.0)
        if now_s - since_s > GATEWAY_FRESH_S:
            which = ", ".join(sorted(heard.report.url for heard in silent.values())) or "no gateway has reported yet"
            why = f"signals stopped: every gateway is silent ({which}); endpoints keep the replicas they have"
            yield Alert("gateway", "", since_s, why)
        return
    for name, heard in silent.items():
        why = f"gateway {name} at {heard.report.url} on node {heard.report.node[:8]} is silent; the others count"
        yield Alert("gateway", name, heard.at_s, why)


def _agents(state: PoolState, seen: Observation, now_s: float) -> Iterator[Alert]:
    for node, why in seen.refused.items():
        yield Alert("node", node, 0.0, f"node {node[:8]} is refused: {why} there, and it is taken in by itself")
    gone = let_go(state)  # these have none
    for node in state.nodes:
        if node in gone or node in seen.refused:
            continue
        heard = seen.agents.get(node)
        since_s = heard.at_s if heard is not None else seen.started_s
        if now_s - since_s > AGENT_SILENT_S:
            why = f"the agent of node {node[:8]} is silent: no slot there can be proven free, so none is handed over"
            yield Alert("agent", node, since_s, why)
