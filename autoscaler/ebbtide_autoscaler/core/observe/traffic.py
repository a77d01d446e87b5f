"""What gateways and engines say of an endpoint's requests, as the policy gets it. Pure."""

from collections.abc import Mapping
from math import inf

from ebbtide.pool.ids import EndpointName
from ebbtide.pool.state import PoolState
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.core.observe.observation import Observation
from ebbtide_autoscaler.core.plan.inputs import EndpointSignals

GATEWAY_FRESH_S = 3.0  # gateways report ten times a second; after 3 s without a word a gateway's counts are stale


def traffic(state: PoolState, seen: Observation, now_s: float) -> Mapping[EndpointName, EndpointSignals]:
    """The signals of every endpoint: of the gateways that were heard lately, and of its replicas."""
    fresh = [heard.report for heard in seen.gateways.values() if now_s - heard.at_s <= GATEWAY_FRESH_S]
    unheard_s = _unheard_s(seen, now_s)
    found = {}
    for name, record in state.endpoints.items():
        parts = [part for report in fresh if (part := report.traffic.get(name)) is not None]
        ttft_s = [seconds for part in parts for seconds in part.recent_ttft_s]
        ttft_s += (began_s(took_s, tokens, record.spec.tpot_slo_s) for p in parts for took_s, tokens in p.recent_whole)
        tpot_s = [seconds for part in parts for seconds in part.recent_tpot_s]
        stays, stayed_s = sum(part.stays for part in parts), sum((part.stayed_s for part in parts), 0.0)
        waiting, kv_usage = _engines(state, name, seen, now_s)
        found[name] = EndpointSignals(
            known=bool(fresh),
            unheard_s=unheard_s,
            held=sum(part.held for part in parts),
            inflight=sum(part.inflight for part in parts),
            arrivals=sum(part.arrivals for part in parts),
            last_arrival_s=max((0.0, *(part.last_arrival_s for part in parts))),
            arriving_per_s=sum((part.arriving_per_s for part in parts), 0.0),
            ttft_p90_s=_p90(ttft_s),
            tpot_p90_s=_p90(tpot_s),
            stay_s=stayed_s / stays if stays else 0.0,
            waiting=waiting,
            kv_usage=kv_usage,
        )
    return found


def _unheard_s(seen: Observation, now_s: float) -> float:
    """For how long the gateway that has been silent longest has said nothing, of those that may still live.

    One whose node has a later one does not: the port is the node's. One that is gone for good is forgotten after a
    minute (see `inbox`).
    """
    latest: dict[str, float] = {}
    for heard in seen.gateways.values():
        latest[heard.report.node] = max(heard.report.started_s, latest.get(heard.report.node, -inf))
    ages = (
        now_s - heard.at_s for heard in seen.gateways.values() if heard.report.started_s >= latest[heard.report.node]
    )
    return max((age for age in ages if age > GATEWAY_FRESH_S), default=0.0)


def began_s(took_s: float, tokens: int, tpot_slo_s: float) -> float:
    """When an answer's first token would have come, in seconds, if each other one had taken as long as is promised.

    An answer in one piece tells only when all of it was there. So it is taken for a stream that is as slow as promised
    after its first token: it is late if it took longer than the first token and all others together may.
    """
    return max(0.0, took_s - max(0, tokens - 1) * tpot_slo_s)


def _p90(values: list[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else 0.0


def _engines(state: PoolState, endpoint: EndpointName, seen: Observation, now_s: float) -> tuple[int, float]:
    """Requests queued in its ready replicas, and how full the fullest KV cache is; of those heard lately."""
    ready = (seat for seat in state.seats_of(endpoint) if seat.state is SeatState.READY)
    heard = (seen.replicas.get(seat.id) for seat in ready)
    reports = [one.report for one in heard if one is not None and now_s - one.at_s <= GATEWAY_FRESH_S]
    return sum(report.waiting for report in reports), max((report.kv_usage for report in reports), default=0.0)
