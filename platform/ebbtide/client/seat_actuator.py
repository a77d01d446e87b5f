"""What the arbiter tells the serve actuator about a seat, and the narrow port between the two.

The arbiter loads the actuator by entry point (``ebbtide.actuators``), so neither room imports the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ebbtide.pool.ids import EndpointName, SeatId

VLLM_ENGINE = "ebbtide_serve.vllm.engine:VllmEngine"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatPlan:
    """All that a seat's replica is started with; a changed plan takes effect at the seat's next start."""

    seat: SeatId
    endpoint: EndpointName  # the model's name in the API
    model: str  # a directory, or name:tag in the pool's store
    load: Mapping[str, object] = field(default_factory=dict)  # how weights and compiled code are got
    slots: int  # of one replica, all on one node
    node: str = ""  # Ray's id of that node; "": wherever Ray finds the GPUs
    fenced: bool = False  # it takes no GPU of Ray's: the fences of its slots stay, and it may park
    cpus: float = 0.0  # Ray's logical CPUs; 0: CPUs never keep a granted seat waiting
    engine_args: Mapping[str, object] = field(default_factory=dict)
    drain_s: float = 30.0  # at most, for running requests when the seat is closed
    token: str  # the pool's internal token, by which the gateway is known
    host: str = "127.0.0.1"  # where the replica listens; "node": on its node's private address
    cache_dir: str  # node-local: each replica keeps its caches of compiled code in a directory of its own below it
    engine: str = VLLM_ENGINE  # "module:Class" of the engine


class SeatActuator(Protocol):
    """What the arbiter asks of serving. Every method may be repeated, and may raise: then ask again next tick."""

    async def start_gateway(self, settings_json: str) -> None:
        """Have the gateway run with these settings."""

    async def open_seat(self, seat: SeatPlan) -> None:
        """Want one replica at this seat. Returns when Serve has taken note, long before the replica is up."""

    async def close_seat(self, seat_id: SeatId) -> None:
        """Want no replica at this seat: it drains and ends."""

    async def living(self) -> Mapping[SeatId, tuple[str, ...]]:
        """The replica actors that exist, pending, starting and stopping ones too, by name, for each seat with any."""

    async def kill(self, actor_name: str) -> None:
        """Kill one of those actors at once; nothing happens if it is gone."""

    async def stop(self) -> None:
        """End every seat and the gateway."""
