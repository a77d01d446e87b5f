"""What ``ebbtide status`` shows: the arbiter itself, alerts, and the pool (``pool_view``)."""

import os
from typing import Any

from ebbtide_autoscaler.control import settings
from ebbtide_autoscaler.control.loop import Loop
from ebbtide_autoscaler.core.jobs.preemption_cost import preemption_costs
from ebbtide_autoscaler.core.jobs.preemption_duration import expected_s
from ebbtide_autoscaler.core.observe.alerts import Alert, GatewayContact, alerts_of
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_autoscaler.process.steady_clock import clock
from ebbtide_autoscaler.service.pool_view import view


def status(pool: str, loop: Loop) -> dict[str, Any]:
    """The pool for people and scripts, by the arbiter's process itself."""
    published = loop.published
    seen, state, now_s = published.seen, published.state, clock.now_s()
    policy = loop.file.config.policy if loop.file.config else PolicyConfig()
    restart_s = policy.restart_cost_s
    usual_s = expected_s(published.world.memory.away, now_s, park_first=policy.park_first)
    ways = preemption_costs(state, seen, restart_s=restart_s, expected_s=usual_s) if seen else {}
    shared = settings.teams(loop.file.config) if loop.file.config else ()
    found = view(state, seen, published.waits, now_s, ways, shared, published.left) if seen else {}
    still, file = published.still, loop.file
    gateway = GatewayContact(
        last_s=loop.inbox.gateway_last_s,
        trouble=loop.reconciler.gateway.trouble,
        trouble_since_s=loop.reconciler.gateway.trouble_since_s,
    )
    told = (
        alerts_of(state, seen, now_s, mode=file.mode, mode_since_s=file.mode_since_s, gateway=gateway) if seen else ()
    )
    return {
        "pool": pool,
        "arbiter": {
            "epoch": loop.ledger.epoch,
            "pid": os.getpid(),
            "frozen": still.why,
            "frozen_since_at_s": still.since_s or None,
            "frozen_by": still.by or "",
            "mode": file.mode,
            "tick_s": round(published.tick_took_s, 5),
        },
        "metrics": loop.exporter.status(),
        "cluster": loop.node_scaler.status(),
        "notices": [_notice(one) for one in (*told, *_metrics(loop), *_closing(loop))],
        **found,
    }


def _notice(one: Alert) -> dict[str, Any]:
    return {"about": one.about, "name": one.name, "since_at_s": one.since_s, "why": one.why}


def _metrics(loop: Loop) -> list[Alert]:
    trouble = loop.exporter.trouble
    return [Alert("metrics", "", 0.0, f"{trouble}; it is tried again")] if trouble else []


def _closing(loop: Loop) -> list[Alert]:
    why = loop.inbox.closes()
    return [Alert("arbiter", "", 0.0, f"{why}: nothing is granted")] if why else []
