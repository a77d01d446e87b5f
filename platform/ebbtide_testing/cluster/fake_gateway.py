"""A model of a gateway: holds requests while no replica is ready, balances over ready seats, tries again elsewhere.

It obeys the last routing table and the last keys that it heard, also when the arbiter is dead.

Not modelled: what a key may do; requests carry none.
"""

from collections import defaultdict, deque
from random import Random

from ebbtide.client.messages import GatewayOrders, GatewayReport, KeyGrant, RoutingTable, SeatRoute, Traffic
from ebbtide_testing.cluster.fake_cluster import FakeCluster

RECENT_S = 10.0
ARRIVALS_S = 15.0  # as the real one averages
STAYS_S = 60.0


class FakeGateway:
    """One gateway process; ``rates`` are requests per second and endpoint, ``service_s`` how long each takes."""

    def __init__(self, cluster: FakeCluster, random: Random, name: str, *, service_s: float = 2.0) -> None:
        self.cluster, self.random, self.name, self.service_s = cluster, random, name, service_s
        self.rates: dict[str, float] = {}
        self.alive = True
        self.table = RoutingTable()
        self.keys: tuple[KeyGrant, ...] = ()
        self.keys_version = -1  # it has not heard of any yet
        self.held: dict[str, deque[float]] = defaultdict(deque)  # arrival times
        self.at_seat: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.arrivals: dict[str, int] = defaultdict(int)
        self.completed: dict[str, int] = defaultdict(int)
        self.last_arrival_s: dict[str, float] = {}
        self.ttft_s: tuple[float, ...] = (0.05,)  # with one ready replica, with two, ...; the last also with more
        self.mute = False  # it serves, and the arbiter does not hear of it
        self.beat_s = 0.15  # between two reports
        self.skew_s = 0.0  # by so much its clock is wrong
        self.steady = False  # arrivals at even distances instead of by chance
        self._owed: dict[str, float] = defaultdict(float)
        self._came_s: dict[str, deque[float]] = defaultdict(deque)  # arrivals of the last while
        self._stays: dict[str, deque[tuple[float, float]]] = defaultdict(deque)  # when one was answered, and its stay
        self._began_s = cluster.clock.now_s
        self._beats()
        self._turn()

    def offer(self, endpoint: str) -> None:
        """One request comes in."""
        self.arrivals[endpoint] += 1
        self.last_arrival_s[endpoint] = self.cluster.clock.now_s
        self.held[endpoint].append(self.cluster.clock.now_s)
        self._came_s[endpoint].append(self.cluster.clock.now_s)

    def _turn(self) -> None:
        """New arrivals, then send what can be sent."""
        if not self.alive:
            return
        for endpoint, rate in self.rates.items():
            self._owed[endpoint] += rate * 0.1 if self.steady else float(self.random.random() < rate * 0.1)
            if self._owed[endpoint] >= 1.0:
                self._owed[endpoint] -= 1.0
                self.offer(endpoint)
        for endpoint, held in self.held.items():
            routes = self.table.endpoints.get(endpoint, ())
            for route in sorted(routes, key=lambda route: self.at_seat[endpoint][route.seat]):
                if held and self._send(endpoint, route, held[0]):
                    held.popleft()
        self.cluster.clock.call_later(0.1, self._turn)

    def _send(self, endpoint: str, route: SeatRoute, since_s: float) -> bool:
        actor = self.cluster.serve.actor(route.url)
        if actor is None or actor.refuses or not actor.ready:
            return False
        actor.inflight += 1
        self.at_seat[endpoint][route.seat] += 1
        sent_s = self.cluster.clock.now_s

        def over() -> None:
            self.at_seat[endpoint][route.seat] -= 1
            actor.inflight -= 1
            if actor.alive:
                self.completed[endpoint] += 1
                self._stays[endpoint].append((self.cluster.clock.now_s, self.cluster.clock.now_s - sent_s))
            elif self.alive:
                self.held[endpoint].append(since_s)

        self.cluster.clock.call_later(self.random.uniform(0.5, 1.5) * self.service_s, over)
        return True

    def _beats(self) -> None:
        if not self.alive:
            return
        if self.mute:
            self.cluster.clock.call_later(self.beat_s, self._beats)
            return
        now_s = self.cluster.clock.now_s
        traffic = {}
        for endpoint in dict.fromkeys([*self.rates, *self.held]):  # in an order that no hash decides
            held = self.held[endpoint]
            inflight = sum(self.at_seat[endpoint].values())
            ready = len(self.table.endpoints.get(endpoint, ()))
            recent = now_s - self.last_arrival_s.get(endpoint, 0.0) < RECENT_S
            came, stays = self._came_s[endpoint], self._stays[endpoint]
            while came and came[0] <= now_s - ARRIVALS_S:
                came.popleft()
            while stays and stays[0][0] <= now_s - STAYS_S:
                stays.popleft()
            traffic[endpoint] = Traffic(
                arriving_per_s=len(came) / max(1.0, min(ARRIVALS_S, now_s - self._began_s)),
                stays=len(stays),
                stayed_s=sum(stay_s for _, stay_s in stays),
                arrivals=self.arrivals[endpoint],
                completed=self.completed[endpoint],
                held=len(held),
                inflight=inflight,
                oldest_held_s=now_s - min(held) if held else 0.0,
                last_arrival_s=self._told_s(self.last_arrival_s.get(endpoint)),
                recent_ttft_s=(self.ttft_s[min(ready, len(self.ttft_s)) - 1],) if recent and inflight and ready else (),
                seat_inflight=dict(self.at_seat[endpoint]),
            )
        report = GatewayReport(self.name, "n0", self._began_s, "", self.table.version, traffic, self.keys_version)

        def answered(orders: GatewayOrders | None) -> None:
            if orders is not None:
                self._obey(orders)
            self.cluster.clock.call_later(self.beat_s, self._beats)

        self.cluster.link.call(lambda arbiter: arbiter.report_gateway(report), answered)

    def _told_s(self, at_s: float | None) -> float:
        """A time by its own clock; 0: never."""
        return 0.0 if at_s is None else at_s + self.skew_s

    def _obey(self, orders: GatewayOrders) -> None:
        """As the real one: what an order does not name stays as it is."""
        if orders.keys is not None:
            self.keys_version, self.keys = orders.keys_version, orders.keys
        if orders.routes is not None:
            self.table = orders.routes
