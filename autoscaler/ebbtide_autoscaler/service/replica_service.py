"""Where replicas and gateways come: reports in; leases, drains, routes and keys out.

Nothing is decided here; what is answered is the last state that the ledger has confirmed. Called from many threads.
"""

from ebbtide.client.messages import GatewayOrders, GatewayReport, Lease, ReplicaOrders, ReplicaReport
from ebbtide.pool.ids import NodeId, SeatId
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.inbox import Inbox
from ebbtide_autoscaler.control.key_changes import KeyChanges
from ebbtide_autoscaler.control.published import Published
from ebbtide_autoscaler.core.observe.settling import settling
from ebbtide_autoscaler.core.observe.workload_orders import lease, placed_slots, replica_orders
from ebbtide_autoscaler.process.steady_clock import clock

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})


class ReplicaService:
    """For the seats of one pool, and the gateways that send them requests."""

    def __init__(self, published: Published, inbox: Inbox, file: ConfigInForce, keys: KeyChanges) -> None:
        self._published, self._inbox, self._file, self._keys = published, inbox, file, keys

    def lease(self, seat: SeatId, node: NodeId, gpu_ids: tuple[int, ...]) -> Lease | None:
        """The lease of a replica that was placed on these GPUs; None: they were not granted to it."""
        state = self._published.state
        record = state.seats.get(seat)
        # guard: a replica whose seat has no granted slots gets no lease
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        here = placed_slots(state, record, node, gpu_ids)
        if here != frozenset(record.slots):  # guard: a replica on other GPUs than granted gets no lease
            self._inbox.take_misplaced(record.id, here)
            return None
        return lease(state, seat, record.epoch, record.slots)

    def replica(self, report: ReplicaReport) -> ReplicaOrders:
        """A replica's state."""
        self._inbox.take_replica(report)
        return replica_orders(self._published.state, report)

    def gateway(self, report: GatewayReport) -> GatewayOrders:
        """A gateway's traffic; the answer is where requests go and which keys count. None in it: keep the last."""
        self._inbox.take_gateway(report)
        seen, state = self._published.seen, self._published.state
        unsure = self._file.config is None or seen is None or settling(state, seen, clock.now_s())
        # guard: no gateway is told of routes before they are known
        routes = None if unsure else self._published.routing_table
        return self._keys.orders(report.keys_seen, routes, self._inbox.share_of(report))
