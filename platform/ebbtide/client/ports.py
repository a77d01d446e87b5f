"""What the arbiter needs of serving; ``ebbtide_serve`` fills it through the entry point ``ebbtide.actuators``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SeatPlan:
    """All that Serve needs in order to run the replica of one seat."""

    seat: str
    endpoint: str
    model_dir: str
    gpus: int
    cpus: float
    engine: Mapping[str, object] = field(default_factory=dict)  # vLLM engine arguments
    drain_s: float = 30.0
    internal_token: str = ""  # the gateway shows it to the replica
    lock_dir: str = ""
    log_dir: str = ""  # of the allocation logs
    cache_dir: str = ""  # compile and inspection caches


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """All that the gateway needs; keys only as SHA-256."""

    host: str
    port: int
    endpoints: tuple[str, ...]
    internal_token: str
    hold_max_requests: int
    hold_max_bytes: int
    hold_max_age_s: float
    max_body_bytes: int
    request_timeout_s: float
    keys: tuple[Mapping[str, object], ...] = ()


class ServePort(Protocol):
    """Blocking and idempotent; called from worker threads, one call at a time per seat."""

    def start(self) -> None:
        """Start Serve on the cluster, if it does not run."""

    def open_gateway(self, plan: GatewayPlan) -> None:
        """Have the gateway run with this plan."""

    def open_seat(self, plan: SeatPlan) -> None:
        """Have one replica run at the seat."""

    def close_seat(self, seat: str) -> None:
        """Have no replica run at the seat; a seat that was never opened is closed."""

    def living(self) -> Mapping[str, tuple[str, ...]]:
        """The replica actors that exist in any state, by seat: names for :meth:`kill`."""

    def kill(self, actor: str) -> None:
        """Kill a replica actor; one that is gone is no error."""

    def stop(self) -> None:
        """Remove the gateway and every seat from the cluster."""
