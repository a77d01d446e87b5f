"""From the pool's file to the arbiter's knobs and to the plans of its ports. Pure."""

import json

from ebbtide.client.messages import KeyGrant
from ebbtide.client.seat_actuator import VLLM_ENGINE, SeatPlan
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.key_section import KeySection, Scope
from ebbtide.config.sections.policy_section import PolicySection
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.ids import SeatId, endpoint_of
from ebbtide_autoscaler.cluster.size import SizeConfig
from ebbtide_autoscaler.core.observe.observation import Limits
from ebbtide_autoscaler.core.plan.fair_share import Team
from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_autoscaler.core.tick.tick import TickSettings

GATEWAY_SCOPES = {Scope.INFERENCE: ("models", "generate"), Scope.ADMIN: ("models", "admin")}
"""What a scope of the file opens at the gateway."""

LEAST_INFLIGHT = 64  # at one replica, where the file states cautious targets; what is beyond waits at the gateway


def tick_settings(config: PoolFile, *, frozen: bool) -> TickSettings:
    """The parts that a step needs."""
    policy = config.policy
    return TickSettings(
        policy=policy_config(policy, reserve=config.pool.reserve, teams=teams(config)),
        limits=Limits(
            placement_timeout_s=policy.placement_timeout_s,
            start_timeout_s=policy.start_timeout_s,
            gang_timeout_s=policy.gang_timeout_s,
            silence_s=policy.silence_s,
        ),
        frozen=frozen,
        observe=config.pool.mode is PoolMode.OBSERVE,
    )


def policy_config(section: PolicySection, *, reserve: int, teams: tuple[Team, ...] = ()) -> PolicyConfig:
    """The policy's knobs, for the arbiter and for whoever plays it.

    Args:
        section: what the file says of them.
        reserve: slots that jobs leave free.
        teams: what is promised to them; none: first come, first served.
    """
    return PolicyConfig(
        reserve=reserve,  # guard: jobs leave the reserve of the file free
        restart_cost_s=section.restart_cost_s,
        park_first=section.park_first,
        grow_after_s=section.grow_after_s,
        up_after_s=section.up_after_s,
        starve_after_s=section.starve_after_s,
        forecast_share=section.forecast_share,
        teams=teams,
    )


def teams(config: PoolFile) -> tuple[Team, ...]:
    """What the file promises to teams."""
    return tuple(Team(team.name, team.guarantee, team.weight, team.quota) for team in config.teams)


def cluster_size(config: PoolFile) -> SizeConfig | None:
    """The bounds of the pool's size; None: its nodes are what they are."""
    pool = config.pool
    if pool.nodes_max is None or pool.node_gpus is None:
        return None
    return SizeConfig(
        nodes_min=pool.nodes_min,
        nodes_max=pool.nodes_max,
        node_slots=pool.node_gpus,
        grow_after_s=pool.nodes_grow_after_s,
        idle_after_s=pool.nodes_idle_after_s,
        reserve=pool.reserve,
        teams=teams(config),
    )


def seat_plan(config: PoolFile, seat: SeatId, *, token: str, cache_dir: str) -> SeatPlan | None:
    """How to run the replica of ``seat``; None if its endpoint is not configured any more."""
    name = endpoint_of(seat)
    for endpoint in config.endpoints:
        if endpoint.name == name:
            return SeatPlan(
                seat=seat,
                endpoint=name,
                model=str(endpoint.model),
                load=endpoint.load.model_dump() | {"loaders": config.pool.loaders_max},
                slots=endpoint.gpus_per_replica,
                cpus=endpoint.cpus_per_replica,
                engine_args=dict(endpoint.engine),
                engine=endpoint.engine_class or VLLM_ENGINE,
                drain_s=endpoint.drain_s,
                token=token,
                cache_dir=cache_dir,
                host="127.0.0.1" if config.pool.ray_address is None else "node",
            )
    return None


def gateway_json(config: PoolFile, *, token: str, nodes: int = 1) -> str:
    """The gateway's settings as its deployment reads them. Keys are not in it: they come with orders.

    ``nodes``: how many the pool has.
    """
    gateway = config.gateway
    busiest = max((endpoint.target_requests for endpoint in config.endpoints), default=0)
    return json.dumps(
        {
            "endpoints": [endpoint.name for endpoint in config.endpoints],
            "internal_token": token,
            "host": gateway.host,
            "port": gateway.port,
            "replicas": max(1, nodes) if gateway.per_node else 1,
            "per_node": gateway.per_node,
            "tls_cert": str(gateway.tls.cert) if gateway.tls else "",
            "tls_key": str(gateway.tls.key) if gateway.tls else "",
            "max_connections": gateway.max_connections,
            "hold_max_requests": gateway.hold.max_requests,
            "hold_max_bytes": gateway.hold.max_bytes,
            "hold_max_age_s": gateway.hold.max_age_s,
            "max_inflight_per_seat": max(LEAST_INFLIGHT, 2 * busiest),
            "max_body_bytes": gateway.max_body_bytes,
            "request_timeout_s": gateway.request_timeout_s,
        }
    )


def file_keys(config: PoolFile) -> tuple[tuple[KeyGrant, ...], frozenset[str]]:
    """The keys of the file, and the endpoints that keys may name. Secrets are SHA-256 by now."""
    return tuple(_key(key) for key in config.keys), frozenset(endpoint.name for endpoint in config.endpoints)


def _key(key: KeySection) -> KeyGrant:
    return KeyGrant(
        name=key.name,
        sha256=key.secret.sha256 or "",
        scopes=tuple(dict.fromkeys(name for scope in key.scopes for name in GATEWAY_SCOPES[scope])),
        endpoints=None if key.endpoints == "all" else key.endpoints,
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        concurrent_streams=key.concurrent_streams,
        revoked=key.revoked,
    )
