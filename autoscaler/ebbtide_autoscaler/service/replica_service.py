"""Where replicas and gateways come: reports in; leases, drains, routes and keys out.

Nothing is decided here; what is answered is the last state that the ledger has confirmed. Called from many threads.
"""

from ebbtide.client.messages import GatewayOrders, GatewayReport, Lease, ReplicaOrders, ReplicaReport
from ebbtide.pool.ids import NodeId, SeatId
from ebbtide.pool.transitions import SeatState
from ebbtide_autoscaler.control.loop import Loop
from ebbtide_autoscaler.control.steady_clock import clock
from ebbtide_autoscaler.core.observe.observe import lease, placed, replica_orders, settling

MAY_HAVE_LEASE = frozenset({SeatState.PLACING, SeatState.STARTING, SeatState.READY})


class SeatDesk:
    """For the seats of one pool, and the gateways that send them requests."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def lease(self, seat: SeatId, node: NodeId, gpu_ids: tuple[int, ...]) -> Lease | None:
        """The lease of a replica that was placed on these GPUs; None: they were not granted to it."""
        state = self._loop.world.state
        record = state.seats.get(seat)
        # guard: a replica whose seat has no granted slots gets no lease
        if record is None or record.state not in MAY_HAVE_LEASE:
            return None
        here = placed(state, record, node, gpu_ids)
        if here != frozenset(record.slots):  # guard: a replica on other GPUs than granted gets no lease
            self._loop.reports.take_misplaced(record.id, here)
            self._loop.wake()
            return None
        return lease(state, seat, record.epoch, record.slots)

    def replica(self, report: ReplicaReport) -> ReplicaOrders:
        """A replica's state."""
        if self._loop.reports.take_replica(report):
            self._loop.wake()
        return replica_orders(self._loop.world.state, report)

    def gateway(self, report: GatewayReport) -> GatewayOrders:
        """A gateway's traffic; the answer is where requests go and which keys count. None in it: keep the last."""
        if self._loop.reports.take_gateway(report):
            self._loop.wake()
        seen, state = self._loop.seen, self._loop.world.state
        unsure = not self._loop.configured or seen is None or settling(state, seen, clock.now_s())
        # guard: no gateway is told of routes before they are known
        routes = None if unsure else self._loop.routing_table
        return self._loop.keys.orders(report.keys_seen, routes, self._loop.reports.share_of(report))
