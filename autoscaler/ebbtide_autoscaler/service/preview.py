"""What the policy would come to at a later time, if demand is then as it is expected to be."""

from typing import Any

from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.core.decide.lookahead import look_ahead
from ebbtide_autoscaler.core.observe.traffic import traffic
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_autoscaler.core.tick.tick import snapshot_of
from ebbtide_autoscaler.process.steady_clock import clock


def foresee(published: Published, file: ConfigInForce, at_s: float) -> dict[str, Any]:
    """The decision at ``at_s`` (seconds since 1970), as ``ebbtide plan`` shows it."""
    now_s, state, seen = clock.now_s(), published.state, published.seen
    if seen is None:
        return {"at_s": at_s, "endpoints": [], "free_slots": 0, "moves": []}
    memory = published.world.memory
    policy = settings.tick_settings(file.config, frozen=False).policy if file.config else PolicyConfig()
    signals = traffic(state, seen, now_s)
    world = snapshot_of(state, seen, now_s, memory, policy, signals, published.outlooks)
    return look_ahead(now_s, max(now_s, at_s), world, memory, policy)
